"""The last events of one stream, shared by all its readers.

A ring begins at a cursor and continues its chain. It serves a position only if its chain at that sequence is the same,
so a reader of another history never gets events of this one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from passerelle.channels.cursor_check import LinkedEntry
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor

_OVERHEAD_BYTES: Final = 256
"""Approximate memory of an entry in addition to its envelope."""


@frozen
class RingBounds:
    """The oldest entries are dropped when either bound is exceeded."""

    events: int = 1_024
    size_bytes: int = 1_048_576


class Ring:
    """Entries after ``start``, without a gap, up to ``end``."""

    __slots__ = ("_bounds", "_bytes", "_entries", "end", "start")

    def __init__(self, start: Cursor, bounds: RingBounds) -> None:
        self.start = start
        self.end = start
        self._bounds = bounds
        self._entries: deque[LinkedEntry] = deque()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """Envelopes and their overhead; prebuilt frames are not counted."""
        return self._bytes

    @property
    def events(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def add(self, linked: LinkedEntry) -> None:
        """Adds the entry that follows ``end``.

        Raises:
            ValueError: it does not follow. A ring with a gap would skip events silently (I8).
        """
        entry = linked.entry
        if entry.sequence != self.end.sequence + 1 or entry.previous != self.end.chain:
            raise ValueError(f"entry {entry.sequence} does not follow {self.end}")
        self._entries.append(linked)
        self._bytes += len(entry.data) + _OVERHEAD_BYTES
        self.end = Cursor(self.end.epoch, entry.sequence, linked.chain)
        while len(self._entries) > self._bounds.events or self._bytes > self._bounds.size_bytes:
            self._drop_oldest()

    def chain_at(self, sequence: int) -> str | None:
        """The chain after ``sequence``, or None if the ring does not reach it."""
        if sequence == self.start.sequence:
            return self.start.chain
        if not self.start.sequence < sequence <= self.end.sequence:
            return None
        return self._entries[sequence - self.start.sequence - 1].chain

    def reaches(self, cursor: Cursor) -> bool:
        """Whether ``cursor`` is a position of this ring's history."""
        return cursor.epoch == self.end.epoch and self.chain_at(cursor.sequence) == cursor.chain

    def read_after(self, cursor: Cursor, limit: int) -> tuple[LinkedEntry, ...] | None:
        """At most ``limit`` entries after ``cursor``, or None if the ring does not reach it."""
        if not self.reaches(cursor):
            return None
        first = cursor.sequence - self.start.sequence
        last = min(len(self._entries), first + limit)
        return tuple([self._entries[place] for place in range(first, last)])

    def _drop_oldest(self) -> None:
        linked = self._entries.popleft()
        self._bytes -= len(linked.entry.data) + _OVERHEAD_BYTES
        self.start = Cursor(self.end.epoch, linked.entry.sequence, linked.chain)
