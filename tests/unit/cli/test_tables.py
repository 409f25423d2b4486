"""Tables are printed complete into a pipe, and as wide as the screen in a terminal."""

from __future__ import annotations

import os
import sys

import pytest

from passerelle.cli.verbs.verb import format_table

TITLES = ("TASK", "STATUS", "CREATED", "TITLE")
TASK = "task_3101m83m9dzr4kh4fzvqp0001"
ROW = (
    TASK,
    "waiting_input",
    "2026-11-28T12:00:00.000Z",
    "Count all of the boats in the old harbour",
)


@pytest.mark.usefixtures("capsys")
def test_in_a_pipe_nothing_is_cut_however_narrow_a_screen_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    titles, row = format_table(TITLES, [ROW])
    assert row == "  ".join(ROW)
    assert titles.split() == list(TITLES)


def test_in_a_terminal_a_table_fits_and_ids_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    leader, follower = os.openpty()
    try:
        with os.fdopen(follower, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            lines = [*format_table(TITLES, [ROW])]
    finally:
        os.close(leader)
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].split()[0] == TASK[-8:]
