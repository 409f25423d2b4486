"""Decides what follows for a task when its run failed, in the same append, whatever ended the run. Pure.

The peer reported it (``observation``), did not take the message, or is unreachable (``finish``): all of them call
``end_run``. It asks the retry policy (``core/task/retry.py``), and adds what follows: another attempt at the same
agent or at the next one (ATT-13, ATT-14, ATT-16), or the end of the task. ``explain`` states why a peer did not take a
message, once for the record and once for the caller; the peer's internals do not leak (A2A-12).

From that append on a further attempt is pending, as a due row ``retry:<task>`` (I9). Until it begins the task has no
driver, and any instance may begin it (``retries``). Callers who see the task see it working meanwhile. What the failed
attempt has shown them stays: A2A cannot take an artifact back. The next attempt replaces an artifact of the same id as
a whole.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, assert_never

from passerelle.a2a_mapping.identity import make_relabel
from passerelle.a2a_mapping.peer_errors import NativeError, make_refusal
from passerelle.a2a_mapping.states import FAILED, WORKING
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import DueChange
from passerelle.core.errors import InvalidAgentResponse, PasserelleError, PeerBusy, PeerUnavailable
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.payloads.limit import LimitSubject, RateLimitHit
from passerelle.core.payloads.routing import Excluded, FallbackApplied, RoutingNotPossible
from passerelle.core.payloads.task import TaskRetrying
from passerelle.core.peer import Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import EndInError, FailRun, PrepareRetry
from passerelle.core.task.retry import EarlierAttempts, GiveUp, RetryElsewhere, classify, decide
from passerelle.core.task.status import Status
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.task.record import Attempt, TaskRecord
    from passerelle.core.task.retry import RetryLater, RetryVerdict
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.draft import DecisionDraft, RunContext


_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


@frozen
class RunEnd:
    """How a run ended. ``status`` is the run's: failed or lost.

    ``native`` is the peer's own state, and ``frame`` its last frame as our callers read it, if it sent one;
    ``before`` is the Task without that frame. ``wait_ms`` is how long the peer asks not to be called.
    """

    failure: ErrorDetail
    status: Status = Status.FAILED
    native: str | None = None
    rejected: bool = False
    frame: JsonObject | None = None
    before: JsonObject | None = None
    wait_ms: int = 0
    is_answer: bool = False
    """Whether callers are shown the task in any case: the peer has answered, so it is no error of their call."""


def end_run(draft: DecisionDraft, ended: RunEnd) -> None:
    """Ends the run; without a further attempt its task fails as well."""
    if try_retry(draft, ended):
        return
    facts = draft.decide(EndInError(ended.failure, ended.rejected))
    if ended.frame is None:
        draft.end_with(facts, FAILED, ended.failure.message, is_answer=ended.is_answer)
        return
    draft.add_shown(facts, ended.frame)
    draft.end_turn("task")


def try_retry(draft: DecisionDraft, ended: RunEnd) -> bool:
    """Ends the run and schedules a further attempt, if there is one; returns whether there is."""
    run, verdict = draft.record.run, _judge(draft, ended)
    draft.add(draft.decide(FailRun(ended.status, ended.failure, ended.native)))
    if run is None or isinstance(verdict, GiveUp):
        _note_all_tried(draft, verdict)
        return False
    if ended.frame is not None:
        # Its last frame is not shown: the task goes on.
        draft.context.content = ended.before
    _schedule_retry(draft, run, verdict)
    return True


def _judge(draft: DecisionDraft, ended: RunEnd) -> RetryVerdict:
    record = draft.record
    # A cancel stays in force: no attempt follows (CMD-9).
    if record.status is Status.CANCELLING or record.run is None:
        return GiveUp("not_retryable")
    fault, tried = classify(ended.failure), list_tried(record)
    return decide(
        fault, tried, draft.decision.now_ms, draft.context.chance(), wait_ms=ended.wait_ms
    )


def list_tried(record: TaskRecord) -> EarlierAttempts:
    """The attempts since the last requested one, the policy of the last, and the fallbacks of the requested agent."""
    reruns = [place for place, one in enumerate(record.attempts) if one.asked_by is not None]
    since = record.attempts[reruns[-1] if reruns else 0 :]
    asked = next((one for one in since if one.worker.peer == record.kind), since[0])
    peers = [one.worker.peer for one in since]
    return EarlierAttempts(
        peers,
        since[-1].retry_policy,
        asked.retry_policy.fallback or (),
        is_routed=record.kind == ROUTER,
        is_begun=since[-1].remote_task_id is not None,
    )


def _note_all_tried(draft: DecisionDraft, verdict: RetryVerdict) -> None:
    """Records for a task that the gateway has routed that no agent is left, if more than one was tried (EXT-5)."""
    tried = list_tried(draft.record) if draft.record.attempts else None
    is_stopped = draft.record.status is Status.CANCELLING or verdict == GiveUp("in_doubt")
    if tried is None or not tried.is_routed or is_stopped:
        return
    peers = dict.fromkeys(tried.peers)
    if len(peers) > 1 and tried.next_peer is None:
        excluded = tuple(Excluded(peer, "already_tried") for peer in peers)
        draft.note(RoutingNotPossible("all_tried", excluded))


def _schedule_retry(
    draft: DecisionDraft, run: Attempt, verdict: RetryLater | RetryElsewhere
) -> None:
    record, now_ms = draft.record, draft.decision.now_ms
    ordinal = len(record.attempts) + 1
    if isinstance(verdict, RetryElsewhere):
        applied = FallbackApplied(run.worker.peer, verdict.peer, verdict.cause, ordinal)
        draft.add([Fact(replace(tasks.scope_of(record), run_id=run.run_id), applied)])
        retrying = TaskRetrying("fallback", ordinal, format_ms(now_ms), verdict.peer)
    else:
        retrying = TaskRetrying("retry", ordinal, format_ms(verdict.at_ms), run.worker.peer)
        now_ms = verdict.at_ms
    show_retrying(
        draft, draft.decide(PrepareRetry(retrying)), f"attempt {ordinal - 1} did not succeed"
    )
    draft.due.append(DueChange(name_row(record.task_id), now_ms))


def show_retrying(draft: DecisionDraft, facts: list[Fact], reason: str) -> None:
    """Adds the facts of a further attempt; callers who see the task see it working, with the reason of the wait."""
    if not draft.record.shown:
        draft.add(facts)
        return
    draft.show_status(facts, WORKING, [{"text": reason}])


def name_row(task_id: str) -> str:
    """The due row of a pending attempt."""
    return f"retry:{task_id}"


@frozen
class PeerRefusal:
    """The error as it is recorded, and as the caller gets it."""

    failure: ErrorDetail
    error: PasserelleError
    hit: RateLimitHit | None = None
    """The limit that was exceeded (EXT-7), if that is the reason."""


def explain(
    outcome: RefusedByPeer | Unreached | Malformed, context: RunContext, record: TaskRecord
) -> PeerRefusal:
    """The refusal for an outcome."""
    name = context.peer
    match outcome:
        case RefusedByPeer(http_status=status, retry_after_s=wait_s) if status in _BUSY:
            text = f"agent {name!r} takes no more work for now (HTTP {status})"
            kind = PeerBusy if status == HTTPStatus.TOO_MANY_REQUESTS else PeerUnavailable
            busy = kind(text, agent=name, retry_after_s=wait_s)
            refusal = _record(busy, ErrorCategory.PEER, name, str(status))
            if status != HTTPStatus.TOO_MANY_REQUESTS:
                return refusal
            return replace(refusal, hit=_hit(name, "peer", wait_s, str(status)))
        case RefusedByPeer():
            cleaned = context.redaction.clean_refusal(outcome)
            ids = make_relabel(record.task_id, context.context_id, list_ids(context, record))
            own = [str(message.get("messageId")) for message in context.accepted]
            bare = cleaned.http_status if cleaned.is_bare else None
            native = NativeError(cleaned.code, cleaned.message, cleaned.details, bare)
            refused = make_refusal(name, native, ids, own)
            refusal = _record(refused, ErrorCategory.PEER, name, str(cleaned.code))
            failure = replace(refusal.failure, http_status=bare, details=refused.given or None)
            return replace(refusal, failure=failure)
        case Unreached(reason=reason, retry_after_s=wait_s, why="limit"):
            text = f"agent {name!r} gets no further work for now: {reason}"
            held = PeerBusy(text, agent=name, retry_after_s=wait_s)
            refusal = _record(held, ErrorCategory.POLICY, name)
            return replace(refusal, hit=_hit(name, "gateway", wait_s))
        case Unreached(reason=reason, retry_after_s=wait_s):
            text = f"agent {name!r} cannot be reached: {reason}"
            away = PeerUnavailable(text, agent=name, retry_after_s=wait_s)
            return _record(away, ErrorCategory.TRANSPORT, name)
        case Malformed(reason=reason):
            text = f"agent {name!r} answered with something that is not A2A: {reason}"
            return _record(InvalidAgentResponse(text, agent=name), ErrorCategory.PROTOCOL, name)
        case _:
            assert_never(outcome)


def explain_break(outcome: Unknown | Malformed, peer: str) -> ErrorDetail:
    """Why there is no answer although the peer may have taken the message."""
    match outcome:
        case Unknown(reason=reason):
            text = f"the connection to agent {peer!r} broke: {reason}"
            return ErrorDetail("connection_broken", ErrorCategory.TRANSPORT, text, True, peer)
        case Malformed(reason=reason):
            text = f"agent {peer!r} answered with something that is not A2A: {reason}"
            return ErrorDetail(InvalidAgentResponse.code, ErrorCategory.PROTOCOL, text, False, peer)
        case _:
            assert_never(outcome)


def list_ids(context: RunContext, record: TaskRecord) -> dict[str, str]:
    """The ids of the task and its context at the peer in each run, with our ids."""
    known: dict[str, str] = {}
    for attempt in record.attempts:
        if attempt.remote_task_id:
            known[attempt.remote_task_id] = record.task_id
        if attempt.remote_context_id:
            known[attempt.remote_context_id] = context.context_id
    return known


def _hit(
    peer: str,
    source: Literal["peer", "gateway"],
    wait_s: int | None,
    native: str | None = None,
) -> RateLimitHit:
    wait_ms = None if wait_s is None else wait_s * 1000
    return RateLimitHit(LimitSubject("peer", peer), source, wait_ms, native)


def _record(
    error: PasserelleError, category: ErrorCategory, source: str, native: str | None = None
) -> PeerRefusal:
    failure = ErrorDetail(
        code=error.stable_code,
        category=category,
        message=str(error),
        retryable=error.retryable,
        source=source,
        native=native,
    )
    return PeerRefusal(failure, error)
