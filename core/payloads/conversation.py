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
    """Title or labels of a session changed, or its schedule took a step (AP-7)."""

    type: ClassVar = EventType.SESSION_UPDATED
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    schedule: ScheduleChange | None = None


@record
class ThreadParent:
    """The task that a thread was made for, with its thread and its turn at that time.

    ``peer`` is the agent spawned in it as a subagent, if any.
    """

    task_id: str
    thread_id: str | None = None
    turn_id: str | None = None
    peer: str | None = None


@record
class ThreadStarted:
    """A new context id; thread and context are one-to-one (ID-3).

    ``status`` is ``running`` if the first message opens it; its turn follows. ``parent`` is the task that it was made
    for, if a task was created as the child of another (ID-10).
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
    """A turn of a thread began or ended, or the agent's context id became known (EVC-2, A2A-4).

    ``status`` is the status of the thread from now on.
    """

    type: ClassVar = EventType.THREAD_UPDATED
    status: Literal["idle", "running"] | None = None
    peer: str | None = None
    remote_context_id: str | None = None
    context_mode: Literal["mint", "omit"] | None = None


@record
class TurnSubmitted:
    """One accepted inbound message; ``message`` is its A2A form unless that is in ``refs.input``."""

    type: ClassVar = EventType.TURN_SUBMITTED
    message_id: str
    agent: str
    source: Literal["a2a", "channel", "http", "cli", "schedule", "job"]
    preview: str
    message: JsonObject | None = None
    streams: Literal[True] | None = None
    """Whether the caller of a further message reads a stream; for a first message the run has it."""
    options: JsonObject | None = None
    """The other members of a further message's request, unless they are in ``refs.options``."""
    extensions: tuple[str, ...] | None = None
    """The extensions that the caller of a further message asked for."""
    kept: str | None = None
    """Why the message is not sent to the agent, in a sentence; None if it is."""
    sealed: str | None = None
    """Where the message is stored until it is sent, if it answers a request for a credential; then it is deleted."""


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
    """The agent did not accept the message; its task may go on without it."""


QueuePolicy: TypeAlias = Literal["parallel", "queue", "reject", "interrupt"]
"""What to do with a message to a busy context: start it in parallel, queue it, reject it, or stop the current turns."""


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
