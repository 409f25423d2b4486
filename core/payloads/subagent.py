"""The context opened at an agent for a task: the child, whose parent is the scope of the event (EVC-16, ID-10)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.record import record


@record
class SubagentSpawned:
    """A context was opened at an agent or worker (EVC-16).

    ``native_id`` is the remote context id or the ACP session id, once known; ``recoverable``: it can be found again
    after a restart (SNAP-12); ``shared`` names the history that was sent to it (PRS-6).
    """

    type: ClassVar = EventType.SUBAGENT_SPAWNED
    peer: str
    kind: Literal["a2a_context", "acp_session"]
    native_protocol: str
    recoverable: bool
    native_id: str | None = None
    shared: tuple[str, ...] = ()


@record
class SubagentStatus:
    """The status of the child; ``native_id`` is set if it became known later (EVC-16)."""

    type: ClassVar = EventType.SUBAGENT_STATUS
    status: Literal["idle", "running", "waiting", "unreachable"]
    native_status: str | None = None
    native_id: str | None = None
    text: str | None = None


@record
class SubagentInput:
    """A follow-up was sent into the child's context; the message is in ``refs.input`` (EVC-16)."""

    type: ClassVar = EventType.SUBAGENT_INPUT
    message_id: str
    preview: str


@record
class SubagentCompleted:
    """The child's work succeeded; its context stays open (EVC-16)."""

    type: ClassVar = EventType.SUBAGENT_COMPLETED
    native_status: str
    summary: str | None = None


@record
class SubagentFailed:
    """The child's work did not succeed (EVC-16)."""

    type: ClassVar = EventType.SUBAGENT_FAILED
    error: ErrorDetail
    native_status: str | None = None


@record
class SubagentClosed:
    """The context was released, and the agent's stream with it (EVC-16)."""

    type: ClassVar = EventType.SUBAGENT_CLOSED
    reason: Literal["command", "task_ended", "peer_removed", "revoked"]
    actor: str


SubagentPayload: TypeAlias = (
    SubagentSpawned
    | SubagentStatus
    | SubagentInput
    | SubagentCompleted
    | SubagentFailed
    | SubagentClosed
)
