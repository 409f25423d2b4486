"""``passerelle help`` and ``passerelle version``: the flags ``--help`` and ``--version`` as commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from passerelle.runtime.common.version import VERSION

help_verbs: Final = typer.Typer()


def print_version() -> None:
    """Prints the name of the program and its version."""
    print(f"passerelle {VERSION}")


@help_verbs.command(epilog="Example: passerelle version")
def version() -> None:
    """Print the version."""
    print_version()


@help_verbs.command(name="help", epilog="Example: passerelle help tasks list")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="A command, such as tasks list."),
    ] = None,
) -> None:
    """Show help for the program, or for a command."""
    root = context.find_root()
    root.command.main([*(words or ()), "--help"], prog_name=root.info_name, standalone_mode=False)
