"""Why a task went to its agent, why it waits, and what policy, limits and retries decided (VAL-8, VAL-9).

``REASONS`` has one row for each class of facts that says why something is as it is. Each reason cites the facts that it
is made of, by sequence and class; a topic without a fact is marked, and never filled in by guessing. Words of an agent
are no reasons, but for those with which it refuses or fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Final, Literal, TypeAlias

from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import PeerRefused
from passerelle.core.events import Event
from passerelle.core.facts import ErrorDetail
from passerelle.core.payloads import task as say
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
"""What it is about, a word for programs, a sentence for people."""


_RAISED: Final = frozenset({"-32603"})
"""What programs of agents that raise are said as; codes of an agent's own are no accident."""
_SERVER_ERROR: Final = 500


def _quote(error: ErrorDetail) -> str:
    """What an agent said, with the code that it said it under."""
    said = f"HTTP {error.http_status}" if error.http_status else f"code {error.native}"
    return f"({said}): {error.message}"


def _tell_message(said: RunStatus) -> ReasonParts | None:
    """What became of a message to a task, where it did not go as its sender wished; other words are no reason."""
    if said.refused is not None:
        text = (
            f"agent {said.refused.source!r} did not take a message {_quote(said.refused)}; "
            "the task goes on without it, and what it waits for can be answered again"
        )
        return "messages", "refused", text
    if said.stalled:
        return "messages", "stalled", f"{said.text}; cancel it, or look at the agent"
    return None


def _explain_failure(error: ErrorDetail) -> str:
    """An agent that raises has said so with an error; where it fails a task in good order, its words are enough."""
    if error.code != PeerRefused.code:
        return error.message
    if error.native in _RAISED or (error.http_status or 0) >= _SERVER_ERROR:
        return (
            f"agent {error.source!r} broke over its work {_quote(error)}; its own log says why, "
            "and the task can be tried again"
        )
    return (
        f"agent {error.source!r} did not take the message {_quote(error)}; send it in another form"
    )


def _tell_created(said: say.TaskCreated) -> ReasonParts | None:
    """Whom the caller asked; of the gateway's own agent the profile says what it asked for."""
    return None if said.kind == ROUTER else ("agent", "named", f"the caller named {said.kind}")


def _tell_routing(code: str) -> Callable[[RoutingPayload], ReasonParts]:
    return lambda said: ("agent", code, describe_routing(said))


def _tell_policy(said: PermissionEvaluated) -> ReasonParts:
    by = f" by {', '.join(said.rules)}" if said.rules else ""
    return "policy", said.decision, f"{said.source}{by}: {said.reason}"


def _tell_hook(said: HookCompleted) -> ReasonParts:
    why = f": {said.reason}" if said.reason else ""
    return "policy", f"hook_{said.verdict}", f"hook {said.hook} at {said.point}{why}"


def _tell_failed_hook(said: HookFailed) -> ReasonParts:
    text = f"hook {said.hook} at {said.point} failed ({said.error.code}), taken as {said.applied}"
    return "policy", "hook_failed", text


def _tell_question(said: ActionRequired) -> ReasonParts:
    asked = said.request
    return "waiting", "action", f"{asked.kind} {asked.action_id}: {asked.title}"


def _tell_answer(said: ActionResolved) -> ReasonParts:
    made = said.decision
    return "policy", made.outcome, f"{made.decided_by}, as {made.cause}"


def _tell_retry(said: say.TaskRetrying) -> ReasonParts:
    at = f", at {said.next_at}" if said.next_at else ""
    return "retries", "retrying", f"attempt {said.ordinal}: {said.reason}{at}"


def _tell_rate(said: RateLimitHit) -> ReasonParts:
    again = "" if said.retry_after_ms is None else f", again in {said.retry_after_ms} ms"
    return (
        "limits",
        "rate_limit",
        f"{said.limited.kind} {said.limited.name}, said {said.source}{again}",
    )


def _tell_quota(said: QuotaLow | QuotaBlocked) -> ReasonParts:
    code = "quota_low" if isinstance(said, QuotaLow) else "quota_blocked"
    whom = f"{said.limited.kind} {said.limited.name}"
    text = f"{whom}: {said.used} of {said.limit} {said.unit} were used"
    if isinstance(said, QuotaBlocked) and said.resets_at is not None:
        text = f"{text}, until {said.resets_at}"
    return "limits", code, text


def _tell_cost(said: CostEstimated | CostRecorded) -> ReasonParts:
    code = "cost_estimated" if isinstance(said, CostEstimated) else "cost_recorded"
    return "limits", code, f"{said.peer}: {said.amount_micros} millionths of {said.currency}"


REASONS: Final[dict[type, Callable[[Any], ReasonParts | None]]] = {
    say.TaskCreated: _tell_created,
    TaskProfileResolved: _tell_routing("profile"),
    CandidatesResolved: _tell_routing("candidates"),
    SingleCandidate: _tell_routing("single_candidate"),
    RoutingDecided: lambda said: ("agent", said.reason, describe_routing(said)),
    FallbackApplied: _tell_routing("fallback"),
    RoutingNotPossible: lambda said: ("agent", said.reason, describe_routing(said)),
    PermissionEvaluated: _tell_policy,
    HookCompleted: _tell_hook,
    HookFailed: _tell_failed_hook,
    ActionRequired: _tell_question,
    ActionResolved: _tell_answer,
    say.TaskQueued: lambda said: (
        # What waits for a quota says so with ``task.waiting``, in the same words.
        None if said.cause == "quota" else ("waiting", "queued", f"{said.queue}: {said.reason}")
    ),
    TurnSubmitted: lambda said: ("messages", "kept", said.kept) if said.kept else None,
    say.TaskWaiting: lambda said: (
        "waiting",
        said.waiting_for,
        said.reason or f"waits for {said.waiting_for}",
    ),
    say.TaskBlocked: lambda said: (
        "waiting",
        said.blocker_kind,
        f"{said.blocker}: {said.reason}",
    ),
    say.TaskPaused: lambda said: (
        "waiting",
        "paused",
        f"by {said.actor}: {said.reason or 'without a reason'}",
    ),
    say.TaskResumed: lambda said: ("waiting", "resumed", said.reason),
    say.TaskAttemptStarted: lambda said: (
        "retries",
        "attempt",
        f"attempt {said.ordinal} at {said.worker.peer}: {said.reason}",
    ),
    say.TaskAttemptFailed: lambda said: (
        "retries",
        said.error.code,
        f"the run ended as {said.status}: {_explain_failure(said.error)}",
    ),
    say.TaskRetrying: _tell_retry,
    RateLimitHit: _tell_rate,
    QuotaLow: _tell_quota,
    QuotaBlocked: _tell_quota,
    CostEstimated: _tell_cost,
    CostRecorded: _tell_cost,
    say.TaskFailed: lambda said: ("end", said.error.code, _explain_failure(said.error)),
    RunStatus: _tell_message,
    say.TaskTimedOut: lambda said: (
        "end",
        "timed_out",
        f"the {said.limit} limit of {said.limit_ms} ms",
    ),
    say.TaskLost: lambda said: ("end", "lost", said.reason),
    say.TaskCancelled: lambda said: ("end", "cancelled", f"by {said.actor} ({said.source})"),
    say.TaskCompleted: lambda said: (
        "end",
        "completed",
        f"the agent said {said.native_status}, and all is stored",
    ),
}


_RETRIED: Final = 2


@record
class Cited:
    """The fact that a reason is made of."""

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
    """All reasons by topic, the oldest first. ``blocked`` is what the task waits for at this moment."""

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
    """What became of messages that did not go as their senders wished."""
    blocked: BlockedTask | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def explain_task(
    task: TaskRecord,
    events: Iterable[Event],
    now_ms: int,
    questions: AskedQuestions | None = None,
) -> Explanation:
    """The reasons of a record; ``events`` are those of its task and turns that could be read.

    ``questions`` are the open ones of the task, as far as they are read.
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
        marks["agent"] = unknown("no fact says how the agent was chosen")
    if not found.policy:
        marks["policy"] = unknown("no evaluation is recorded")
    if not found.limits:
        marks["limits"] = unknown("no fact says that a limit was met")
    if not found.messages:
        marks["messages"] = not_applicable("no message was refused or kept")
    if found.blocked is None:
        marks["blocked"] = not_applicable("the task waits for nobody")
    if len(task.attempts) < _RETRIED:
        marks["retries"] = not_applicable("no run was tried again")
    if not found.end:
        ended = task.status in ENDED
        marks["end"] = unknown("no end is recorded") if ended else not_applicable("not ended")
    return marks


def _explain(event: Event) -> Reason | None:
    payload = event.fact.payload
    tell = REASONS.get(type(payload))
    if tell is None:
        return None
    told = tell(payload)
    if told is None:
        return None
    topic, code, text = told
    cited = Cited(event.sequence, event.event_id, event.type, event.timestamp)
    return Reason(topic, code, text, cited, event.fact.scope.run_id)
