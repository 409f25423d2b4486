"""The Task that opens the stream of a further message, as it stands when the message has been taken.

The reader's position is opened before the message is handed over, so that no event after it is missed. The Task of that
moment still waits for the message: shown first, its INPUT_REQUIRED ends the loop of every client that leaves there, and
its question is read a second time. So it is held back, and entries are folded into it, until the message is in it and
the task does not wait for it any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from passerelle.a2a_mapping.content import fold, settle_status
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.pauses import Pause, read_pause
from passerelle.channels.stream_frame import StreamFrame
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import Entry
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents

_TURNS = frozenset({EventType.TURN_SUBMITTED.value, EventType.TURN_COMPLETED.value})


@dataclass(slots=True)
class StreamOpening:
    """Folds what is stored into ``task`` until it can be shown.

    ``turns`` are those that the reader has sent; ``is_taken`` says that their message is in the task already.
    """

    contents: Contents
    shard: Shard
    task: JsonObject
    seen: int
    """Events of the task that callers have seen with it."""
    turns: Sequence[str]
    is_taken: bool = field(default=False, init=False)
    is_shown: bool = field(default=False, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether the Task has the message and does not wait for it."""
        return self.is_taken and read_pause({"task": self.task}) is Pause.NONE

    async def take(
        self, entry: Entry, frame: StreamFrame | None, cursor: str
    ) -> StreamFrame | None:
        """The first frame of the stream, where ``entry`` brings it; ``frame`` is what callers see of the entry."""
        is_over = entry.type in _TURNS and await self._note_turn(entry)
        if frame is not None:
            self.task = fold(self.task, orjson.loads(frame.data)) or self.task
            self.seen = frame.generation
            is_over = self.is_taken
        if not is_over and not self.is_ready:
            return None
        self.is_shown = True
        return StreamFrame(orjson.dumps({"task": self.task}), cursor, seen=self.seen)

    async def _note_turn(self, entry: Entry) -> bool:
        """Whether the reader's turn is over: what the task waits for, it goes on to wait for."""
        event = decode_event(entry.data)
        if event.fact.scope.turn_id not in self.turns:
            return False
        if entry.type == EventType.TURN_COMPLETED:
            return True
        message = await self.contents.read_message(event, self.shard)
        self.task = complete_history(settle_status(self.task), [message])
        self.is_taken = True
        return False
