"""Draws the reference of the command from the command itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION: Final = """# Command line

Generated from the code by `make generate`. `passerelle COMMAND --help` prints the same in a terminal, with
an example.

Commands that call a gateway also take `--url`, `--token-env`, `--config` and `--data-dir` (which gateway, and which
token), and `-o json`, `-o yaml`, `-o name` and `--json` (for programs). In a terminal, tables fit its width; in a pipe
they are not cut.
"""
_OF_MOST: Final = frozenset({"output", "as_json", "url", "token_env", "config", "data_dir", "help"})
_STATUSES: Final = {
    ExitStatus.DONE: "done",
    ExitStatus.REMOTE: "something that the gateway depends on failed, or a check found errors; try again",
    ExitStatus.CALLER: "the command or the configuration is wrong",
    ExitStatus.ALREADY_RESOLVED: "the approval has already been decided",
    ExitStatus.CLOSED: "the approval expired, was cancelled or was replaced",
    ExitStatus.STALE: "it has changed since it was read: read it again",
    ExitStatus.FORBIDDEN: "the credential is missing or lacks the right",
    ExitStatus.NOT_FOUND: "it does not exist, or belongs to another caller",
    ExitStatus.FAULT: "an internal error",
}


def render_cli() -> str:
    """The whole text of ``docs/reference/cli.md``."""
    # A group of commands, whose types the library keeps to itself.
    root: Any = typer.main.get_command(app)
    lines = [_INTRODUCTION, *_render_group("passerelle", root)]
    lines += ["## Exit statuses", "", "| status | |", "|---|---|"]
    lines += [f"| {status.value} | {_STATUSES[status]} |" for status in ExitStatus]
    return "\n".join([*lines, ""])


def _render_group(name: str, group: Any) -> Iterator[str]:  # noqa: ANN401  a command of the library
    plain = {key: one for key, one in group.commands.items() if not hasattr(one, "commands")}
    if plain:
        yield from (f"## {name}", "", "| command | what it does | options |", "|---|---|---|")
        for key, one in plain.items():
            yield _render_command(f"{name} {key}", one)
        yield ""
    for key, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from _render_group(f"{name} {key}", one)


def _render_command(name: str, command: Any) -> str:  # noqa: ANN401  a command of the library
    shown = [one for one in command.params if one.name not in _OF_MOST]
    places = [one for one in shown if one.param_type_name == "argument"]
    words = " ".join([name, *(one.metavar or one.name.upper() for one in places)])
    options = [
        f"`{one.opts[0]}` {one.help or ''}".strip()
        for one in shown
        if one.param_type_name == "option" and not one.hidden
    ]
    about = (command.help or "").split("\n\n")[0].replace("\n", " ")
    return f"| `{_escape(words)}` | {_escape(about)} | {_escape('<br>'.join(options)) or '-'} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
