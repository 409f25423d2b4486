"""How a message's stream opens, and where it ends before its task does.

The stream of a follow-up message opens with the Task in which the message was accepted (``StreamOpening``). A stream
ends where the agent's stream ended (A2A 1.0 section 11.7), unless its caller waits for approvals: then only a request
for input of the caller ends it (``StreamEnd``). Both are derived from stored events, so every instance ends at the same
event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.a2a_mapping.content import fold, settle_status
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.pauses import Pause, read_pause
from passerelle.channels.stream_frame import StreamFrame
from passerelle.core.event_type import EventType
from passerelle.core.events import decode_event
from passerelle.core.payloads.run import ModelRequested, RunStatus
from passerelle.core.payloads.task import TaskAttemptStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import Entry
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents

_TURNS = frozenset({EventType.TURN_SUBMITTED.value, EventType.TURN_COMPLETED.value})


@dataclass(slots=True)
class StreamOpening:
    """Folds stored events into ``task`` until the task can be shown.

    The reader's position is opened before the message is submitted, so that no later event is missed. At that moment
    the Task still waits for the message: if it were shown, its INPUT_REQUIRED would end the loop of every client that
    stops there, and its request would be read twice. So it is held back until it contains the message and no longer
    waits for it.

    ``turns`` are those that the reader has sent; ``is_taken``: their message is in the task already.
    """

    contents: Contents
    shard: Shard
    task: JsonObject
    seen: int
    """Number of events of the task that callers have seen with it."""
    turns: Sequence[str]
    is_taken: bool = field(default=False, init=False)
    is_shown: bool = field(default=False, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether the Task contains the message and does not wait for it."""
        return self.is_taken and read_pause({"task": self.task}) is Pause.NONE

    async def take(
        self, entry: Entry, frame: StreamFrame | None, cursor: str
    ) -> StreamFrame | None:
        """The first frame of the stream, if ``entry`` completes it; ``frame`` is what callers see of the entry."""
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
        """Whether the reader's turn is over: then the task waits for something else."""
        event = decode_event(entry.data)
        if event.fact.scope.turn_id not in self.turns:
            return False
        if entry.type == EventType.TURN_COMPLETED:
            return True
        message = await self.contents.read_message(event, self.shard)
        self.task = complete_history(settle_status(self.task), [message])
        self.is_taken = True
        return False


_STREAMED: Final = frozenset({"streaming", "subscription"})
_READ: Final = frozenset(
    {
        EventType.TASK_ATTEMPT_STARTED.value,
        EventType.MODEL_REQUESTED.value,
        EventType.RUN_STATUS.value,
    }
)
_PIECE: Final = b'{"artifactUpdate"'
_STATE: Final = b"_REQUIRED"


@dataclass(slots=True)
class StreamEnd:
    """Folds the entries of a task in order; ``is_over`` is set at the end of the stream.

    Clients whose stream loop drives the conversation get control back at INPUT_REQUIRED; otherwise they could not
    answer. At AUTH_REQUIRED an agent may keep its stream open and continue when the credential arrives by other means
    (A2A 1.0 section 7.6.1). Only the reader of the agent's stream knows whether it does, so it is derived from stored
    events: the way in which a run is followed, which changes when the agent's stream ends.

    ``awaits_approval``: the stream stays open while the task waits only for an approval.
    """

    awaits_approval: bool
    is_over: bool = False
    _is_streamed: bool = False
    """Whether a stream of the agent is read, according to the entries."""
    _is_gated: bool = False
    """Whether nothing has been sent to the agent yet."""
    _waits: bool = False
    """Whether AUTH_REQUIRED is the last state shown to callers."""

    def begin(self, record: TaskRecord) -> None:
        """Starts from a task that existed before its stream."""
        if record.run is not None:
            self._is_streamed = record.run.delivery_mechanism in _STREAMED
            self._is_gated = record.run.gated

    def note(self, entry: Entry) -> None:
        """Applies what an entry tells about the agent's own stream."""
        if entry.type not in _READ:
            return
        match decode_event(entry.data).fact.payload:
            case TaskAttemptStarted() as started:
                self._is_gated = started.gated
                self._is_streamed = started.delivery_mechanism in _STREAMED
            case ModelRequested(method=method):
                self._is_gated = False
                self._is_streamed = method == "SendStreamingMessage"
            case RunStatus(delivery_mechanism=str() as mechanism):
                self._set_streamed(mechanism in _STREAMED)
            case RunStatus(taken_over=True):
                # The reader of the stream crashed, and the stream ended with it.
                self._set_streamed(False)
            case _:
                pass

    def show(self, frame: StreamFrame) -> StreamFrame:
        """The frame for the reader; the last one may be marked with how to follow the task further."""
        if frame.data.startswith(_PIECE):
            return frame
        pause = read_pause(orjson.loads(frame.data)) if _STATE in frame.data else Pause.NONE
        self._waits = False
        match pause:
            case Pause.NONE:
                pass
            case Pause.INPUT:
                self.is_over = True
            case Pause.APPROVAL:
                self.is_over = not self.awaits_approval
            case Pause.AUTH if self._is_gated:
                self.is_over = not self.awaits_approval
                return replace(frame, is_marked=self.is_over)
            case Pause.AUTH:
                self._waits = True
                self._end_waiting()
            case _:
                assert_never(pause)
        return frame

    def _set_streamed(self, is_streamed: bool) -> None:  # noqa: FBT001  a fact, not a mode
        self._is_streamed = is_streamed
        self._end_waiting()

    def _end_waiting(self) -> None:
        if self._waits and not (self._is_streamed or self.awaits_approval):
            self.is_over = True
