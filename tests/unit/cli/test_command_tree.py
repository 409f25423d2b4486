"""The root commands: their names are known before any module is imported, and each is imported once."""

from __future__ import annotations

import pytest
import typer.main

from passerelle.cli.command_tree import COMMAND_MODULES, LazyCommands
from passerelle.cli.main import app


def test_each_row_brings_the_names_that_it_is_known_by() -> None:
    for row in COMMAND_MODULES:
        commands = LazyCommands({})
        assert [commands[name].name for name in row.names] == [*row.names]


def test_names_are_known_in_order_and_none_twice() -> None:
    names = [name for row in COMMAND_MODULES for name in row.names]
    assert [*LazyCommands({})] == names
    assert len(names) == len(set(names))
    own = LazyCommands({"first": "a command"})
    assert [*own] == ["first", *names]
    assert (own["first"], len(own)) == ("a command", len(names) + 1)


def test_every_file_of_a_group_is_in_it() -> None:
    commands = LazyCommands({})
    assert {"list", "cancel", "watch", "bulk"} <= commands["tasks"].commands.keys()
    assert {"list", "allow", "mute", "rules", "watch"} <= commands["approvals"].commands.keys()


def test_two_trees_share_what_was_read() -> None:
    one, other = (typer.main.get_group(app).commands for _ in range(2))
    assert one["tasks"] is other["tasks"]
    assert "nothing" not in one
    assert one.get("nothing") is None
    with pytest.raises(KeyError):
        one["nothing"]


def test_commands_may_be_added_and_taken_away() -> None:
    commands = LazyCommands({})
    commands["mine"] = "a command"
    assert (commands["mine"], [*commands][-1]) == ("a command", "mine")
    del commands["tasks"]
    assert "tasks" not in commands
    with pytest.raises(KeyError):
        commands["tasks"]
