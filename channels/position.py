"""A reader of a stream: a position, not a queue.

Each step looks into the ring; if the ring does not reach, it reads a page and verifies it. Detecting the end of the
ring and waiting for its next change is one synchronous step, so no change is missed in between.

A position yields every event: between two pages, and between a page and ``ReplayEnd``, no event of the view is left
out; if that cannot be guaranteed it yields ``CursorGap`` and ends (I8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, assert_never

from passerelle.channels.cursor_check import CursorBroken, CursorHeld, end_of
from passerelle.channels.pages import Page, Stretch, cut
from passerelle.channels.views import (
    JobRowView,
    MessageView,
    PacketView,
    TaskRowView,
    TaskView,
    View,
)
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor, GapReason

if TYPE_CHECKING:
    import asyncio

    from passerelle.channels.fanout import Fanout, GroupMember, Write
    from passerelle.channels.pages import Stretches
    from passerelle.channels.ring import Ring

_FILTERED: Final = (TaskView, PacketView, MessageView, TaskRowView, JobRowView)
"""Views that show few of the events of their stream."""
STEP_EVENTS: Final = 256
"""Entries processed in one step, so that a reader far behind does not block the loop."""


@frozen
class ReplayEnd:
    """The position has reached the ring's end; ``replayed`` events were yielded since it last left it."""

    cursor: Cursor
    replayed: int


@frozen
class CursorGap:
    """The cursor cannot be honoured; the position has ended. ``top`` is None if the stream is gone."""

    why: GapReason
    have: Cursor | None
    top: Cursor | None
    first: int | None


PositionItem: TypeAlias = Page | ReplayEnd | CursorGap


@frozen
class ReplayBounds:
    """Longer replays are answered with a gap (``limit``, or ``slow`` after having been live)."""

    events: int
    size_bytes: int


class PositionSource(Protocol):
    """The source of a position: one followed stream of the hub."""

    @property
    def ring(self) -> Ring | None:
        """The ring, or None while the stream has no head."""
        ...

    @property
    def stretches(self) -> Stretches:
        """Pages of the ring, shared by readers at the same position."""
        ...

    @property
    def fanout(self) -> Fanout:
        """The groups of live readers."""
        ...

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change of the ring."""
        ...

    async def read_on(self) -> None:
        """Brings the ring up to the head."""
        ...

    async def read_page(self, cursor: Cursor) -> CursorHeld | CursorBroken:
        """The verified page after a cursor; equal reads share one call."""
        ...


class Position:
    """Iterate to read. A step that raises StoreUnavailable can be retried: the position has not moved."""

    def __init__(
        self, source: PositionSource, view: View, cursor: Cursor | None, bounds: ReplayBounds | None
    ) -> None:
        self.view = view
        self.cursor = cursor
        """The position of this reader, hidden events included; None if there is no stream."""
        self.is_live = False
        self._source = source
        self._bounds = bounds
        self._previous = cursor.sequence if cursor else 0
        self._was_live = False
        self._measured = False
        self._replayed = 0
        self._replayed_bytes = 0
        self._ended = False

    @property
    def missed(self) -> int:
        """Number of sequences between this position and the known end."""
        ring = self._source.ring
        if ring is None or self.cursor is None:
            return 0
        return max(0, ring.end.sequence - self.cursor.sequence)

    def join(self, name: str, write: Write) -> GroupMember | None:
        """Membership in a group of live readers, after ``ReplayEnd``; None if there is more to read first."""
        if not self.is_live or self.cursor is None:
            return None
        return self._source.fanout.join(name, self.view, self.cursor, self._previous, write)

    def go_on(self, member: GroupMember) -> None:
        """Leaves the group; this position continues from there."""
        member.leave()
        self.cursor, self._previous = member.cursor, member.previous

    def __aiter__(self) -> Position:
        return self

    async def __anext__(self) -> PositionItem:
        while not self._ended:
            cursor = self.cursor
            if cursor is None:
                return self._end(GapReason.LOST, None, None, None)
            ring = self._source.ring
            found = self._look(ring, cursor) if ring else None
            if ring is None or found is None:
                item = await self._read(cursor)
            elif found.end.sequence > cursor.sequence:
                end, first = ring.end, ring.start.sequence + 1
                item = self._measure(cursor, end, first) or self._take(found, end, first)
            else:
                item = self._join(cursor)
                if item is None:
                    await self._source.changed.wait()
            if item is not None:
                return item
        raise StopAsyncIteration

    def _look(self, ring: Ring, cursor: Cursor) -> Stretch | None:
        source = self._source
        return source.stretches.look(ring, cursor, self.view, self._previous, STEP_EVENTS)

    async def _read(self, cursor: Cursor) -> PositionItem | None:
        self.is_live = False
        verdict = await self._source.read_page(cursor)
        match verdict:
            case CursorBroken(why, head):
                top = end_of(head) if head else None
                return self._end(why, cursor, top, head.first if head else None)
            case CursorHeld((), _):
                await self._source.read_on()
                return None
            case CursorHeld(entries, head):
                end, found = end_of(head), cut(entries, self.view, cursor, self._previous)
                return self._measure(cursor, end, head.first) or self._take(found, end, head.first)
            case _:
                assert_never(verdict)

    def _join(self, cursor: Cursor) -> ReplayEnd | None:
        if self.is_live:
            return None
        self.is_live = self._was_live = True
        replayed, self._replayed, self._replayed_bytes = self._replayed, 0, 0
        self._measured = False
        return ReplayEnd(cursor, replayed)

    def _measure(self, cursor: Cursor, top: Cursor, first: int) -> CursorGap | None:
        """Refuses a too long replay before it begins, if its length is known."""
        if self._bounds is None or self._measured or self.is_live:
            return None
        self._measured = True
        known = not isinstance(self.view, _FILTERED)
        if known and top.sequence - cursor.sequence > self._bounds.events:
            return self._end(self._limit_reason(), cursor, top, first)
        return None

    def _take(self, found: Stretch, top: Cursor, first: int) -> PositionItem | None:
        page = found.page
        if page is not None and self._exceeds(page):
            return self._end(self._limit_reason(), self.cursor, top, first)
        self.cursor = found.end
        if page is not None:
            self._previous = page.entries[-1].entry.sequence
        return page

    def _exceeds(self, page: Page) -> bool:
        if self.is_live:
            return False
        self._replayed += len(page.entries)
        self._replayed_bytes += page.size_bytes
        bounds = self._bounds
        return bounds is not None and (
            self._replayed > bounds.events or self._replayed_bytes > bounds.size_bytes
        )

    def _limit_reason(self) -> GapReason:
        return GapReason.SLOW if self._was_live else GapReason.LIMIT

    def _end(
        self, why: GapReason, have: Cursor | None, top: Cursor | None, first: int | None
    ) -> CursorGap:
        self._ended = True
        self.is_live = False
        return CursorGap(why, have, top, first)
