"""The params and results of ``gateway/rpc`` calls on the wire; the documented schemas are generated from these."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from passerelle.core.approval.requests import AUDIT_LIMIT, MuteMinutes
from passerelle.core.commands import SamePolicy, SignedBy
from passerelle.core.job.requests import RESULT_PAGE, JobItemState
from passerelle.core.payloads.approval import ActionKind, ApprovalDecision, ListedState, Risk
from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.task.requests import MOST_BEFORE, PAGE_LIMIT, Title
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record
from passerelle.gateway.rpc.paging import PageToken

PENDING_LIMIT: Final = 500
DELIVERIES_LIMIT: Final = 1_000
HISTORY_LIMIT: Final = 1_000
OUTPUT_LIMIT: Final = 1024 * 1024
"""Bytes of an output in one answer, at most."""

LONGEST_WAIT_S: Final = 25
"""How long one read of an approval waits for a change: less than proxies wait for a response."""

_Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
_DEPRECATED: Final[JsonObject] = {"deprecated": True}


@record
class SubmitTurnParams:
    """A message to an agent: exactly one of ``message`` (A2A 1.0), ``parts`` and ``text``."""

    agent: _Id
    message: JsonObject | None = None
    parts: list[JsonObject] | None = None
    text: str | None = None
    task_id: _Id | None = None
    context_id: _Id | None = None
    thread_id: _Id | None = None
    """The thread of the message, instead of its context."""
    session_id: _Id | None = None
    create: Literal["when_missing", "never", "always"] = "when_missing"
    """When to create a thread: if the context is unknown or not named, never, or always."""
    options: JsonObject | None = None
    """Options for the agent in addition to the message: A2A's ``configuration``, such as ``acceptedOutputModes``."""
    metadata: JsonObject | None = None
    """Metadata of the request, in addition to that of the message; passed to the agent unchanged."""
    after: Annotated[list[_Id], Field(max_length=MOST_BEFORE)] | None = None
    """Tasks of its context that have to complete before the message is sent."""
    when_busy: QueuePolicy | None = None
    """What to do while its context is busy; absent: the policy of the thread, else it starts in parallel."""
    when_same: SamePolicy | None = None
    """``return``: returns the open task of the context that was created by the same request with ``return``."""
    traceparent: _Id | None = None
    """The caller's trace context, for channels; over HTTP the header of that name takes precedence."""


@record
class StartTaskParams:
    """The task to send, and at most one of ``message`` (A2A 1.0), ``parts`` and ``text`` to replace its objective."""

    task_id: _Id
    version: Annotated[int, Field(ge=1)] | None = None
    agent: _Id | None = None
    message: JsonObject | None = None
    parts: list[JsonObject] | None = None
    text: str | None = None
    traceparent: _Id | None = None


@record
class TaskParams:
    """One task of the caller."""

    task_id: _Id


@record
class OutputParams:
    """Content that a fact or record of the task names by its SHA-256; at most ``limit`` bytes from ``offset`` on."""

    task_id: _Id
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=OUTPUT_LIMIT)] = OUTPUT_LIMIT // 4


@record
class SessionParams:
    """One session of the caller."""

    session_id: _Id


@record
class SessionWindowParams:
    """One session with ``limit`` events of its history: the newest ones, or those before or after a sequence."""

    session_id: _Id
    limit: Annotated[int, Field(ge=1, le=HISTORY_LIMIT)] = 200
    before: Annotated[int, Field(ge=1)] | None = None
    after: Annotated[int, Field(ge=0)] = 0


@record
class ArchivedParams:
    """The session of an archive ref, with ``limit`` of its facts after the sequence ``after``."""

    ref: Annotated[str, Field(max_length=100)]
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=HISTORY_LIMIT)] = 200


@record
class ThreadParams:
    """One thread of the caller."""

    thread_id: _Id


@record
class CancelTaskParams:
    """The task to stop, the reason, and what stops with it: nothing, its agent, or its child tasks as well."""

    task_id: _Id
    reason: Annotated[str, Field(max_length=1_000)] | None = None
    propagation: Literal["none", "active_run", "subtree"] = "active_run"


@record
class ActionParams:
    """One approval. ``wait``: up to this many seconds while it is pending and at ``rev`` (0: the current one)."""

    action_id: _Id
    wait: Annotated[int, Field(ge=0, le=LONGEST_WAIT_S)] = 0
    rev: Annotated[int, Field(ge=0)] = 0


@record
class ListActionsParams:
    """The page, and the state; only those of a ``kind``, of at least a ``risk``, of one task.

    ``owners`` ``all``: the pending approvals of all owners in the tenant, for callers that oversee approvals.
    """

    page_size: Annotated[int, Field(ge=1, le=PENDING_LIMIT)] | None = None
    limit: Annotated[int, Field(ge=1, le=PENDING_LIMIT, json_schema_extra=_DEPRECATED)] | None = (
        None
    )
    kind: ActionKind | None = None
    risk: Risk | None = None
    task_id: _Id | None = None
    page_token: PageToken | None = None
    state: ListedState = "pending"
    owners: Literal["mine", "all"] = "mine"


@record
class DecisionParams:
    """A decision of an approval; ``rev`` and ``digest`` identify what was read.

    ``decisionId`` and the idempotency key replace each other: one of them is enough.
    """

    action_id: str
    rev: int
    digest: str
    decision_id: str | None = None
    option_id: str | None = None
    content: JsonObject | None = None
    comment: str | None = None
    signature: SignedBy | None = None
    mute_minutes: MuteMinutes | None = None


@record
class AuditParams:
    """The page of the recorded events of one approval; without one, of the caller's devices, grants and policy."""

    action_id: _Id | None = None
    page_size: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] | None = None
    page_token: PageToken | None = None
    limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT, json_schema_extra=_DEPRECATED)] | None = None


@record
class JobResultsParams:
    """The page of the items of a job, in order; only those in a ``state``."""

    job_id: _Id
    page_size: Annotated[int, Field(ge=1, le=RESULT_PAGE)] | None = None
    page_token: PageToken | None = None
    after: Annotated[int, Field(ge=0, json_schema_extra=_DEPRECATED)] | None = None
    limit: Annotated[int, Field(ge=1, le=RESULT_PAGE, json_schema_extra=_DEPRECATED)] | None = None
    state: JobItemState | None = None


@record
class SpawnSubagentParams:
    """A subagent to spawn, with exactly one of ``message`` (A2A 1.0, with an id), ``parts`` and ``text``.

    It is a child of ``parentTaskId``, if given.
    """

    agent: _Id
    message: JsonObject | None = None
    parts: list[JsonObject] | None = None
    text: str | None = None
    title: Title | None = None
    parent_task_id: _Id | None = None
    session_id: _Id | None = None
    traceparent: _Id | None = None


@record
class SubagentInputParams:
    """A further message to a subagent: exactly one of ``message`` (A2A 1.0), ``parts`` and ``text``."""

    subagent_id: _Id
    message: JsonObject | None = None
    parts: list[JsonObject] | None = None
    text: str | None = None
    traceparent: _Id | None = None


@record
class SubagentEventsParams:
    """The page of the events of a subagent, in order."""

    subagent_id: _Id
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] | None = None
    page_token: PageToken | None = None


@record
class ScheduleHistoryParams:
    """The page of the steps of a schedule, in order."""

    schedule_id: _Id
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] | None = None
    page_token: PageToken | None = None
    after: Annotated[int, Field(ge=0, json_schema_extra=_DEPRECATED)] | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT, json_schema_extra=_DEPRECATED)] | None = None


@record
class ListAgentsParams:
    """Filters: agents with a skill of that id or name, agents with that tag."""

    skill: _Id | None = None
    tag: _Id | None = None


@record
class ListDeliveriesParams:
    """The page of the failing webhooks."""

    page_size: Annotated[int, Field(ge=1, le=DELIVERIES_LIMIT)] | None = None
    page_token: PageToken | None = None
    limit: (
        Annotated[int, Field(ge=1, le=DELIVERIES_LIMIT, json_schema_extra=_DEPRECATED)] | None
    ) = None


@record
class DeliveryParams:
    """One failing webhook, by its id in the list."""

    delivery: Annotated[str, Field(min_length=1, max_length=512)]


@record
class TurnAnswer:
    """An accepted turn; ``taskId`` is the id of its task."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str
    state: Literal["accepted", "queued"] = "accepted"
    repeated: bool = False
    position: int | None = None
    """Its position in the queue of its context, from 1."""


@record
class CancelAnswer:
    """The cancellation is recorded, with the current task in A2A form; or why there is nothing to stop."""

    outcome: Literal["requested", "already_cancelled", "already_done", "not_found"]
    task: JsonObject | None = None


@record
class DecisionAnswer:
    """The answer decides (``won``), repeats the decision (``replayed``), or is one of several (``vote_recorded``)."""

    outcome: Literal["won", "replayed", "vote_recorded"]
    rev: int
    decision: ApprovalDecision | None = None
    votes: int | None = None
    """How many votes agree so far, including this one, if more than one is needed."""
    need: int | None = None
