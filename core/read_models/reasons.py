"""The facts that explain something about a task, by topic, and the words for each (VAL-8, VAL-9).

``REASONS`` has one row for each class of facts. Text of an agent is no reason, except for a refusal or failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import PeerRefused
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
from passerelle.core.routing.words import describe_routing

Topic: TypeAlias = Literal["agent", "waiting", "messages", "policy", "limits", "retries", "end"]
ReasonWords: TypeAlias = tuple[str, str]
"""Code for programs, sentence for people."""
Explain: TypeAlias = Callable[[Any], ReasonWords | None]
"""Explains the payloads of one class of facts; None: this payload is no reason."""

_RAISED: Final = frozenset({"-32603"})
"""The code for an exception in the agent's program; an agent's own codes are deliberate."""
_SERVER_ERROR: Final = 500


def _quote(error: ErrorDetail) -> str:
    """The text of an agent's error, with its code."""
    code = f"HTTP {error.http_status}" if error.http_status else f"code {error.native}"
    return f"({code}): {error.message}"


def _explain_message(payload: RunStatus) -> ReasonWords | None:
    """The outcome of a message to a task that was refused or got stuck; other statuses are no reason."""
    if payload.refused is not None:
        text = (
            f"agent {payload.refused.source!r} refused a message {_quote(payload.refused)}; "
            "the task continues without it, and its open request can be answered again"
        )
        return "refused", text
    if payload.stalled:
        return "stalled", f"{payload.text}; cancel it, or look at the agent"
    return None


def _explain_error(error: ErrorDetail) -> str:
    """The explanation of an error: an exception in the agent gets an introduction, a failed task only its message."""
    if error.code != PeerRefused.code:
        return error.message
    if error.native in _RAISED or (error.http_status or 0) >= _SERVER_ERROR:
        return (
            f"agent {error.source!r} failed with an internal error {_quote(error)}; its own log has the cause, "
            "and the task can be retried"
        )
    return f"agent {error.source!r} refused the message {_quote(error)}; send it in another form"


def _explain_created(payload: task_facts.TaskCreated) -> ReasonWords | None:
    """The agent that the caller named; for the router the profile explains the choice."""
    return None if payload.kind == ROUTER else ("named", f"the caller named {payload.kind}")


def _explain_routing(code: str) -> Callable[[RoutingPayload], ReasonWords]:
    return lambda payload: (code, describe_routing(payload))


def _explain_choice(payload: RoutingDecided | RoutingNotPossible) -> ReasonWords:
    return payload.reason, describe_routing(payload)


def _explain_queued(payload: task_facts.TaskQueued) -> ReasonWords | None:
    """The place in a queue. A wait for a quota is explained by ``task.waiting``, in the same words."""
    return None if payload.cause == "quota" else ("queued", f"{payload.queue}: {payload.reason}")


def _explain_waiting(payload: task_facts.TaskWaiting) -> ReasonWords:
    return payload.waiting_for, payload.reason or f"waits for {payload.waiting_for}"


def _explain_blocked(payload: task_facts.TaskBlocked) -> ReasonWords:
    return payload.blocker_kind, f"{payload.blocker}: {payload.reason}"


def _explain_paused(payload: task_facts.TaskPaused) -> ReasonWords:
    return "paused", f"by {payload.actor}: {payload.reason or 'without a reason'}"


def _explain_question(payload: ActionRequired) -> ReasonWords:
    asked = payload.request
    return "action", f"{asked.kind} {asked.action_id}: {asked.title}"


def _explain_policy(payload: PermissionEvaluated) -> ReasonWords:
    by = f" by {', '.join(payload.rules)}" if payload.rules else ""
    return payload.decision, f"{payload.source}{by}: {payload.reason}"


def _explain_hook(payload: HookCompleted) -> ReasonWords:
    why = f": {payload.reason}" if payload.reason else ""
    return f"hook_{payload.verdict}", f"hook {payload.hook} at {payload.point}{why}"


def _explain_failed_hook(payload: HookFailed) -> ReasonWords:
    text = f"hook {payload.hook} at {payload.point} failed ({payload.error.code}), taken as {payload.applied}"
    return "hook_failed", text


def _explain_answer(payload: ActionResolved) -> ReasonWords:
    made = payload.decision
    return made.outcome, f"{made.decided_by}, as {made.cause}"


def _explain_rate(payload: RateLimitHit) -> ReasonWords:
    again = "" if payload.retry_after_ms is None else f", again in {payload.retry_after_ms} ms"
    limited = payload.limited
    return "rate_limit", f"{limited.kind} {limited.name}, by the {payload.source}{again}"


def _explain_quota(payload: QuotaLow | QuotaBlocked) -> ReasonWords:
    code = "quota_low" if isinstance(payload, QuotaLow) else "quota_blocked"
    whom = f"{payload.limited.kind} {payload.limited.name}"
    text = f"{whom}: {payload.used} of {payload.limit} {payload.unit} were used"
    if isinstance(payload, QuotaBlocked) and payload.resets_at is not None:
        text = f"{text}, until {payload.resets_at}"
    return code, text


def _explain_cost(payload: CostEstimated | CostRecorded) -> ReasonWords:
    code = "cost_estimated" if isinstance(payload, CostEstimated) else "cost_recorded"
    return code, f"{payload.peer}: {payload.amount_micros} millionths of {payload.currency}"


def _explain_attempt(payload: task_facts.TaskAttemptStarted) -> ReasonWords:
    return "attempt", f"attempt {payload.ordinal} at {payload.worker.peer}: {payload.reason}"


def _explain_failed_attempt(payload: task_facts.TaskAttemptFailed) -> ReasonWords:
    text = f"the run ended as {payload.status}: {_explain_error(payload.error)}"
    return payload.error.code, text


def _explain_retry(payload: task_facts.TaskRetrying) -> ReasonWords:
    at = f", at {payload.next_at}" if payload.next_at else ""
    return "retrying", f"attempt {payload.ordinal}: {payload.reason}{at}"


def _explain_failure(payload: task_facts.TaskFailed) -> ReasonWords:
    return payload.error.code, _explain_error(payload.error)


def _explain_timeout(payload: task_facts.TaskTimedOut) -> ReasonWords:
    return "timed_out", f"the {payload.limit} limit of {payload.limit_ms} ms"


def _explain_cancel(payload: task_facts.TaskCancelled) -> ReasonWords:
    return "cancelled", f"by {payload.actor} ({payload.source})"


def _explain_completion(payload: task_facts.TaskCompleted) -> ReasonWords:
    return (
        "completed",
        f"the agent reported {payload.native_status}, and all results are stored",
    )


_BY_TOPIC: Final[dict[Topic, dict[type, Explain]]] = {
    "agent": {
        task_facts.TaskCreated: _explain_created,
        TaskProfileResolved: _explain_routing("profile"),
        CandidatesResolved: _explain_routing("candidates"),
        SingleCandidate: _explain_routing("single_candidate"),
        RoutingDecided: _explain_choice,
        FallbackApplied: _explain_routing("fallback"),
        RoutingNotPossible: _explain_choice,
    },
    "waiting": {
        ActionRequired: _explain_question,
        task_facts.TaskQueued: _explain_queued,
        task_facts.TaskWaiting: _explain_waiting,
        task_facts.TaskBlocked: _explain_blocked,
        task_facts.TaskPaused: _explain_paused,
        task_facts.TaskResumed: lambda payload: ("resumed", payload.reason),
    },
    "messages": {
        TurnSubmitted: lambda payload: ("kept", payload.kept) if payload.kept else None,
        RunStatus: _explain_message,
    },
    "policy": {
        PermissionEvaluated: _explain_policy,
        HookCompleted: _explain_hook,
        HookFailed: _explain_failed_hook,
        ActionResolved: _explain_answer,
    },
    "limits": {
        RateLimitHit: _explain_rate,
        QuotaLow: _explain_quota,
        QuotaBlocked: _explain_quota,
        CostEstimated: _explain_cost,
        CostRecorded: _explain_cost,
    },
    "retries": {
        task_facts.TaskAttemptStarted: _explain_attempt,
        task_facts.TaskAttemptFailed: _explain_failed_attempt,
        task_facts.TaskRetrying: _explain_retry,
    },
    "end": {
        task_facts.TaskFailed: _explain_failure,
        task_facts.TaskTimedOut: _explain_timeout,
        task_facts.TaskLost: lambda payload: ("lost", payload.reason),
        task_facts.TaskCancelled: _explain_cancel,
        task_facts.TaskCompleted: _explain_completion,
    },
}
REASONS: Final[dict[type, tuple[Topic, Explain]]] = {
    kind: (topic, explain)
    for topic, explainers in _BY_TOPIC.items()
    for kind, explain in explainers.items()
}
