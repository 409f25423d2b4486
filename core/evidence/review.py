"""Facts as sentences for people, each with the fact that it is made from (CMD-26).

A review has no status and no verdict of its own. It repeats what was recorded, in the recorded words, and lists what
the facts leave open. The reader judges whether that is good enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    ApprovalDecision,
    PermissionEvaluated,
)
from passerelle.core.payloads.conversation import TurnFailed, TurnSubmitted
from passerelle.core.payloads.device import reaches
from passerelle.core.payloads.run import ArtifactChanged, OutputExpired
from passerelle.core.payloads.task import (
    TaskAttemptStarted,
    TaskCancelled,
    TaskCompleted,
    TaskCreated,
    TaskFailed,
    TaskLost,
    TaskTimedOut,
)
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from passerelle.core.events import AnyPayload
    from passerelle.core.evidence.selection import StoredFact
    from passerelle.core.payloads.approval import ApprovalRequest

_ENDS: Final = (TaskCompleted, TaskFailed, TaskCancelled, TaskTimedOut, TaskLost)


@record
class Statement:
    """A sentence, and the facts or the evidence it is made from."""

    text: str
    events: tuple[str, ...] = ()
    evidence: str | None = None


@record
class OpenQuestion:
    """A point that the facts leave open, and the facts that raise it."""

    text: str
    events: tuple[str, ...]


def list_statements(facts: Iterable[StoredFact]) -> Iterator[Statement]:
    """A sentence for each fact of a decision, a message or an output, in order."""
    for fact in facts:
        sentence = _describe(fact.event.fact.payload)
        if sentence is not None:
            at = fact.event.timestamp
            yield Statement(f"{at}: {sentence}", (fact.entry.event_id,))


def _describe(payload: AnyPayload) -> str | None:
    match payload:
        case TaskCreated(kind=agent, requested_by=who):
            return f"{who} has made a task for {agent}"
        case TurnSubmitted(message_id=message, agent=agent, source=source):
            return f"message {message} came in for {agent} over {source}"
        case TaskAttemptStarted(ordinal=ordinal, worker=worker):
            return f"attempt {ordinal} begins at {worker.peer}"
        case PermissionEvaluated(decision=decision, source=source, subject=subject, reason=reason):
            return f"policy says {decision} to {subject} ({source}: {reason})"
        case ActionRequired(request=request):
            return (
                f"{_name(request)} is asked, with risk {request.risk} and digest {request.digest}"
            )
        case ActionResolved(decision=decision):
            return _describe_decision(decision)
        case ArtifactChanged(artifact_id=artifact, direction=direction, sha256=sha256):
            return f"artifact {artifact} is {direction}, with SHA-256 {sha256}"
        case TurnFailed(error=error) | TaskFailed(error=error):
            return f"recorded is {payload.type}: {error.code}"
        case TaskCompleted() | TaskCancelled() | TaskTimedOut() | TaskLost():
            return f"recorded is {payload.type}"
        case _:
            return None


def _name(request: ApprovalRequest) -> str:
    return f"question {request.action_id} ({request.title})"


def _describe_decision(decision: ApprovalDecision) -> str:
    by = f"{decision.decided_kind} {decision.decided_by}"
    chosen = f", by option {decision.option_id}" if decision.option_id else ""
    signed = f", signed by device {decision.device}" if decision.signature else ""
    return (
        f"{by} has decided: {decision.outcome}{chosen} (cause {decision.cause}{signed}), "
        f"with digest {decision.digest}"
    )


def list_open(facts: Sequence[StoredFact]) -> Iterator[OpenQuestion]:
    """What the facts leave open: approvals and tasks without an end, unsigned high-risk allows, lost content."""
    yield from _list_questions(facts)
    yield from _list_unfinished(facts)
    for fact in facts:
        payload = fact.event.fact.payload
        if isinstance(payload, OutputExpired):
            text = f"content with SHA-256 {payload.sha256} is not kept any more"
            yield OpenQuestion(text, (fact.entry.event_id,))


def _list_questions(facts: Iterable[StoredFact]) -> Iterator[OpenQuestion]:
    asked: dict[str | None, tuple[str, ApprovalRequest]] = {}
    for fact in facts:
        action, payload = fact.event.fact.scope.action_id, fact.event.fact.payload
        if isinstance(payload, ActionRequired):
            asked[action] = (fact.entry.event_id, payload.request)
        elif isinstance(payload, ActionResolved) and action in asked:
            event, request = asked.pop(action)
            if _lacks_signature(request, payload.decision):
                text = f"{_name(request)} was allowed by a person without the signature of a device"
                yield OpenQuestion(text, (event, fact.entry.event_id))
    for event, request in asked.values():
        yield OpenQuestion(f"{_name(request)} has no answer", (event,))


def _list_unfinished(facts: Iterable[StoredFact]) -> Iterator[OpenQuestion]:
    unfinished: dict[str | None, str] = {}
    for fact in facts:
        task, payload = fact.event.fact.scope.task_id, fact.event.fact.payload
        if isinstance(payload, TaskCreated):
            unfinished[task] = fact.entry.event_id
        elif isinstance(payload, _ENDS):
            unfinished.pop(task, None)
        if isinstance(payload, TaskLost):
            text = f"the outcome of task {task} is unknown: {payload.reason}"
            yield OpenQuestion(text, (fact.entry.event_id,))
    for task, event in unfinished.items():
        yield OpenQuestion(f"no fact says how task {task} ended", (event,))


def _lacks_signature(request: ApprovalRequest, decision: ApprovalDecision) -> bool:
    is_big = not reaches("medium", request.risk)
    by_person = decision.cause == "human" and decision.outcome == "allowed"
    return is_big and by_person and decision.signature is None
