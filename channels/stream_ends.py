"""How the stream of a message opens, and where it ends before its task does.

The stream of a further message opens with the Task as it stands when the message has been taken (``StreamOpening``). A
stream ends where the stream of the agent ended (A2A 1.0 section 11.7), unless its caller wants to wait through an
approval: then only a question for itself ends it (``StreamEnd``). Both are read from what is stored, so every instance
comes to the same end.
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
    """Folds what is stored into ``task`` until it can be shown.

    The reader's position is opened before the message is handed over, so that no event after it is missed. The Task of
    that moment still waits for the message: shown first, its INPUT_REQUIRED ends the loop of every client that leaves
    there, and its question is read a second time. So it is held back until the message is in it and the task does not
    wait for it any more.

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
    """Folds the entries of a task in their order; ``is_over`` says when the stream has come to its end.

    Clients whose loop over a stream drives the conversation get control back at INPUT_REQUIRED, and could not answer
    otherwise. At AUTH_REQUIRED an agent may keep its stream open and go on when the credential has come another way
    (A2A 1.0 section 7.6.1). Whether it does is known only where its stream is read, so it is read from what is stored:
    the way in which a run is followed, which changes when the stream is left.

    ``awaits_approval``: the stream stays open while only an approval is waited for.
    """

    awaits_approval: bool = False
    is_over: bool = False
    _is_streamed: bool = False
    """Whether a stream of the agent is read, as far as the entries say."""
    _is_gated: bool = False
    """Whether nothing has been sent to the agent yet."""
    _waits: bool = False
    """Whether callers were shown AUTH_REQUIRED last."""

    def begin(self, record: TaskRecord) -> None:
        """Starts from a task that was there before its stream."""
        if record.run is not None:
            self._is_streamed = record.run.delivery_mechanism in _STREAMED
            self._is_gated = record.run.gated

    def note(self, entry: Entry) -> None:
        """Takes what an entry says about the agent's own stream."""
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
                # Whoever read the stream is gone, and the stream with it.
                self._set_streamed(False)
            case _:
                pass

    def show(self, frame: StreamFrame) -> StreamFrame:
        """The frame as the reader gets it; the last one may have to say how its task is followed on."""
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
