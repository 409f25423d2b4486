"""``passerelle tasks watch``: a live table in a terminal; elsewhere one line per change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.cli.verbs.short_ids import expand_id
from passerelle.cli.verbs.verb import GatewayLink, add_verb, print_now

if TYPE_CHECKING:
    from passerelle.cli.watch.watcher import BoardOutput

watch_verb: Final = typer.Typer()


@add_verb(watch_verb, "tasks watch --session se_2f…", "watch")
def watch(
    link: GatewayLink,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK...", help="Ids of tasks; default: all open tasks."),
    ] = None,
    *,
    session: Annotated[
        list[str] | None, typer.Option(help="All tasks of this session; may be repeated.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Continue after every task has ended, for further ones.")
    ] = False,
    all_owners: Annotated[
        bool, typer.Option("--all-owners", help="Open tasks of all owners; needs tasks:oversee.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which the gateway may be unavailable.")
    ] = 60.0,
) -> None:
    """Watch tasks: status, progress and events per second.

    A table in a terminal; elsewhere, or with --json, one line for each change. It exits with status 0 if every named
    task completed, with 1 if one ended otherwise, and reconnects when the gateway restarts.
    """
    import asyncio

    from passerelle.cli.watch.watcher import Watcher, WatchOptions
    from passerelle.runtime.common.clock import SystemClock

    link.refuse_forms()
    if all_owners and (names or session):
        raise typer.BadParameter("is for all tasks, and not for some", param_hint="--all-owners")
    client = link.open()
    streams = (
        *(f"task:{expand_id(client, 'tasks', name)}" for name in names or ()),
        *(f"session:{expand_id(client, 'sessions', name)}" for name in session or ()),
    )
    output = _choose_output(as_json=link.as_json, with_owners=all_owners)
    watcher = Watcher(WatchOptions(streams, keep, patience, all_owners), output, SystemClock())
    token = client.token.get_secret_value() if client.token else None
    raise typer.Exit(asyncio.run(watcher.watch(client.url, token, client.tls)))


def _choose_output(*, as_json: bool, with_owners: bool) -> BoardOutput:
    from rich.console import Console

    from passerelle.cli.watch.lines import Lines
    from passerelle.cli.watch.screen import Screen

    console = Console()
    if not as_json and console.is_terminal and not console.is_dumb_terminal:
        return Screen(console, with_owners)
    return Lines(print_now, as_json, with_owners)
