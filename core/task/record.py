"""The durable record of a task: the fold of its facts, and what its snapshot holds (TR-1…TR-20, ATT-2…ATT-12, GR-10).

State and references, never content: messages, history and artifacts are named by sequence, size and hash,
so a snapshot does not grow with what a run brings.
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
"""The reference of a fact that names the frame which is kept back."""
CHUNKS = "chunks"
"""The counter of the parts of artifacts that were not whole when they came."""
KEPT_ARTIFACTS = 16
"""Artifacts that a record names, the first ones, so that it stays small; of the others it has the number."""


@record
class RunCost:
    """What a run cost: millionths of ``currency`` (ISO 4217), and the tokens that its agent has told, if it has."""

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
    """The last sign of life of the worker, with or without news."""
    pending_message_id: str | None = None
    """A message that was meant to be sent and that no answer has come for: its outcome is not known."""
    intended_at: str | None = None
    """When the message was last meant to be sent, if that was after the start."""
    send_after: str | None = None
    """The peer has not taken the message, and gets it again at this time."""
    send_options: JsonObject | None = None
    """What the request said beside that message."""
    gated: bool = False
    """Whether policy has to let the message through first: until then nothing was sent."""
    updated_input: str | None = None
    """SHA-256 of the message in place of the caller's, where a hook has changed it."""
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
    """The last news of the worker, where it has shown since that it lives; None: what was seen last was news."""
    held_ms: int = 0
    """For how long the task was paused or blocked meanwhile."""
    traceparent: str | None = None
    tracestate: str | None = None
    extensions: tuple[str, ...] = ()
    """URIs of A2A extensions that the caller asks for, on every call of the run."""
    reason: str | None = None
    """Why there is a further attempt; None for the first one."""
    asked_by: str | None = None
    """Who wanted it; None where it came by itself, or with the task."""
    broken_at: str | None = None
    """When the stream of the run ended under it, if nothing new has come since."""
    stalled_at: str | None = None
    """When callers were told that nothing has moved since."""
    waits_on: str | None = None
    """The native state that the peer says since it refused an answer, and in which its task waits all the same."""
    streaming: Literal[True] | None = None
    """Chunks of an artifact have come that is not whole yet; None: none have (CF-9)."""
    cost: RunCost | None = None
    """Once the run is over, where its agent has a price."""

    @property
    def news_at(self) -> str:
        """When the worker last said something new."""
        return self.silent_since or self.last_seen_at

    @property
    def trace(self) -> Trace | None:
        """Where in which trace the run is (ENV-8)."""
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
    """How many items the job has that it leads to; None: it leads to no job."""

    @property
    def is_waited_for(self) -> bool:
        """Whether another task waits for the one that has this edge."""
        return self.kind == "blocks" and self.status == "open"

    @property
    def holds(self) -> bool:
        """Whether the task that has this edge waits for another one."""
        return self.kind == "blocked_by" and self.status == "open"


@record
class ArtifactRef:
    """An artifact by reference (TR-18, A2A-8). Its content stands in the entries up to ``last``, or in a blob."""

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
    """The bounds within which a task may be seen, and what its maker has bound it to (TR-10)."""

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
    """An attempt that waits for its turn at an agent. ``since`` is RFC 3339: its place among those of its caller."""

    queue: str
    cause: QueueCause
    since: str
    attempt: TaskAttemptStarted
    send_options: JsonObject | None = None
    position: int | None = None
    """When it came in, from 1."""
    promoted_ms: int | None = None
    until: str | None = None
    """When the quota that it waits for resets, RFC 3339."""
    unpaid: Literal[True] | None = None
    """No quota was charged with it yet."""


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
    """How many of those that are only counted are not stored yet; None: all are (I5)."""
    evidence_refs: tuple[str, ...] = ()
    last_error: ErrorDetail | None = None
    status_reason: str | None = None
    rejected: bool = False
    coverage: Coverage | None = None
    withheld: str | None = None
    """The blob with the frame in which the peer ended the run, kept back until everything else is there (I5)."""
    delivery: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    cancel_requested_by: str | None = None
    cancel_source: Literal["user", "policy", "runtime", "peer"] | None = None
    """On whose behalf that was."""
    open_actions: tuple[str, ...] = ()
    open_turns: tuple[str, ...] = ()
    """Turns whose callers wait for what becomes of the task: one message may follow another before it rests."""
    occurrences: dict[str, str] = field(default_factory=dict[str, str])
    """Question of a peer -> the action opened for it, so that one question is opened once."""
    exposure: int = 1
    shown: bool = False
    """Whether callers see a task: not before the peer's first Task frame, never for a bare Message."""
    generation: int = 0
    shown_from: int = 0
    shown_to: int = 0
    """First and last sequence of what callers see of the current exposure."""
    exposed_from: int | None = None
    """The event with which a later exposure began."""
    asked_by: str | None = None
    """Who wants the attempt that is owed; None where it comes by itself."""
    retry_at: str | None = None
    """When it is due, RFC 3339; None where none is owed."""
    inputs: tuple[int, ...] = ()
    """Sequences of the messages that were sent on this task: what its history is completed from."""
    metadata: JsonObject | None = None
    """What its owner keeps with it; nobody here reads it."""
    held_from: Status | None = None
    """Where a task that is paused or blocked stood before: where it goes back to."""
    stale_from: int | None = None
    """The first event of a schema that this version cannot read (ENV-5)."""
    queued: QueuedAttempt | None = None
    """What waits in the outgoing queue of an agent; None: nothing does."""
    rolled_back: str | None = None
    """The boundary with which its thread went back behind it; None: it stands (EXT-11)."""

    @property
    def run(self) -> Attempt | None:
        """The live run."""
        if self.current_run_id is None or not self.attempts:
            return None
        return self.attempts[-1]

    @property
    def blocker(self) -> Edge | None:
        """The first edge to a task that has to complete before an attempt of this one begins; None: nothing has to."""
        return next((edge for edge in self.relationships if edge.holds), None)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that it has delegated."""
        found = [one for one in self.relationships if one.kind == "child" and one.items is not None]
        return tuple([one.target for one in found if one.status != "removed"])

    @property
    def assigned_thread(self) -> str | None:
        """The thread that was last said to run it; its own one, where nobody has said otherwise."""
        said = (
            edge.target
            for edge in reversed(self.relationships)
            if edge.kind == "assigned_thread" and edge.status == "open"
        )
        return next(said, self.thread_id)

    @property
    def agent(self) -> str:
        """Whose grants and rules hold for the task: the agent that was asked, or that the gateway has chosen."""
        return (self.peer or self.kind) if self.kind == ROUTER else self.kind

    @property
    def peer(self) -> str | None:
        """The agent that has the task, or last had it; while a further attempt is owed, the one that gets it."""
        if self.queued is not None:
            return self.queued.attempt.worker.peer
        owed = self.assignee if self.status is Status.RETRYING else None
        return owed or (self.attempts[-1].worker.peer if self.attempts else self.assignee)


def waits_for_quota(record: object) -> TypeGuard[TaskRecord]:
    """Whether a task waits for a quota of its owner to reset, and nobody holds it beside that."""
    return (
        isinstance(record, TaskRecord)
        and record.status is Status.WAITING_RESOURCE
        and record.queued is not None
        and record.queued.cause == "quota"
    )


def waits_for_turn(record: object) -> TypeGuard[TaskRecord]:
    """Whether a task waits behind other turns of its context."""
    return (
        isinstance(record, TaskRecord)
        and record.status not in ENDED
        and record.queued is not None
        and record.queued.cause == "turn"
    )
