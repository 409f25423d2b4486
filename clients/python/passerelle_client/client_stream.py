"""One stream of a client: its position, the queue of items for the application, and its acknowledgements."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from passerelle.protocol.cursor import Cursor, parse_cursor

if TYPE_CHECKING:
    from passerelle.client.items import AnyItem
    from passerelle.client.track import Track, TrackedFrame

QUEUED_ITEMS: Final = 1_024
"""Highest number of queued items. Beyond it the client unsubscribes, and resumes later from its position."""


class ClientStream:
    """The link fills it, the application empties it."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.is_paused = False
        self.acknowledged: Cursor | None = None
        self.is_ack_pending = False
        self._items: deque[AnyItem] = deque()
        self._filled = asyncio.Event()
        self._end: Exception | None = None

    @property
    def is_full(self) -> bool:
        """Returns whether the queue is full."""
        return len(self._items) >= QUEUED_ITEMS

    @property
    def is_empty(self) -> bool:
        """Returns whether the application has taken every item."""
        return not self._items

    def take(self, frame: TrackedFrame) -> None:
        """Queues the item of a frame, if it has one."""
        item = self.track.take(frame)
        if item is not None:
            self._items.append(item)
            self._filled.set()

    def end(self, error: Exception) -> None:
        """Raises ``error`` in the application once the queue is empty."""
        self._end = error
        self._filled.set()

    async def next(self) -> AnyItem:
        """Returns the next item; raises the error that ended the stream."""
        while not self._items:
            if self._end is not None:
                raise self._end
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()

    def acknowledge(self, cursor: str) -> None:
        """Keeps the latest acknowledgement, to be sent with others."""
        self.acknowledged = parse_cursor(cursor)
        self.is_ack_pending = True

    def pass_over(self, cursor: Cursor) -> None:
        """Moves past events that the view filters out; acknowledges them if all earlier items are acknowledged."""
        held = self.track.held
        is_settled = not self._items and held is not None and self.acknowledged == held
        if self.track.move(cursor) and is_settled:
            self.acknowledged, self.is_ack_pending = cursor, True

    def repeat_ack(self, begun: Cursor) -> None:
        """After a new ``sub``: sends the last acknowledgement again, since it may have been lost with the old link."""
        held = self.acknowledged
        if held is not None and held.epoch == begun.epoch and held.sequence <= begun.sequence:
            self.is_ack_pending = True

    def take_ack(self) -> Cursor | None:
        """Returns the acknowledgement to send now, once. One of a history that the server lost is not sent."""
        if not self.is_ack_pending or not self.track.is_answered:
            return None
        self.is_ack_pending = False
        held, acked = self.track.held, self.acknowledged
        return acked if held and acked and _may_precede(acked, held) else None


def _may_precede(acked: Cursor, held: Cursor) -> bool:
    if acked.epoch != held.epoch or acked.sequence > held.sequence:
        return False
    return acked.sequence < held.sequence or acked == held
