"""Why a task went to its agent, why it waits, and the decisions of policy, limits and retries (VAL-8, VAL-9).

``REASONS`` has one row for each class of facts that explains something. Each reason cites its fact by sequence and
class; a topic without a fact is marked, never guessed. Text of an agent is no reason, except for a refusal or failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Final, Literal, TypeAlias

from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import PeerRefused
from passerelle.core.events import Event
from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads import task as task_facts
from passerelle.core.payloads.approval import ActionRequired, ActionResolved, PermissionEvaluated
from passerelle.core.payloads.conversation import TurnSubmitted
from passerelle.core.payloads.governance import HookCompleted, HookFailed
from passerelle.core.payloads.limit import (
    CostEstimated,
    CostRecorded,
    QuotaBlocked,
    QuotaLow,
    RateLimitHit,
)
from passerelle.core.payloads.routing import (
    CandidatesResolved,
    FallbackApplied,
    RoutingDecided,
    RoutingNotPossible,
    RoutingPayload,
    SingleCandidate,
    TaskProfileResolved,
)
from passerelle.core.payloads.run import RunStatus
from passerelle.core.read_models.blockers import AskedQuestions, BlockedTask, list_blocked
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unknown
from passerelle.core.read_models.task import doubt_status, name_task
from passerelle.core.routing.words import describe_routing
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record

Topic: TypeAlias = Literal["agent", "waiting", "messages", "policy", "limits", "retries", "end"]
ReasonParts: TypeAlias = tuple[Topic, str, str]
"""Topic, code for programs, sentence for people."""


_RAISED: Final = frozenset({"-32603"})
"""The code for an exception in the agent's program; an agent's own codes are deliberate."""
_SERVER_ERROR: Final = 500


def _quote(error: ErrorDetail) -> str:
    """The text of an agent's error, with its code."""
    code = f"HTTP {error.http_status}" if error.http_status else f"code {error.native}"
    return f"({code}): {error.message}"


def _explain_message(payload: RunStatus) -> ReasonParts | None:
    """The outcome of a message to a task that was refused or got stuck; other statuses are no reason."""
    if payload.refused is not None:
        text = (
            f"agent {payload.refused.source!r} refused a message {_quote(payload.refused)}; "
            "the task goes on without it, and what it waits for can be answered again"
        )
        return "messages", "refused", text
    if payload.stalled:
        return "messages", "stalled", f"{payload.text}; cancel it, or look at the agent"
    return None


def _explain_failure(error: ErrorDetail) -> str:
    """The explanation of an error: an exception in the agent gets an introduction, a failed task only its message."""
    if error.code != PeerRefused.code:
        return error.message
    if error.native in _RAISED or (error.http_status or 0) >= _SERVER_ERROR:
        return (
            f"agent {error.source!r} failed with an internal error {_quote(error)}; its own log has the cause, "
            "and the task can be tried again"
        )
    return f"agent {error.source!r} refused the message {_quote(error)}; send it in another form"


def _explain_created(payload: task_facts.TaskCreated) -> ReasonParts | None:
    """The agent that the caller named; for the router the profile explains the choice."""
    return (
        None if payload.kind == ROUTER else ("agent", "named", f"the caller named {payload.kind}")
    )


def _explain_routing(code: str) -> Callable[[RoutingPayload], ReasonParts]:
    return lambda payload: ("agent", code, describe_routing(payload))


def _explain_policy(payload: PermissionEvaluated) -> ReasonParts:
    by = f" by {', '.join(payload.rules)}" if payload.rules else ""
    return "policy", payload.decision, f"{payload.source}{by}: {payload.reason}"


def _explain_hook(payload: HookCompleted) -> ReasonParts:
    why = f": {payload.reason}" if payload.reason else ""
    return "policy", f"hook_{payload.verdict}", f"hook {payload.hook} at {payload.point}{why}"


def _explain_failed_hook(payload: HookFailed) -> ReasonParts:
    text = f"hook {payload.hook} at {payload.point} failed ({payload.error.code}), taken as {payload.applied}"
    return "policy", "hook_failed", text


def _explain_question(payload: ActionRequired) -> ReasonParts:
    asked = payload.request
    return "waiting", "action", f"{asked.kind} {asked.action_id}: {asked.title}"


def _explain_answer(payload: ActionResolved) -> ReasonParts:
    made = payload.decision
    return "policy", made.outcome, f"{made.decided_by}, as {made.cause}"


def _explain_retry(payload: task_facts.TaskRetrying) -> ReasonParts:
    at = f", at {payload.next_at}" if payload.next_at else ""
    return "retries", "retrying", f"attempt {payload.ordinal}: {payload.reason}{at}"


def _explain_rate(payload: RateLimitHit) -> ReasonParts:
    again = "" if payload.retry_after_ms is None else f", again in {payload.retry_after_ms} ms"
    return (
        "limits",
        "rate_limit",
        f"{payload.limited.kind} {payload.limited.name}, by the {payload.source}{again}",
    )


def _explain_quota(payload: QuotaLow | QuotaBlocked) -> ReasonParts:
    code = "quota_low" if isinstance(payload, QuotaLow) else "quota_blocked"
    whom = f"{payload.limited.kind} {payload.limited.name}"
    text = f"{whom}: {payload.used} of {payload.limit} {payload.unit} were used"
    if isinstance(payload, QuotaBlocked) and payload.resets_at is not None:
        text = f"{text}, until {payload.resets_at}"
    return "limits", code, text


def _explain_cost(payload: CostEstimated | CostRecorded) -> ReasonParts:
    code = "cost_estimated" if isinstance(payload, CostEstimated) else "cost_recorded"
    return (
        "limits",
        code,
        f"{payload.peer}: {payload.amount_micros} millionths of {payload.currency}",
    )


REASONS: Final[dict[type, Callable[[Any], ReasonParts | None]]] = {
    task_facts.TaskCreated: _explain_created,
    TaskProfileResolved: _explain_routing("profile"),
    CandidatesResolved: _explain_routing("candidates"),
    SingleCandidate: _explain_routing("single_candidate"),
    RoutingDecided: lambda payload: ("agent", payload.reason, describe_routing(payload)),
    FallbackApplied: _explain_routing("fallback"),
    RoutingNotPossible: lambda payload: ("agent", payload.reason, describe_routing(payload)),
    PermissionEvaluated: _explain_policy,
    HookCompleted: _explain_hook,
    HookFailed: _explain_failed_hook,
    ActionRequired: _explain_question,
    ActionResolved: _explain_answer,
    task_facts.TaskQueued: lambda payload: (
        # A wait for a quota is explained by ``task.waiting``, in the same words.
        None
        if payload.cause == "quota"
        else ("waiting", "queued", f"{payload.queue}: {payload.reason}")
    ),
    TurnSubmitted: lambda payload: ("messages", "kept", payload.kept) if payload.kept else None,
    task_facts.TaskWaiting: lambda payload: (
        "waiting",
        payload.waiting_for,
        payload.reason or f"waits for {payload.waiting_for}",
    ),
    task_facts.TaskBlocked: lambda payload: (
        "waiting",
        payload.blocker_kind,
        f"{payload.blocker}: {payload.reason}",
    ),
    task_facts.TaskPaused: lambda payload: (
        "waiting",
        "paused",
        f"by {payload.actor}: {payload.reason or 'without a reason'}",
    ),
    task_facts.TaskResumed: lambda payload: ("waiting", "resumed", payload.reason),
    task_facts.TaskAttemptStarted: lambda payload: (
        "retries",
        "attempt",
        f"attempt {payload.ordinal} at {payload.worker.peer}: {payload.reason}",
    ),
    task_facts.TaskAttemptFailed: lambda payload: (
        "retries",
        payload.error.code,
        f"the run ended as {payload.status}: {_explain_failure(payload.error)}",
    ),
    task_facts.TaskRetrying: _explain_retry,
    RateLimitHit: _explain_rate,
    QuotaLow: _explain_quota,
    QuotaBlocked: _explain_quota,
    CostEstimated: _explain_cost,
    CostRecorded: _explain_cost,
    task_facts.TaskFailed: lambda payload: (
        "end",
        payload.error.code,
        _explain_failure(payload.error),
    ),
    RunStatus: _explain_message,
    task_facts.TaskTimedOut: lambda payload: (
        "end",
        "timed_out",
        f"the {payload.limit} limit of {payload.limit_ms} ms",
    ),
    task_facts.TaskLost: lambda payload: ("end", "lost", payload.reason),
    task_facts.TaskCancelled: lambda payload: (
        "end",
        "cancelled",
        f"by {payload.actor} ({payload.source})",
    ),
    task_facts.TaskCompleted: lambda payload: (
        "end",
        "completed",
        f"the agent reported {payload.native_status}, and all results are stored",
    ),
}


_RETRIED: Final = 2


@record
class Cited:
    """The fact behind a reason."""

    sequence: int
    event_id: str
    type: str
    at: str


@record
class Reason:
    """``code`` is for programs, ``text`` for people."""

    topic: Topic
    code: str
    text: str
    fact: Cited
    run_id: str | None = None


@record
class Explanation:
    """All reasons by topic, oldest first. ``blocked`` is what the task waits for now."""

    task_id: str
    sequence: int
    status: Status
    agent: tuple[Reason, ...]
    waiting: tuple[Reason, ...]
    policy: tuple[Reason, ...]
    limits: tuple[Reason, ...]
    retries: tuple[Reason, ...]
    end: tuple[Reason, ...]
    messages: tuple[Reason, ...] = ()
    """Messages that were refused or got stuck."""
    blocked: BlockedTask | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def explain_task(
    task: TaskRecord,
    events: Iterable[Event],
    now_ms: int,
    questions: AskedQuestions | None = None,
) -> Explanation:
    """The reasons of a record; ``events`` are the readable ones of its task and turns.

    ``questions`` are the open approvals of the task that were read.
    """
    reasons = [reason for event in events if (reason := _explain(event)) is not None]

    def about(topic: Topic) -> tuple[Reason, ...]:
        return tuple(reason for reason in reasons if reason.topic == topic)

    found = Explanation(
        task_id=name_task(task),
        sequence=task.last,
        status=task.status,
        agent=about("agent"),
        waiting=about("waiting"),
        policy=about("policy"),
        limits=about("limits"),
        retries=about("retries"),
        end=about("end"),
        messages=about("messages"),
        blocked=next(iter(list_blocked([task], questions or {})), None),
    )
    found.marks.update(_mark(found, task))
    doubt = doubt_status(task, now_ms)
    if doubt is not None:
        found.marks["status"] = doubt
    return found


def _mark(found: Explanation, task: TaskRecord) -> dict[str, FreshnessMark]:
    marks: dict[str, FreshnessMark] = {}
    if not found.agent:
        marks["agent"] = unknown("no fact records how the agent was chosen")
    if not found.policy:
        marks["policy"] = unknown("no evaluation is recorded")
    if not found.limits:
        marks["limits"] = unknown("no fact records that a limit was reached")
    if not found.messages:
        marks["messages"] = not_applicable("no message was refused or kept")
    if found.blocked is None:
        marks["blocked"] = not_applicable("the task is not waiting")
    if len(task.attempts) < _RETRIED:
        marks["retries"] = not_applicable("no run was tried again")
    if not found.end:
        ended = task.status in ENDED
        marks["end"] = unknown("no end is recorded") if ended else not_applicable("not ended")
    return marks


def _explain(event: Event) -> Reason | None:
    payload = event.fact.payload
    explain = REASONS.get(type(payload))
    if explain is None:
        return None
    parts = explain(payload)
    if parts is None:
        return None
    topic, code, text = parts
    cited = Cited(event.sequence, event.event_id, event.type, event.timestamp)
    return Reason(topic, code, text, cited, event.fact.scope.run_id)
