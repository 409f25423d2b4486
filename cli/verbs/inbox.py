"""``passerelle approvals watch``: an interactive inbox in a terminal; elsewhere one line per change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.cli.verbs.answers import sign_answer
from passerelle.cli.verbs.verb import GatewayLink, add_verb, print_now

if TYPE_CHECKING:
    from passerelle.cli.watch.inbox_watcher import InboxOutput

inbox_verb: Final = typer.Typer()


@add_verb(inbox_verb, "approvals watch", "watch")
def watch(
    link: GatewayLink,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show pending approvals, and exit.")] = False,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for an unavailable gateway.")
    ] = 60.0,
) -> None:
    """Watch the inbox, and decide approvals in it.

    In a terminal, keys select and decide; an approval is confirmed, at high risk by typing yes. Elsewhere, or with
    --json, it prints one line for each new and each closed approval. It reconnects when the gateway restarts.
    """
    import asyncio

    from passerelle.cli.watch.inbox_watcher import InboxWatcher
    from passerelle.runtime.common.clock import SystemClock

    link.refuse_forms()
    client = link.open()
    output = _choose_output(as_json=link.as_json)
    watcher = InboxWatcher(output, SystemClock(), partial(sign_answer, link), patience, once)
    token = client.token.get_secret_value() if client.token else None
    asyncio.run(watcher.watch(client.url, token, client.tls))


def _choose_output(*, as_json: bool) -> InboxOutput:
    from rich.console import Console

    from passerelle.cli.watch.inbox_screen import InboxLines, InboxScreen

    console = Console()
    if not as_json and console.is_terminal and not console.is_dumb_terminal:
        return InboxScreen(console)
    return InboxLines(print_now, as_json)
