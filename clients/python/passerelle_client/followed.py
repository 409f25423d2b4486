"""One stream inside a client: its track, the items that wait for the application, and its acknowledgements."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from passerelle.protocol.cursor import Cursor, parse_cursor

if TYPE_CHECKING:
    from passerelle.client.items import AnyItem
    from passerelle.client.track import Track, TrackedFrame

QUEUED_ITEMS: Final = 1_024
"""Items that may wait. Past it the stream is left and taken up again later: a position, not a queue."""


class ClientStream:
    """Filled by the link, emptied by the application."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.is_paused = False
        self.acknowledged: Cursor | None = None
        self.owes_ack = False
        self._items: deque[AnyItem] = deque()
        self._filled = asyncio.Event()
        self._end: Exception | None = None

    @property
    def is_full(self) -> bool:
        """Whether no further item may wait."""
        return len(self._items) >= QUEUED_ITEMS

    @property
    def is_empty(self) -> bool:
        """Whether the application has taken everything."""
        return not self._items

    def take(self, frame: TrackedFrame) -> None:
        """Keeps the item that a frame is, if it is one."""
        item = self.track.take(frame)
        if item is not None:
            self._items.append(item)
            self._filled.set()

    def end(self, error: Exception) -> None:
        """Raises ``error`` in the application once it has taken what waits."""
        self._end = error
        self._filled.set()

    async def next(self) -> AnyItem:
        """The next item; raises what the stream ended with."""
        while not self._items:
            if self._end is not None:
                raise self._end
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()

    def acknowledge(self, cursor: str) -> None:
        """Keeps the latest acknowledgement; it is sent with others."""
        self.acknowledged = parse_cursor(cursor)
        self.owes_ack = True

    def pass_over(self, cursor: Cursor) -> None:
        """Moves past events that the view hides; acknowledges that too where nothing else is owed."""
        held = self.track.held
        is_settled = not self._items and held is not None and self.acknowledged == held
        if self.track.move(cursor) and is_settled:
            self.acknowledged, self.owes_ack = cursor, True

    def repeat_ack(self, begun: Cursor) -> None:
        """After a new ``sub``: the last acknowledgement may have been lost with the old link."""
        held = self.acknowledged
        if held is not None and held.epoch == begun.epoch and held.sequence <= begun.sequence:
            self.owes_ack = True

    def take_ack(self) -> Cursor | None:
        """The acknowledgement to send now, once. One of a history that the server has lost meanwhile is not sent."""
        if not self.owes_ack or not self.track.is_answered:
            return None
        self.owes_ack = False
        held, said = self.track.held, self.acknowledged
        return said if held and said and _may_precede(said, held) else None


def _may_precede(said: Cursor, held: Cursor) -> bool:
    if said.epoch != held.epoch or said.sequence > held.sequence:
        return False
    return said.sequence < held.sequence or said == held
