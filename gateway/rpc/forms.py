"""What the calls of ``gateway/rpc`` take and give on the wire; the documented schemas are made from these."""

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
"""Bytes of an output that one answer holds."""

LONGEST_WAIT_S: Final = 25
"""How long one reading of a question waits for its change: less than proxies wait for an answer."""

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
    """The thread of the message, in place of its context."""
    session_id: _Id | None = None
    create: Literal["when_missing", "never", "always"] = "when_missing"
    """When a thread is made: where the context is not known or not named, never, or for this message in any case."""
    options: JsonObject | None = None
    """What the agent is asked for beside the message: the ``configuration`` of A2A, such as ``acceptedOutputModes``."""
    metadata: JsonObject | None = None
    """Of the request, beside that of the message; the agent gets it as it is."""
    after: Annotated[list[_Id], Field(max_length=MOST_BEFORE)] | None = None
    """Tasks of its context that have to complete before the message is sent."""
    when_busy: QueuePolicy | None = None
    """What becomes of it while its context works; absent: what the thread is set to, else it begins beside it."""
    when_same: SamePolicy | None = None
    """``return``: the task of the context that was asked for the same with ``return``, where it has not ended."""
    traceparent: _Id | None = None
    """Where in which trace the caller is, for channels; over HTTP the header of that name wins."""


@record
class StartTaskParams:
    """The task to send, and at most one of ``message`` (A2A 1.0), ``parts`` and ``text`` in place of its objective."""

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
    """Content that a fact or a record of the task names by its SHA-256; at most ``limit`` bytes from ``offset`` on."""

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
    """One session, with so many events of its history: the newest ones, or those before a sequence, and behind one."""

    session_id: _Id
    limit: Annotated[int, Field(ge=1, le=HISTORY_LIMIT)] = 200
    before: Annotated[int, Field(ge=1)] | None = None
    after: Annotated[int, Field(ge=0)] = 0


@record
class ArchivedParams:
    """What a ref of the archive names, with so many of its facts behind the sequence ``after``."""

    ref: Annotated[str, Field(max_length=100)]
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=HISTORY_LIMIT)] = 200


@record
class ThreadParams:
    """One thread of the caller."""

    thread_id: _Id


@record
class CancelTaskParams:
    """The task to stop, why, and who stops with it: nobody, its agent, or its child tasks as well."""

    task_id: _Id
    reason: Annotated[str, Field(max_length=1_000)] | None = None
    propagation: Literal["none", "active_run", "subtree"] = "active_run"


@record
class ActionParams:
    """One approval. ``wait``: for so many seconds, while it is pending and at ``rev`` (0: as it is now)."""

    action_id: _Id
    wait: Annotated[int, Field(ge=0, le=LONGEST_WAIT_S)] = 0
    rev: Annotated[int, Field(ge=0)] = 0


@record
class ListActionsParams:
    """Which page, in which state; only those of a ``kind``, of a ``risk`` and above, of one task.

    ``owners`` ``all``: that the pending ones of everybody in the tenant wait, for whoever oversees approvals.
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
    """A decision of an approval; ``rev`` and ``digest`` say what was read.

    ``decisionId`` and the idempotency key stand for each other: one of them is enough.
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
    """Which page of the recorded events of one approval; without one, of the caller's devices, grants and policy."""

    action_id: _Id | None = None
    page_size: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] | None = None
    page_token: PageToken | None = None
    limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT, json_schema_extra=_DEPRECATED)] | None = None


@record
class JobResultsParams:
    """Which page of the items of a job, in order; only those in a ``state``."""

    job_id: _Id
    page_size: Annotated[int, Field(ge=1, le=RESULT_PAGE)] | None = None
    page_token: PageToken | None = None
    after: Annotated[int, Field(ge=0, json_schema_extra=_DEPRECATED)] | None = None
    limit: Annotated[int, Field(ge=1, le=RESULT_PAGE, json_schema_extra=_DEPRECATED)] | None = None
    state: JobItemState | None = None


@record
class SpawnSubagentParams:
    """A subagent to be spawned, with exactly one of ``message`` (A2A 1.0, with an id), ``parts`` and ``text``.

    It is a child of ``parentTaskId``, if that is given.
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
    """Which page of the events of a subagent, in order."""

    subagent_id: _Id
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] | None = None
    page_token: PageToken | None = None


@record
class ScheduleHistoryParams:
    """Which page of the steps of a schedule, in order."""

    schedule_id: _Id
    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] | None = None
    page_token: PageToken | None = None
    after: Annotated[int, Field(ge=0, json_schema_extra=_DEPRECATED)] | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT, json_schema_extra=_DEPRECATED)] | None = None


@record
class ListAgentsParams:
    """Which agents: those with a skill of that id or name, those with that tag."""

    skill: _Id | None = None
    tag: _Id | None = None


@record
class ListDeliveriesParams:
    """Which page of the failing webhooks."""

    page_size: Annotated[int, Field(ge=1, le=DELIVERIES_LIMIT)] | None = None
    page_token: PageToken | None = None
    limit: (
        Annotated[int, Field(ge=1, le=DELIVERIES_LIMIT, json_schema_extra=_DEPRECATED)] | None
    ) = None


@record
class DeliveryParams:
    """One failing webhook, as the list names it."""

    delivery: Annotated[str, Field(min_length=1, max_length=512)]


@record
class TurnAnswer:
    """An accepted turn; ``taskId`` is the id under which it is asked for."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str
    state: Literal["accepted", "queued"] = "accepted"
    repeated: bool = False
    position: int | None = None
    """Where it waits behind other turns of its context, from 1."""


@record
class CancelAnswer:
    """The wish to stop is stored, with the task as it stands now in A2A form; or why there is nothing to stop."""

    outcome: Literal["requested", "already_cancelled", "already_done", "not_found"]
    task: JsonObject | None = None


@record
class DecisionAnswer:
    """The answer decides (``won``), repeats one that did (``replayed``), or is one of several (``vote_recorded``)."""

    outcome: Literal["won", "replayed", "vote_recorded"]
    rev: int
    decision: ApprovalDecision | None = None
    votes: int | None = None
    """How many agree to the same so far, this answer among them, where more than one must."""
    need: int | None = None
