"""The durable record of a task: the fold of its facts, and its snapshot (TR-1…TR-20, ATT-2…ATT-12, GR-10).

State and references, never content: messages, history and artifacts are named by sequence, size and hash, so a snapshot
does not grow with the output of a run.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeGuard

from passerelle.core.agent_name import ROUTER
from passerelle.core.facts import Coverage, EdgeStatus, ErrorDetail, Ref, RetryPolicy, Worker
from passerelle.core.payloads.task import QueueCause, TaskAttemptStarted
from passerelle.core.task.status import ENDED, Delivery, PhaseName, Status, Visibility
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import record
from passerelle.core.wire.trace import Trace, read_trace

SCHEMA = 1
WITHHELD = "withheld"
"""The reference from a fact to the withheld frame."""
CHUNKS = "chunks"
"""The counter of received chunks of incomplete artifacts."""
KEPT_ARTIFACTS = 16
"""Artifacts in a record, the first ones, to keep it small; further ones are counted."""


@record
class RunCost:
    """The cost of a run: millionths of ``currency`` (ISO 4217), and the tokens if its agent reported them."""

    amount_micros: int
    currency: str
    input_tokens: int | None = None
    output_tokens: int | None = None


@record
class Attempt:
    """One delegation to one worker; append only (ATT-1)."""

    run_id: str
    ordinal: int
    status: Status
    worker: Worker
    native_protocol: str
    delivery_mechanism: str
    retry_policy: RetryPolicy
    message_id: str
    started_at: str
    last_seen_at: str
    """The last sign of life of the worker, with or without new output."""
    pending_message_id: str | None = None
    """In-flight message id; the outcome is unknown until a reply arrives."""
    intended_at: str | None = None
    """When the last intent to send was stored, if after the start."""
    send_after: str | None = None
    """The agent refused the message; it is sent again at this time."""
    send_options: JsonObject | None = None
    """The other members of that message's request."""
    gated: bool = False
    """Whether policy must allow the message first: until then nothing was sent."""
    updated_input: str | None = None
    """SHA-256 of the message as a hook changed it."""
    ended_at: str | None = None
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    native_status: str | None = None
    status_message_id: str | None = None
    last_error: ErrorDetail | None = None
    completion_summary: str | None = None
    input_refs: tuple[Ref, ...] = ()
    output_refs: tuple[str, ...] = ()
    checkpoint_refs: tuple[Ref, ...] = ()
    steps: int = 0
    silent_since: str | None = None
    """The last new output of the worker, if only signs of life came since; None: the last frame was new output."""
    held_ms: int = 0
    """How long the task was paused or blocked during the run."""
    traceparent: str | None = None
    tracestate: str | None = None
    extensions: tuple[str, ...] = ()
    """URIs of the A2A extensions that the caller requested, for every call of the run."""
    reason: str | None = None
    """The reason for a further attempt; None for the first one."""
    asked_by: str | None = None
    """The actor that requested it; None if it was automatic, or the first one."""
    broken_at: str | None = None
    """When the stream of the run broke, if nothing new came since."""
    stalled_at: str | None = None
    """When callers were notified that there is no progress."""
    waits_on: str | None = None
    """The agent's native state since it refused an answer; its task still waits."""
    streaming: Literal[True] | None = None
    """Whether an incomplete artifact has chunks; None: none has (CF-9)."""
    cost: RunCost | None = None
    """Set once the run is over, if its agent has a price."""

    @property
    def news_at(self) -> str:
        """When the worker last sent new output."""
        return self.silent_since or self.last_seen_at

    @property
    def trace(self) -> Trace | None:
        """The run's span (ENV-8)."""
        return read_trace(self.traceparent, self.tracestate)


@record
class Edge:
    """A relation to another task, job, artifact, thread or context (GR-1…GR-10)."""

    edge_id: str
    kind: str
    target: str
    status: EdgeStatus
    created_at: str
    updated_at: str
    reason: str | None = None
    items: int | None = None
    """Number of items of the target job; None: the target is not a job."""

    @property
    def is_waited_for(self) -> bool:
        """Whether another task waits for the task with this edge."""
        return self.kind == "blocks" and self.status == "open"

    @property
    def holds(self) -> bool:
        """Whether the task with this edge waits for another one."""
        return self.kind == "blocked_by" and self.status == "open"


@record
class ArtifactRef:
    """An artifact by reference (TR-18, A2A-8). Its content is in the events up to ``last``, or in a blob."""

    artifact_id: str
    name_at_peer: str
    run_id: str
    version: int
    sha256: str
    size: int
    parts: int
    last: int
    name: str | None = None
    media_types: tuple[str, ...] = ()
    direction: Literal["produced", "consumed"] = "produced"
    stored: bool = True
    blob: str | None = None
    replaces: str | None = None


@record
class Progress:
    """The last merged progress (TR-14)."""

    phase: PhaseName | None = None
    percent: int | None = None
    step: str | None = None
    summary: str | None = None
    counters: dict[str, int] = field(default_factory=dict[str, int])
    checklist: tuple[JsonObject, ...] = ()
    outputs: tuple[str, ...] | None = None


@record
class TaskScope:
    """The visibility bounds of a task, and its external references (TR-10)."""

    tenant: str
    principal: str
    context_id: str
    workspace: str | None = None
    project: str | None = None
    thread: str | None = None
    account: str | None = None
    environment: str | None = None
    host: str | None = None


@record
class QueuedAttempt:
    """An attempt in an agent's queue. ``since``, RFC 3339, orders it among those of its caller."""

    queue: str
    cause: QueueCause
    since: str
    attempt: TaskAttemptStarted
    send_options: JsonObject | None = None
    position: int | None = None
    """Its position when it was queued, from 1."""
    promoted_ms: int | None = None
    until: str | None = None
    """When the quota resets, RFC 3339."""
    unpaid: Literal[True] | None = None
    """Not charged to a quota yet."""


@record
class TaskRecord:
    """One task. Sequences are those of the session's stream; times are RFC 3339 (TR-20)."""

    schema: int
    task_id: str
    session_id: str
    thread_id: str | None
    turn_id: str | None
    root_task_id: str
    title: str
    objective: str
    kind: str
    family: Literal["delegation", "job_item", "local_worker", "message"]
    visibility: Visibility
    status: Status
    priority: int
    requested_by: str
    owner: str
    scope: TaskScope
    created_at: str
    updated_at: str
    status_at: str
    first: int
    last: int
    parent_task_id: str | None = None
    assignee: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    constraints: JsonObject = field(default_factory=dict[str, Json])
    profile: JsonObject = field(default_factory=dict[str, Json])
    acceptance: tuple[JsonObject, ...] = ()
    progress: Progress = field(default_factory=Progress)
    current_run_id: str | None = None
    attempts: tuple[Attempt, ...] = ()
    relationships: tuple[Edge, ...] = ()
    artifacts: tuple[ArtifactRef, ...] = ()
    artifact_count: int = 0
    awaited: int | None = None
    """Counted artifacts that are not stored yet; None: all are (I5)."""
    evidence_refs: tuple[str, ...] = ()
    last_error: ErrorDetail | None = None
    status_reason: str | None = None
    rejected: bool = False
    coverage: Coverage | None = None
    withheld: str | None = None
    """The blob with the agent's final frame, withheld until everything else is stored (I5)."""
    delivery: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    cancel_requested_by: str | None = None
    cancel_source: Literal["user", "policy", "runtime", "peer"] | None = None
    """Who initiated the cancel."""
    open_actions: tuple[str, ...] = ()
    open_turns: tuple[str, ...] = ()
    """Turns whose callers wait for the task: a message may follow before it pauses or ends."""
    occurrences: dict[str, str] = field(default_factory=dict[str, str])
    """Question of an agent -> its action, so that one question is opened once."""
    exposure: int = 1
    shown: bool = False
    """Whether callers see a task: not before the agent's first Task frame, never for a bare Message."""
    generation: int = 0
    shown_from: int = 0
    shown_to: int = 0
    """First and last sequence that callers see of the current exposure."""
    exposed_from: int | None = None
    """The event with which a later exposure began."""
    asked_by: str | None = None
    """The actor that requested the pending attempt; None if it is automatic."""
    retry_at: str | None = None
    """When the pending attempt is due, RFC 3339; None if there is none."""
    inputs: tuple[int, ...] = ()
    """Sequences of the messages sent on this task, which complete its history."""
    metadata: JsonObject | None = None
    """Data of its owner; the gateway does not read it."""
    held_from: Status | None = None
    """The status before a pause or block, to which it returns."""
    stale_from: int | None = None
    """The first event of a schema that this version cannot read (ENV-5)."""
    queued: QueuedAttempt | None = None
    """Its entry in the outgoing queue of an agent; None: not queued."""
    rolled_back: str | None = None
    """The boundary of the rollback that removed it from its thread; None: not rolled back (EXT-11)."""

    @property
    def run(self) -> Attempt | None:
        """The live run."""
        if self.current_run_id is None or not self.attempts:
            return None
        return self.attempts[-1]

    @property
    def blocker(self) -> Edge | None:
        """The first edge to a task that must complete before an attempt of this one; None: no blocker."""
        return next((edge for edge in self.relationships if edge.holds), None)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that it has delegated."""
        found = [one for one in self.relationships if one.kind == "child" and one.items is not None]
        return tuple([one.target for one in found if one.status != "removed"])

    @property
    def assigned_thread(self) -> str | None:
        """The assigned thread; its own one unless assigned otherwise."""
        said = (
            edge.target
            for edge in reversed(self.relationships)
            if edge.kind == "assigned_thread" and edge.status == "open"
        )
        return next(said, self.thread_id)

    @property
    def agent(self) -> str:
        """The agent whose grants and rules apply: the requested one, or the one that the router chose."""
        return (self.peer or self.kind) if self.kind == ROUTER else self.kind

    @property
    def peer(self) -> str | None:
        """The agent of the last attempt; while a further attempt is pending, the agent of that one."""
        if self.queued is not None:
            return self.queued.attempt.worker.peer
        owed = self.assignee if self.status is Status.RETRYING else None
        return owed or (self.attempts[-1].worker.peer if self.attempts else self.assignee)


def waits_for_quota(record: object) -> TypeGuard[TaskRecord]:
    """Whether a task waits for a quota of its owner to reset, and is not held for another reason."""
    return (
        isinstance(record, TaskRecord)
        and record.status is Status.WAITING_RESOURCE
        and record.queued is not None
        and record.queued.cause == "quota"
    )


def waits_for_turn(record: object) -> TypeGuard[TaskRecord]:
    """Whether a task waits for other turns of its context."""
    return (
        isinstance(record, TaskRecord)
        and record.status not in ENDED
        and record.queued is not None
        and record.queued.cause == "turn"
    )
