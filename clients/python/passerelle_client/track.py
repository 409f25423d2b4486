"""The position of one followed stream: converts frames to items and detects missing events (pure).

``held`` is the position from the server: the cursor of the last ``sub``, ``ev``, ``live``, ``snap`` or ``hb``. An event
at or below it is a duplicate and is dropped. An event whose ``p`` is above it proves that an event is missing: the
client then subscribes again with the cursor held and ignores the stream until the reply. A snapshot or a gap sets the
position anew, also backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.client import items
from passerelle.protocol.cursor import Cursor, parse_cursor
from passerelle.protocol.frames import (
    Event,
    Gap,
    Live,
    Snapshot,
    SnapshotPolicy,
    StartAt,
    Subscribe,
    Subscribed,
    Volatile,
)

if TYPE_CHECKING:
    from passerelle.client.items import Acknowledge

_BLOCKS: Final = 1_024
"""Number of blocks whose length is known; the text of an older block stops."""
TrackedFrame: TypeAlias = Subscribed | Event | Live | Gap | Snapshot | Volatile


class Track:
    """The position of one stream. ``resubscribe`` is set when a new subscription is needed."""

    def __init__(
        self,
        stream: str,
        acknowledge: Acknowledge,
        saved: str | None,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotPolicy | None = None,
        volatile: bool = False,
    ) -> None:
        self.stream = stream
        self.held: Cursor | None = parse_cursor(saved) if saved else None
        self.is_live = False
        self.resubscribe = False
        self.local_gaps = 0
        """Number of detected losses: each is a fault of the server, repaired by a new subscription."""
        self._acknowledge = acknowledge
        self._full = full
        self._start: StartAt | None = start
        self._snapshot: SnapshotPolicy | None = snapshot
        self._volatile = volatile
        self._blocks: dict[str, int] = {}
        """Characters of each block that the application has received."""
        self._as_of = -1
        self._is_pending = True

    @property
    def is_answered(self) -> bool:
        """Returns whether the server has confirmed the position of the subscription."""
        return not self._is_pending

    def ask(self) -> Subscribe:
        """Returns the subscription that continues from the position held."""
        self.resubscribe = False
        self.is_live = False
        self._is_pending = True
        start = None if self.held else self._start
        self._blocks.clear()
        return Subscribe(
            self.stream, self._full, self.held, start, self._snapshot, volatile=self._volatile
        )

    def pause(self) -> None:
        """Ignores frames until ``ask``: the application's queue is full."""
        self._is_pending = True
        self.is_live = False

    def move(self, cursor: Cursor) -> bool:
        """Moves past events that this view does not show. Returns whether the position moved forward."""
        held = self.held
        if self._is_pending or held is None or held.epoch != cursor.epoch:
            return False
        if cursor.sequence <= held.sequence:
            return False
        self.held = cursor
        return True

    def take(self, frame: TrackedFrame) -> items.AnyItem | None:
        """Returns the item of a frame, or None if the application need not see it."""
        match frame:
            case Subscribed():
                self._begin(frame)
                return None
            case Event():
                return None if self._is_pending else self._take_event(frame)
            case Live(_, cursor, replayed):
                if self._is_pending:
                    return None
                self.held = cursor
                self.is_live = True
                self._as_of = -1
                self._blocks.clear()
                return items.Live(self.stream, str(cursor), self._acknowledge, replayed)
            case Gap():
                return self._take_gap(frame)
            case Snapshot(_, cursor, data):
                self.held, self._as_of = cursor, cursor.sequence
                self._is_pending = False
                return items.Snapshot(self.stream, str(cursor), self._acknowledge, data)
            case Volatile():
                return None if self._is_pending else self._take_text(frame)
            case _:
                assert_never(frame)

    def _begin(self, frame: Subscribed) -> None:
        if frame.mode == "gap":
            return  # a `gap` frame follows; if the link is cut before it, the invalid cursor must still be held
        self._is_pending = False
        held = self.held
        # during a link replacement both links deliver: the newer one may start behind the older one's position
        behind = (
            held is not None
            and held.epoch == frame.cursor.epoch
            and frame.cursor.sequence < held.sequence
        )
        if frame.mode == "resumed" and behind and self._as_of < 0:
            return
        self.held = frame.cursor

    def _take_event(self, frame: Event) -> items.Event | None:
        held = self.held
        if held is None:
            return None
        if frame.sequence <= held.sequence:
            return None
        if frame.previous > held.sequence:
            self.local_gaps += 1
            self.resubscribe = True
            self._is_pending = True
            return None
        self.held = Cursor(held.epoch, frame.sequence, frame.chain)
        if frame.sequence > self._as_of:
            self._as_of = -1
        return items.Event(
            self.stream,
            str(self.held),
            self._acknowledge,
            frame.sequence,
            frame.data,
            replayed=frame.sequence <= self._as_of,
        )

    def _take_text(self, frame: Volatile) -> items.Delta | None:
        if frame.at != self._blocks.get(frame.block, 0) and frame.at != 0:
            return None
        self._blocks[frame.block] = frame.at + len(frame.text)
        if len(self._blocks) > _BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return items.Delta(self.stream, frame.block, frame.text, anew=frame.at == 0)

    def _take_gap(self, frame: Gap) -> items.Gap:
        self.is_live = False
        self.held = None
        self._as_of = -1
        self._is_pending = True
        return items.Gap(
            self.stream,
            frame.why,
            str(frame.have) if frame.have else None,
            str(frame.top) if frame.top else None,
            frame.snapshot == "inline",
            frame.url,
        )
