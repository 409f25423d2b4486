"""How one hears that a caller has closed its connection while it waits.

ASGI says so by a message, which takes a task of its own to wait for. Our server says so by calling back; where another
one serves, or frames of a socket are served, the message is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from starlette.types import Receive

Left: TypeAlias = Callable[[], None]
Watch: TypeAlias = Callable[[Left], Callable[[], object]]
"""Takes what to call once the caller has left, and returns how to stop watching."""


def watch_messages(receive: Receive) -> Watch:
    """Waits for the message that says it."""

    def watch(left: Left) -> Callable[[], object]:
        return asyncio.create_task(_wait(receive, left)).cancel

    return watch


def watch_nobody(_left: Left) -> Callable[[], object]:
    """For a caller whose leaving ends the call itself."""
    return _nothing


async def _wait(receive: Receive, left: Left) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    left()


def _nothing() -> None:
    return None
