"""Values that facts and records share: references, errors, and the ids that an event belongs to."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

EdgeKind: TypeAlias = Literal[
    "parent",
    "child",
    "blocks",
    "blocked_by",
    "source_task",
    "source_attempt",
    "spawned_subagent",
    "assigned_thread",
    "produced_artifact",
    "consumed_artifact",
    "evidence",
]
"""The relation of a task to another object (GR-1…GR-10)."""
EdgeStatus: TypeAlias = Literal["open", "satisfied", "removed"]


@record
class TaskBounds:
    """References of a task to objects outside this runtime, which its creator can resolve (CMD-4, TR-10).

    They are stored and shown, and grant nothing.
    """

    workspace: str | None = None
    project: str | None = None
    thread: str | None = None
    account: str | None = None
    environment: str | None = None
    host: str | None = None
    """The boundary of a host, such as a machine or a container."""


class ErrorCategory(StrEnum):
    """The origin of an error (TR-19)."""

    PEER = "peer"
    TRANSPORT = "transport"
    PROTOCOL = "protocol"
    TIMEOUT = "timeout"
    POLICY = "policy"
    CALLER = "caller"
    STORE = "store"
    INTERNAL = "internal"


@record
class ErrorDetail:
    """A structured error (TR-19). ``native`` is the agent's own code, as text.

    ``http_status`` is set if the answer had only a status; ``details`` are the agent's typed details, cleaned.
    """

    code: str
    category: ErrorCategory
    message: str
    retryable: bool = False
    source: str | None = None
    native: str | None = None
    http_status: int | None = None
    details: tuple[JsonObject, ...] | None = None


@record
class Ref:
    """Names content that is not in the event (ENV-10).

    ``blob`` is a SHA-256 of the blob store; ``sequence`` names an entry of the same session instead.
    """

    blob: str | None = None
    sequence: int | None = None
    url: str | None = None
    size: int | None = None
    media_type: str | None = None
    preview: str | None = None


@record
class Scope:
    """The ids that an event belongs to (ENV-6, ENV-7, ENV-8)."""

    session_id: str
    thread_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    step_id: str | None = None
    tool_call_id: str | None = None
    action_id: str | None = None
    subagent_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


@record
class Worker:
    """The executor of a run (ATT-4, A2A-5). ``card_hash`` is the hash of the card when the run began."""

    kind: Literal["agent", "process", "hosted", "scheduler", "external"]
    peer: str
    endpoint: str | None = None
    card_hash: str | None = None
    process_id: str | None = None


@record
class Coverage:
    """How many conditions of a task are met (PO-7); ``unmet`` lists the others, ``review`` the reviewer's question."""

    met: int
    of: int
    state: Literal["pending", "met", "unmet"]
    unmet: tuple[str, ...] = ()
    review: str | None = None


@record
class RetryPolicy:
    """Copied into each attempt when it starts (ATT-10). Times in milliseconds."""

    attempts: int = 1
    backoff_ms: int = 1000
    backoff_max_ms: int = 30_000
    total_timeout_ms: int = 1_800_000
    idle_timeout_ms: int | None = None
    """How long a run may go without new output from its worker; None: only the total limit ends it."""
    backoff: Literal["exponential", "fixed"] | None = None
    """None: exponential. Unset members are not written into each attempt."""
    jitter_percent: int | None = None
    retry_on: tuple[str, ...] | None = None
    never_on: tuple[str, ...] | None = None
    idempotent: bool | None = None
    """Whether the agent may get the same work twice."""
    fallback: tuple[str, ...] | None = None
    """Agents that take over, in this order."""


@record
class NamedArtifact:
    """The current version of a named artifact in a context, and the task that produced it (LT-17)."""

    artifact_id: str
    task_id: str
    version: int


@record
class CompactedTurns:
    """A boundary in a thread: a summary replaces the turns up to the end of ``to_turn`` at ``covers`` (EVC-13)."""

    boundary_id: str
    to_turn: str
    covers: int
    summary: Ref
    summarized_by: str
