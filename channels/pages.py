"""Pages of events after a cursor, cut from the ring once and shared by all readers at the same position.

Devices that reconnect to a stream together lost the connection together, so they miss the same events: hundreds of
readers share one page, with its encoded frames.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final

from passerelle.channels.views import shows
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor

if TYPE_CHECKING:
    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.channels.ring import Ring
    from passerelle.channels.views import View

_KEPT_S: Final = 1.0
"""Later readers are at another position, or alone."""
_KEPT: Final = 16


@frozen
class Packed:
    """Encoded events, and how many of them may share a window."""

    messages: list[bytes]
    events: int
    deferrable: int

    def count(self, counts: ChannelCounts, readers: int) -> None:
        """Counts the events as delivered to ``readers`` readers."""
        counts.count_deliveries(
            readers * (self.events - self.deferrable), readers * self.deferrable
        )


@frozen
class Page:
    """Events of a view in order; ``cursor`` is the position after them, ``last`` that of the last event.

    No event of the view lies strictly between ``previous`` and the first entry.
    """

    entries: tuple[LinkedEntry, ...]
    previous: int
    cursor: Cursor
    last: Cursor
    size_bytes: int = field(compare=False)
    packed: dict[str, Packed] = field(default_factory=dict[str, Packed], compare=False, repr=False)
    """Its frames, by the stream name in them."""


@frozen
class Stretch:
    """A part of a stream: its end, and the page that a view shows of it, if any."""

    end: Cursor
    page: Page | None


def cut(entries: tuple[LinkedEntry, ...], view: View, cursor: Cursor, previous: int) -> Stretch:
    """The stretch of ``entries``, which follow ``cursor``; ``previous`` is the view's last event before it."""
    if not entries:
        return Stretch(cursor, None)
    end = _locate(cursor, entries[-1])
    visible = tuple([linked for linked in entries if shows(view, linked.entry)])
    if not visible:
        return Stretch(end, None)
    size = sum([len(linked.entry.data) for linked in visible])
    last = end if visible[-1] is entries[-1] else _locate(cursor, visible[-1])
    return Stretch(end, Page(visible, previous, end, last, size))


def _locate(cursor: Cursor, linked: LinkedEntry) -> Cursor:
    return Cursor(cursor.epoch, linked.entry.sequence, linked.chain)


class Stretches:
    """The recently requested stretches of one stream, valid while its ring is unchanged."""

    __slots__ = ("_end", "_forgetting", "_made")

    def __init__(self) -> None:
        self._end: Cursor | None = None
        self._made: dict[tuple[Cursor, View, int], Stretch] = {}
        self._forgetting: asyncio.TimerHandle | None = None

    def look(
        self, ring: Ring, cursor: Cursor, view: View, previous: int, limit: int
    ) -> Stretch | None:
        """What follows ``cursor``, at most ``limit`` entries; None if the ring does not reach it."""
        if cursor == ring.end:
            return Stretch(cursor, None)
        if self._end is not ring.end:
            self._made.clear()
            self._end = ring.end
        key = (cursor, view, previous)
        found = self._made.get(key)
        if found is None:
            entries = ring.read_after(cursor, limit)
            if entries is None:
                return None
            found = cut(entries, view, cursor, previous)
            self._keep(key, found)
        return found

    def _keep(self, key: tuple[Cursor, View, int], found: Stretch) -> None:
        if len(self._made) < _KEPT:
            self._made[key] = found
        if self._forgetting is None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(_KEPT_S, self._forget)

    def _forget(self) -> None:
        self._forgetting = None
        self._made.clear()
