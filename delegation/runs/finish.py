"""How a run ends when the peer does not end it: lost, failed, out of time, or talking too much.

Each is a decision of the driver, stored under its fence. Callers of a task that they see learn it as a status; a turn
whose task they never saw has an error for an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.frames import (
    make_message,
    make_status,
    note_status,
    status_frame,
    task_frame,
)
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.states import CANCELED, FAILED
from passerelle.core.errors import ArtifactTooLarge, InvalidAgentResponse, PeerUnavailable
from passerelle.core.facts import ErrorCategory, Failure
from passerelle.core.payloads.task import TaskCancelled, TaskTimedOut
from passerelle.core.status import ENDED, Status
from passerelle.core.task_commands import ConfirmCancel, FailRun, FailTask, LoseTask, TimeOutTask
from passerelle.core.times import format_ms, parse_ms
from passerelle.delegation.runs.failure import RunEnd, end_run, try_on
from passerelle.delegation.runs.limits import explain_limit, read_limit
from passerelle.runtime.records.failures import make_error
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from passerelle.core.batch import Claim
    from passerelle.core.errors import TooLarge
    from passerelle.core.json import JsonObject
    from passerelle.delegation.runs.draft import Step
    from passerelle.delegation.runs.driver import ActiveRun
    from passerelle.delegation.runs.limits import Limit
    from passerelle.delegation.runs.run import Run


async def judge_liveness(driver: ActiveRun, reason: str) -> None:
    """Nothing is known of the peer now; past the liveness limit that makes the run lost."""
    run = driver.run.record.run
    if run is None:
        return
    silent_ms = driver.means.clock.now_ms() - max(parse_ms(run.last_seen_at), driver.proof_ms)
    if silent_ms > driver.patience.liveness_s * 1000:
        await lose(driver, f"the peer is out of reach: {reason}")


async def lose(driver: ActiveRun, reason: str) -> None:
    """Nobody can tell whether the worker lives; past the limit a second time, the task fails (ST-16)."""
    record = driver.run.record
    run = record.run
    if run is None or record.status in ENDED:
        return
    if record.status is not Status.LOST:
        driver.means.log.warning("run.lost", task=record.task_id, run=run.run_id, reason=reason)
        command = LoseTask(last_proof=run.last_seen_at, reason=reason)
        await driver.patiently(lambda step: step.add(step.tell(command)))
        return
    since_ms = driver.means.clock.now_ms() - parse_ms(record.status_at)
    if since_ms > driver.patience.liveness_s * 1000:
        await fail(
            driver, Failure("lost", ErrorCategory.TRANSPORT, reason, source=driver.peer.name)
        )


async def confirm_cancel(
    driver: ActiveRun, reason: str = "the agent does not have the task any more"
) -> None:
    """A task that was to stop and that the peer does not have has stopped."""
    record = driver.run.record
    actor = record.cancel_requested_by or driver.peer.name
    failure = Failure("cancelled", ErrorCategory.CALLER, "stopped", source=driver.peer.name)

    def end(step: Step) -> None:
        if step.record.run is None:
            return  # it has ended in another way meanwhile
        step.add(step.tell(FailRun(Status.CANCELLED, failure)))
        step.close_actions("task_cancelled")
        facts = step.tell(ConfirmCancel(TaskCancelled(actor, record.cancel_source or "user")))
        step.end_with(facts, CANCELED, reason)

    await driver.patiently(end)


async def confirm_stop(run: Run, claim: Claim | None = None) -> None:
    """A task that was to stop while nobody worked on it has stopped."""

    def end(step: Step) -> None:
        record = step.record
        if record.status is not Status.CANCELLING or record.run is not None:
            return
        step.close_actions("task_cancelled")
        actor = record.cancel_requested_by or record.owner
        cancelled = TaskCancelled(actor, record.cancel_source or "user")
        step.end_with(step.tell(ConfirmCancel(cancelled)), CANCELED, "stopped before it went on")

    await run.append(end, (lambda _step: Terms(claim=claim)) if claim else None)


async def fail_owed(run: Run, failure: Failure, claim: Claim) -> None:
    """The attempt that is owed cannot begin, and neither can any other."""

    def end(step: Step) -> None:
        step.end_with(step.tell(FailTask(failure)), FAILED, failure.message)

    await run.append(end, lambda _step: Terms(claim=claim))


async def fail(driver: ActiveRun, failure: Failure) -> None:
    """Ends run and task with an error, shown to callers if the task was."""

    def end(step: Step) -> None:
        status = Status.LOST if failure.code == "lost" else Status.FAILED
        step.close_actions("asker_lost")
        end_run(step, RunEnd(failure, status))
        driver.failure = make_error(failure) if step.record.status in ENDED else None

    await driver.patiently(end)


async def end_unknown(driver: ActiveRun, reason: str) -> None:
    """Nobody knows whether the peer has the message, and no more is tried: whoever asks under its key gets the Task.

    It fails with ``unknown_outcome``, which is no error of the call: the same call gets the same answer for ever.
    """
    failure = Failure("unknown_outcome", ErrorCategory.TRANSPORT, reason, source=driver.peer.name)

    def end(step: Step) -> None:
        step.close_actions("asker_lost")
        before, frame = step.sight.content, _make_unknown(step, reason)
        step.sight.content = fold(before, frame)
        end_run(step, RunEnd(failure, Status.LOST, frame=frame, before=before))

    await driver.patiently(end)


def _make_unknown(step: Step, reason: str) -> JsonObject:
    """The frame that ends a message of which nobody knows whether the peer has it: the Task, or its last status."""
    sight = step.sight
    message = make_message(sight.mint("msg"), step.facade, sight.context_id, [{"text": reason}])
    status = make_status(FAILED, format_ms(step.decision.now_ms), message)
    note = note_status("unknown_outcome", peer=sight.peer)
    if step.record.shown:
        return status_frame(step.facade, sight.context_id, status, note)
    task: JsonObject = {
        "id": step.facade,
        "contextId": sight.context_id,
        "status": status,
        "metadata": note,
    }
    return task_frame(complete_history(task, sight.accepted))


async def give_up(driver: ActiveRun, error: TooLarge) -> None:
    """A peer that says more at once than one decision can hold: the task fails, and the peer is told to stop."""
    remote = driver.remote_task()
    if isinstance(error, ArtifactTooLarge):
        # A limit of the operator, and no fault of the agent's words: it would bring as much again.
        reason = f"agent {driver.peer.name!r} brought too much: {error}"
        failure = Failure(error.code, ErrorCategory.POLICY, reason, source=driver.peer.name)
        driver.means.log.warning(
            "output.too_large",
            task=driver.run.record.task_id,
            agent=driver.peer.name,
            reason=str(error),
        )
    else:
        reason = f"agent {driver.peer.name!r} said too much at once: {error}"
        code = InvalidAgentResponse.code
        failure = Failure(code, ErrorCategory.PROTOCOL, reason, source=driver.peer.name)
    await fail(driver, failure)
    if remote is not None:
        await driver.peer.cancel(remote)


async def time_out(run: Run, limit: Limit, claim: Claim, driver: ActiveRun | None = None) -> None:
    """A limit of a run is over, whoever drives it (``driver`` here) and whatever it waits for.

    The task ends, unless the policy tries it again: then the next run has limits of its own.
    """
    limit_ms = read_limit(run.record.attempts[-1].retry_policy, limit) or 0
    reason = explain_limit(run.record, limit)
    failure = Failure("timed_out", ErrorCategory.TIMEOUT, reason, source=run.sight.peer)

    def end(step: Step) -> None:
        stopping = step.record.status is Status.CANCELLING
        step.close_actions("task_cancelled")
        if step.record.run is not None and try_on(step, RunEnd(failure, Status.TIMED_OUT)):
            return
        if driver is not None:
            driver.failure = PeerUnavailable(reason, agent=run.sight.peer)
        # A wish to cancel sticks: the stop is not known, so it cannot be confirmed either.
        ending = FailTask(failure) if stopping else TimeOutTask(TaskTimedOut(limit, limit_ms))
        step.end_with(step.tell(ending), FAILED, reason)

    await run.append(end, lambda _step: Terms(claim=claim))
