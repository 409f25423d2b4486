"""Has what there is to tell of a link written, one after another, while the link goes on and at its end (EXT-8)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from passerelle.channels.services import Linked, LinkFacts
    from passerelle.channels.story import LinkFact


class Telling:
    """What is left to tell of one link. It knows nobody who knows it, so a link that has ended leaves no cycle."""

    __slots__ = ("_left", "_links", "_task")

    def __init__(self, links: LinkFacts) -> None:
        self._links = links
        self._left: list[LinkFact] = []
        self._task: asyncio.Task[None] | None = None

    def tell(
        self,
        link: Linked,
        facts: Iterable[LinkFact],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """Adds facts behind those that wait; ``spawn`` owns the task, which lives while something is left."""
        self._left += facts
        if self._left and self._task is None:
            self._task = spawn(self._tell_in_order(link))

    async def finish(self, link: Linked, facts: Iterable[LinkFact], within_s: float) -> None:
        """The last facts and what had not been told yet; the task that told has ended."""
        self._left += facts
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(within_s):
                while self._left:
                    await self._links.tell(link, self._left.pop(0))

    async def _tell_in_order(self, link: Linked) -> None:
        try:
            while self._left:
                fact = self._left.pop(0)
                with suppress(StoreUnavailable):  # the log of outages says that the store was away
                    await self._links.tell(link, fact)
        finally:
            self._task = None
