"""Follows one stream for this instance: its own position, hints applied by their chain, and a ring of events.

The position starts at the head and no reader's cursor moves it, so a slow reader delays no other.

A hint that begins at our position and contains its entries is added to the ring without a read. A hint that ends at or
below our position with the same chain there is outdated. Anything else (a gap, another chain, no entries) makes the
follower read on from its position. A read that does not verify means a lost history: the position is taken from the
head again, the ring is emptied, and every reader is verified by its own cursor at its next read. Skipping a hint for
its low sequence, without comparing chains, would hide re-used sequences.

Hints that arrive during a read wait in a bounded buffer; if it overflows, the follower reads once more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from passerelle.channels.cursor_check import (
    CursorBroken,
    CursorHeld,
    LinkedEntry,
    ReadAgain,
    end_of,
    link_entries,
    verify,
    verify_again,
)
from passerelle.channels.hints import Hint, parse_hint
from passerelle.channels.ring import Ring, RingBounds
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import DERIVED, LISTS
from passerelle.protocol.cursor import Cursor, GapReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from passerelle.channels.counts import ChannelCounts
    from passerelle.core.ports.log import Entry, Head, Hints, StreamRef

PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 262_144
"""Size limit of a page, or one event: a slow reader keeps its page, and there may be many of them."""
_BUFFERED_HINTS: Final = 256
ROW_EVERY_S: Final = 0.25
"""Minimum interval between two updates of a list row."""
_PROVES_LOSS: Final = frozenset({GapReason.AHEAD, GapReason.FORKED})


class StreamReads(Protocol):
    """The two reads of the event log that a follower needs; both raise StoreUnavailable."""

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head, or None if there is no such stream."""
        ...

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """Head, then page, in this order."""
        ...


@frozen
class FollowerDependencies:
    """The dependencies of a follower. ``spawn`` owns the tasks; ``on_lost`` is called for a proven loss."""

    log: StreamReads
    hints: Hints
    bounds: RingBounds
    spawn: Callable[[Coroutine[None, None, None]], object]
    on_lost: Callable[[StreamRef, GapReason], None]
    counts: ChannelCounts
    retry_s: float
    hint_s: float
    """How long after an event was stored its hint may arrive."""


async def read_verified(
    log: StreamReads, stream: StreamRef, cursor: Cursor
) -> CursorHeld | CursorBroken:
    """Reads the page after ``cursor`` and verifies both; raises StoreUnavailable."""
    head, page = await log.read_resume(stream, cursor.sequence, PAGE_EVENTS)
    verdict = verify(head, page, cursor)
    if isinstance(verdict, ReadAgain):
        verdict = verify_again(*await log.read_resume(stream, cursor.sequence, PAGE_EVENTS), cursor)
    return _bound(verdict) if isinstance(verdict, CursorHeld) else verdict


def _bound(held: CursorHeld) -> CursorHeld:
    """Limits a page to its size bound; the reader reads the rest later."""
    size = 0
    for number, linked in enumerate(held.entries):
        size += len(linked.entry.data)
        if size > PAGE_BYTES and number:
            return CursorHeld(held.entries[:number], held.head)
    return held


class Follower:
    """The state of one followed stream. All methods run in one event loop."""

    def __init__(self, stream: StreamRef, around: FollowerDependencies) -> None:
        self.stream = stream
        self.ring: Ring | None = None
        """None while the stream has no head."""
        self.repairs = 0
        """Number of reads that were needed because hints were insufficient."""
        self.on_change: Callable[[Sequence[LinkedEntry]], None] = lambda _fresh: None
        """Called with the entries added to the ring, or with none if the ring was replaced."""
        self._around = around
        self._changed = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._buffer: list[Hint] = []
        self._behind = False
        self._reading = True
        self._failed = False
        self._closed = False
        self._is_derived = stream.kind in DERIVED
        """Whether the stream shows entries in a derived form: hints contain the stored form, so they are read."""

    async def open(self) -> None:
        """Subscribes hints first, then reads the head: events stored in between are in the buffer."""
        await self._around.hints.subscribe(self.stream, self.take_hint)
        head = await self._around.log.read_head(self.stream)
        self._start_at(head)
        self._reading = False
        self._caught_up.set()
        if self._behind:
            self._start_reading()
        self._apply_buffer()

    async def close(self) -> None:
        """Ends the hints; a read in progress stops after its page."""
        self._closed = True
        await self._around.hints.unsubscribe(self.stream)

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change of the ring; a new event replaces it then."""
        return self._changed

    def take_hint(self, raw: bytes) -> None:
        """Applies one hint, or buffers it during a read."""
        hint = parse_hint(raw, self.stream.id)
        if hint is not None and not self._closed:
            self._apply_or_keep(hint)

    def _apply_or_keep(self, hint: Hint) -> None:
        if not self._reading:
            self._apply(hint)
        elif len(self._buffer) < _BUFFERED_HINTS:
            self._buffer.append(hint)
        else:
            self._behind = True

    async def read_on(self) -> None:
        """Reads from our position to the head; returns when that is done.

        Raises:
            StoreUnavailable: the read failed; it is retried in the background.
        """
        self._start_reading()
        await self._caught_up.wait()
        if self._failed:
            raise StoreUnavailable("the read failed", "no")

    async def audit(self) -> None:
        """Compares our position with the head: finds lost hints and lost histories. Raises StoreUnavailable."""
        before = self.ring.end if self.ring else None
        head = await self._around.log.read_head(self.stream)
        found = end_of(head) if head else None
        if self._closed or found == before:
            return
        if found is not None and (before is None or found.sequence > before.sequence):
            # Stored since the last hint was applied: the next one may be on its way. No other stream waits for it.
            self._around.spawn(self._await_hint(found))
            return
        self._read_lost()

    async def _await_hint(self, found: Cursor) -> None:
        await asyncio.sleep(self._around.hint_s)
        # Lists are read some time after their hint.
        if not (self._closed or self._reading or (self.ring and self.ring.reaches(found))):
            self._read_lost()

    def _read_lost(self) -> None:
        self._around.counts.audit_mismatches += 1
        self._start_reading()

    def _apply(self, hint: Hint) -> None:
        ring = self.ring
        if ring is None:
            self._start_reading()
        elif hint.last <= ring.end.sequence:
            if ring.chain_at(hint.last) != hint.chain:
                self._start_reading()
        elif hint.first == ring.end.sequence + 1 and hint.previous == ring.end.chain:
            if hint.entries and not self._is_derived:
                self._add(link_entries(hint.entries, ring.end))
            else:
                self._start_reading()
        else:
            self._start_reading()

    def _add(self, entries: tuple[LinkedEntry, ...]) -> None:
        if self.ring is None or not entries:
            return
        for linked in entries:
            self.ring.add(linked)
        self._notify(entries)

    def _notify(self, fresh: Sequence[LinkedEntry]) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change(fresh)

    def _start_at(self, head: Head | None) -> None:
        self.ring = Ring(end_of(head), self._around.bounds) if head else None
        self._notify(())

    def _start_reading(self) -> None:
        self._behind = True
        if self._reading or self._closed:
            return
        self._reading = True
        self._caught_up.clear()
        self._around.spawn(self._read_until_caught_up())

    async def _read_until_caught_up(self) -> None:
        try:
            while self._behind and not self._closed:
                if self.stream.kind in LISTS:
                    # Changes within this time are read together, so that no row is sent more often.
                    await asyncio.sleep(ROW_EVERY_S)
                await self._read_pages()
        finally:
            self._reading = False
            self._caught_up.set()
        self._apply_buffer()

    async def _read_pages(self) -> None:
        try:
            self._behind = False
            await self._read_to_head()
            self._failed = False
        except StoreUnavailable:
            self._behind = True
            self._failed = True
            self._caught_up.set()
            await asyncio.sleep(self._around.retry_s)
            self._caught_up.clear()

    async def _read_to_head(self) -> None:
        self.repairs += 1
        while not self._closed:
            ring = self.ring
            if ring is None:
                self._start_at(await self._around.log.read_head(self.stream))
                return
            verdict = await read_verified(self._around.log, self.stream, ring.end)
            match verdict:
                case CursorHeld(entries, head):
                    self._add(entries)
                    if not entries or ring.end.sequence >= head.sequence:
                        return
                case CursorBroken(why, head):
                    self._start_at(head)
                    if why in _PROVES_LOSS:
                        self._around.on_lost(self.stream, why)
                    return
                case _:
                    assert_never(verdict)

    def _apply_buffer(self) -> None:
        buffered, self._buffer = self._buffer, []
        for hint in buffered:
            self._apply_or_keep(hint)
