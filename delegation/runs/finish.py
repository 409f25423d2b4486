"""How a run ends when the peer does not end it: lost, failed, timed out, or over its limits.

Each is a decision of the driver, stored under its fence. Callers who have seen the task get it as a status; a turn
whose task they never saw gets an error as its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.frames import (
    note_status,
)
from passerelle.a2a_mapping.states import CANCELED, FAILED, REJECTED
from passerelle.core.errors import ArtifactTooLarge, InvalidAgentResponse
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.payloads.run import request
from passerelle.core.payloads.task import TaskCancelled, TaskTimedOut
from passerelle.core.task.commands import (
    ConfirmCancel,
    EndInError,
    EndWait,
    FailRun,
    LoseTask,
    SendInput,
    TimeOutTask,
)
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.failure import RunEnd, end_run, try_retry
from passerelle.delegation.runs.limits import explain_limit, read_limit
from passerelle.runtime.records.refusals import make_error
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import DueChange, DueClaim
    from passerelle.core.errors import TooLarge
    from passerelle.core.events import Fact
    from passerelle.core.wire.json import Json
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.limits import TimeLimit
    from passerelle.delegation.runs.run import Run


async def judge_liveness(active: ActiveRun, reason: str) -> None:
    """The peer's state is unknown now, for this ``reason``; beyond the liveness limit the run is lost."""
    run = active.run.record.run
    if run is None:
        return
    silent_ms = active.deps.clock.now_ms() - max(parse_ms(run.last_seen_at), active.proof_ms)
    if silent_ms > active.timeouts.liveness_s * 1000:
        await lose(active, reason)


async def lose(active: ActiveRun, reason: str) -> None:
    """It is unknown whether the worker lives: marks the task lost, and fails it past a second limit (ST-16)."""
    record = active.run.record
    run = record.run
    if run is None or record.status in ENDED:
        return
    if record.status is not Status.LOST:
        active.deps.log.warning("run.lost", task=record.task_id, run=run.run_id, reason=reason)
        command = LoseTask(last_proof=run.last_seen_at, reason=reason)
        await active.append(lambda draft: draft.add(draft.decide(command)))
        return
    since_ms = active.deps.clock.now_ms() - parse_ms(record.status_at)
    if since_ms > active.timeouts.liveness_s * 1000:
        await fail(
            active, ErrorDetail("lost", ErrorCategory.TRANSPORT, reason, source=active.peer.name)
        )


async def confirm_cancel(
    active: ActiveRun, reason: str = "the agent does not have the task any more"
) -> None:
    """Confirms the cancel of a task that the peer does not have."""
    record = active.run.record
    actor = record.cancel_requested_by or active.peer.name
    failure = ErrorDetail("cancelled", ErrorCategory.CALLER, "stopped", source=active.peer.name)

    def end(draft: DecisionDraft) -> None:
        if draft.record.run is None:
            return  # it has ended in another way meanwhile
        draft.add(draft.decide(FailRun(Status.CANCELLED, failure)))
        draft.close_actions("task_cancelled")
        facts = draft.decide(ConfirmCancel(TaskCancelled(actor, record.cancel_source or "user")))
        draft.end_with(facts, CANCELED, reason)

    await active.append(end)


async def confirm_stop(run: Run, claim: DueClaim | None = None) -> None:
    """Confirms the cancel of a task without a run."""

    def end(draft: DecisionDraft) -> None:
        record = draft.record
        if record.status is not Status.CANCELLING or record.run is not None:
            return
        draft.close_actions("task_cancelled")
        actor = record.cancel_requested_by or record.owner
        cancelled = TaskCancelled(actor, record.cancel_source or "user")
        draft.end_with(
            draft.decide(ConfirmCancel(cancelled)), CANCELED, "cancelled before it went on"
        )

    await run.append(end, (lambda _draft: AppendOptions(claim=claim)) if claim else None)


async def fail_pending_attempt(
    run: Run,
    failure: ErrorDetail,
    claim: DueClaim | None = None,
    drops: tuple[DueChange, ...] = (),
    before: Callable[[DecisionDraft], None] = lambda _draft: None,
) -> None:
    """Fails a task whose pending attempt cannot begin, and neither can any other.

    ``drops`` are rows to drop with it; ``before`` adds facts that come first.
    """

    def end(draft: DecisionDraft) -> None:
        before(draft)
        draft.end_with(draft.decide(EndInError(failure)), FAILED, failure.message)

    await run.append(end, lambda _draft: AppendOptions(claim=claim, due=drops))


async def fail(active: ActiveRun, failure: ErrorDetail) -> None:
    """Ends run and task with an error.

    Callers are shown what policy does not pass on, as the task of an agent that has answered; another error only if
    they were shown the task before.
    """

    def end(draft: DecisionDraft) -> None:
        status = Status.LOST if failure.code == "lost" else Status.FAILED
        draft.close_actions("asker_lost")
        is_answer = failure.category is ErrorCategory.POLICY
        end_run(draft, RunEnd(failure, status, is_answer=is_answer))
        is_error = draft.record.status in ENDED and not is_answer
        active.failure = make_error(failure) if is_error else None

    await active.append(end)


async def end_unknown(active: ActiveRun, reason: str) -> None:
    """Ends a task of which it is unknown whether the peer has the message; a repeat under its key gets the Task.

    It fails with ``unknown_outcome``, which is no error of the call: the same call gets the same answer for ever.
    """
    failure = ErrorDetail(
        "unknown_outcome", ErrorCategory.TRANSPORT, reason, source=active.peer.name
    )

    def end(draft: DecisionDraft) -> None:
        draft.close_actions("asker_lost")
        note = note_status("unknown_outcome", peer=draft.context.peer)
        whole = not draft.record.shown
        frame = draft.make_status_frame(FAILED, [{"text": reason}], note, whole=whole)
        before = draft.context.content
        draft.context.content = fold(before, frame)
        end_run(draft, RunEnd(failure, Status.LOST, frame=frame, before=before))

    await active.append(end)


async def give_up(active: ActiveRun, error: TooLarge) -> None:
    """Fails the task of a peer that sends more than its limits or one decision allow, and cancels it at the peer."""
    remote = active.remote_task()
    if isinstance(error, ArtifactTooLarge):
        # A limit of the operator, and no protocol error of the agent: a retry would bring as much again.
        reason = f"agent {active.peer.name!r} sent too much output: {error}"
        failure = ErrorDetail(error.code, ErrorCategory.POLICY, reason, source=active.peer.name)
        active.deps.log.warning(
            "output.too_large",
            task=active.run.record.task_id,
            agent=active.peer.name,
            reason=str(error),
        )
    else:
        reason = f"agent {active.peer.name!r} sent too much at once: {error}"
        code = InvalidAgentResponse.code
        failure = ErrorDetail(code, ErrorCategory.PROTOCOL, reason, source=active.peer.name)
    await fail(active, failure)
    if remote is not None:
        await active.peer.cancel(remote)


async def time_out(run: Run, limit: TimeLimit, claim: DueClaim) -> None:
    """Ends a run whose limit is over, wherever it is driven and whatever it waits for.

    The task ends, unless the policy retries it: then the next run has limits of its own.
    """
    limit_ms = read_limit(run.record.attempts[-1].retry_policy, limit) or 0
    reason = explain_limit(run.record, limit)
    failure = ErrorDetail("timed_out", ErrorCategory.TIMEOUT, reason, source=run.context.peer)

    def end(draft: DecisionDraft) -> None:
        stopping = draft.record.status is Status.CANCELLING
        draft.close_actions("task_cancelled")
        if draft.record.run is not None and try_retry(draft, RunEnd(failure, Status.TIMED_OUT)):
            return
        # A cancel stays in force, but the stop is not known, so it cannot be confirmed either.
        ending = EndInError(failure) if stopping else TimeOutTask(TaskTimedOut(limit, limit_ms))
        draft.end_with(draft.decide(ending), FAILED, reason, is_answer=True)

    await run.append(end, lambda _draft: AppendOptions(claim=claim))


def allow_send(draft: DecisionDraft, changed: str | None = None) -> None:
    """Records the intent to send the run's message; ``changed`` is the digest of the content sent instead."""
    run = draft.record.run
    if run is None:
        return
    if draft.record.status in WAITING:
        draft.add(draft.decide(EndWait("it may be sent")))
    requested = request(draft.context.peer, run.delivery_mechanism, run.message_id, changed)
    draft.add(draft.decide(SendInput(requested)))


def refuse_send(draft: DecisionDraft, reason: str) -> None:
    """Ends run and task as rejected: nothing was sent, and nothing will be."""
    failure = ErrorDetail("not_permitted", ErrorCategory.POLICY, reason, source=draft.context.peer)
    draft.close_actions("asker_withdrew")
    draft.add(draft.decide(FailRun(Status.FAILED, failure)))
    facts = draft.decide(EndInError(failure, rejected=True))
    show_gateway_status(draft, facts, REJECTED, [{"text": reason}])


def show_gateway_status(
    draft: DecisionDraft, facts: list[Fact], state: str, parts: list[Json]
) -> None:
    """Shows a status in the gateway's words; the first one of a task shows the whole Task."""
    draft.show_status(facts, state, parts, whole=draft.context.content is None)
    draft.end_turn("task")
