"""Sessions, threads, turns and their queue (EVC-1, EVC-2, EVC-3, EVC-11)."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads.schedule import ScheduleChange
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class SessionCreated:
    """A caller's first message, or an explicit command, opened a session."""

    type: ClassVar = EventType.SESSION_CREATED
    owner: str
    tenant: str
    principal: str
    title: str | None = None
    labels: dict[str, str] | None = None


@record
class SessionUpdated:
    """Title or labels of a session changed, or the schedule that it is for took a step (AP-7)."""

    type: ClassVar = EventType.SESSION_UPDATED
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    schedule: ScheduleChange | None = None


@record
class ThreadParent:
    """The task that a thread was made for, with its thread and its turn at that time.

    ``peer`` is the agent that was spawned in it as a subagent, if one was.
    """

    task_id: str
    thread_id: str | None = None
    turn_id: str | None = None
    peer: str | None = None


@record
class ThreadStarted:
    """A context id was seen for the first time; thread and context are one-to-one (ID-3).

    ``status`` is ``running`` where the first message opens it, whose turn follows. ``parent`` is the task that it was
    made for, where a task was created as the child of another one (ID-10).
    """

    type: ClassVar = EventType.THREAD_STARTED
    context_id: str
    owner: str
    tenant: str
    principal: str
    status: Literal["idle", "running"] = "idle"
    parent: ThreadParent | None = None


@record
class ThreadUpdated:
    """A turn of a thread began or ended, or it learned the context id that a peer uses for it (EVC-2, A2A-4).

    ``status`` is what the thread does from here on.
    """

    type: ClassVar = EventType.THREAD_UPDATED
    status: Literal["idle", "running"] | None = None
    peer: str | None = None
    remote_context_id: str | None = None
    context_mode: Literal["mint", "omit"] | None = None


@record
class TurnSubmitted:
    """One accepted inbound message; ``message`` is its A2A form unless it stands behind ``refs.input``."""

    type: ClassVar = EventType.TURN_SUBMITTED
    message_id: str
    agent: str
    source: Literal["a2a", "channel", "http", "cli", "schedule", "job"]
    preview: str
    message: JsonObject | None = None
    streams: Literal[True] | None = None
    """Whether the caller of a further message reads a stream; a first message says so in its run."""
    options: JsonObject | None = None
    """What the request of a further message said beside it, unless that stands behind ``refs.options``."""
    extensions: tuple[str, ...] | None = None
    """Those that the caller of a further message asked for."""
    kept: str | None = None
    """Why the agent is not sent the message, in a sentence; None where it is."""
    sealed: str | None = None
    """Where the message stands until it is sent, if it answers a request for a credential; it is kept no longer."""


@record
class TurnStarted:
    """A turn left the queue."""

    type: ClassVar = EventType.TURN_STARTED


@record
class TurnCompleted:
    """The answer of a turn is readable: a Message, or a Task that ended or waits."""

    type: ClassVar = EventType.TURN_COMPLETED
    answer: Literal["message", "task"]
    status: str | None = None


@record
class TurnFailed:
    """A turn ended without an answer."""

    type: ClassVar = EventType.TURN_FAILED
    error: ErrorDetail
    refused: Literal[True] | None = None
    """The agent did not take the message; its task may go on without it."""


QueuePolicy: TypeAlias = Literal["parallel", "queue", "reject", "interrupt"]
"""What becomes of a message to a context that works: it begins beside it, waits, is refused, or stops what goes on."""


@record
class QueueChanged:
    """Queued turns changed order, state or policy; ``order`` is the whole queue afterwards."""

    type: ClassVar = EventType.QUEUE_CHANGED
    change: Literal["enqueued", "dequeued", "promoted", "removed", "policy"]
    order: tuple[str, ...]
    policy: str | None = None


ConversationPayload: TypeAlias = (
    SessionCreated
    | SessionUpdated
    | ThreadStarted
    | ThreadUpdated
    | TurnSubmitted
    | TurnStarted
    | TurnCompleted
    | TurnFailed
    | QueueChanged
)
