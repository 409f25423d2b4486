"""Has what there is to tell of a link written, one after another, while the link goes on and at its end (EXT-8)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.channels.services import Linked, LinkFacts
    from passerelle.channels.story import LinkFact


class Telling:
    """What is left to tell of one link. It knows nobody who knows it, so a link that has ended leaves no cycle.

    What has begun is not taken back when the link ends, and no task waits for it: hundreds of links begin at once.
    """

    __slots__ = ("_left", "_links", "_under_way")

    def __init__(self, links: LinkFacts) -> None:
        self._links = links
        self._left: list[LinkFact] = []
        self._under_way: asyncio.Future[None] | None = None

    def tell(self, link: Linked, facts: Iterable[LinkFact]) -> None:
        """Adds facts behind those that wait."""
        self._left += facts
        if self._under_way is None:
            self._go_on(link)

    async def finish(self, link: Linked, facts: Iterable[LinkFact], within_s: float) -> None:
        """The last facts; returns when all are told, or after ``within_s``: what waits is forgotten then."""
        self.tell(link, facts)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._under_way is not None:
                    await asyncio.wait([self._under_way])
        self._left.clear()

    def _go_on(self, link: Linked) -> None:
        if self._left:
            self._under_way = self._links.tell(link, self._left.pop(0))
            self._under_way.add_done_callback(partial(self._take_end, link))

    def _take_end(self, link: Linked, told: asyncio.Future[None]) -> None:
        self._under_way = None
        self._go_on(link)
        error = told.exception()
        if error is not None and not isinstance(
            error, StoreUnavailable
        ):  # that one is in the log of outages
            structlog.get_logger().error("channel.fault", channel=link.channel, exc_info=error)
