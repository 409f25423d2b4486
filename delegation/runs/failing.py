"""A run has ended badly: what becomes of its task is decided here, in the same append, whatever ended the run.

Pure. The peer said so (``observe``), did not take the message, or cannot be reached any more (``endings``): all of them
come through ``end_run``. It asks the policy (``core/retry.py``), and adds what follows: another attempt at the same
agent or at the next one (ATT-13, ATT-14, ATT-16), or the end of the task.

An attempt that follows is owed from that append on, as a due row ``retry:<task>`` (I9). Until it begins nobody drives
the task, and any instance may begin it (``retries.py``). Callers who see the task see it working meanwhile. What the
failed attempt has shown them stays: A2A cannot take an artifact back. The next attempt replaces one of the same id as a
whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.frames import make_message, make_status, status_frame
from passerelle.a2a_mapping.states import FAILED, WORKING
from passerelle.core import task as tasks
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.core.payloads.routing import FallbackApplied
from passerelle.core.payloads.task import TaskRetrying
from passerelle.core.retry import Elsewhere, GiveUp, Tried, classify, decide
from passerelle.core.status import Status
from passerelle.core.task_commands import FailRun, FailTask, RetryTask
from passerelle.core.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.facts import Failure
    from passerelle.core.json import JsonObject
    from passerelle.core.retry import Again, Verdict
    from passerelle.core.task_record import Attempt, TaskRecord
    from passerelle.delegation.runs.step import Step


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. ``status`` is the run's: failed or lost.

    ``native`` is the peer's own word for it, and ``frame`` its last frame as our callers read it, where it said one;
    ``before`` is the Task without that frame. ``wait_ms`` is how long the peer wants to be left alone.
    """

    failure: Failure
    status: Status = Status.FAILED
    native: str | None = None
    rejected: bool = False
    frame: JsonObject | None = None
    before: JsonObject | None = None
    wait_ms: int = 0


def end_run(step: Step, ended: Ended) -> None:
    """The run is over; with nothing left to try its task has failed as well."""
    if try_on(step, ended):
        return
    facts = step.tell(FailTask(ended.failure, ended.rejected))
    if ended.frame is None:
        step.end_with(facts, FAILED, ended.failure.message)
        return
    step.add_shown(facts, ended.frame)
    step.end_turn("task")


def try_on(step: Step, ended: Ended) -> bool:
    """The run is over; whether another attempt follows, which is owed then."""
    run, verdict = step.record.run, _judge(step, ended)
    step.add(step.tell(FailRun(ended.status, ended.failure, ended.native)))
    if run is None or isinstance(verdict, GiveUp):
        return False
    if ended.frame is not None:
        # Its last word is not shown: the task goes on.
        step.sight.content = ended.before
    _owe(step, run, verdict)
    return True


def _judge(step: Step, ended: Ended) -> Verdict:
    record = step.record
    # A wish to cancel sticks: nothing is begun anew (CMD-9).
    if record.status is Status.CANCELLING or record.run is None:
        return GiveUp("not_retryable")
    fault, tried = classify(ended.failure), list_tried(record)
    return decide(fault, tried, step.decision.now_ms, step.sight.chance(), wait_ms=ended.wait_ms)


def list_tried(record: TaskRecord) -> Tried:
    """The attempts since somebody last asked for one, the terms of the last, and the fallbacks of the agent asked."""
    reruns = [place for place, one in enumerate(record.attempts) if one.asked_by is not None]
    since = record.attempts[reruns[-1] if reruns else 0 :]
    asked = next((one for one in since if one.worker.peer == record.kind), since[0])
    peers = [one.worker.peer for one in since]
    return Tried(peers, since[-1].retry_policy, asked.retry_policy.fallback or ())


def _owe(step: Step, run: Attempt, verdict: Again | Elsewhere) -> None:
    record, now_ms = step.record, step.decision.now_ms
    ordinal = len(record.attempts) + 1
    if isinstance(verdict, Elsewhere):
        applied = FallbackApplied(run.worker.peer, verdict.peer, verdict.cause, ordinal)
        step.add([Fact(replace(tasks.scope_of(record), run_id=run.run_id), applied)])
        retrying = TaskRetrying("fallback", ordinal, format_ms(now_ms), verdict.peer)
    else:
        retrying = TaskRetrying("retry", ordinal, format_ms(verdict.at_ms), run.worker.peer)
        now_ms = verdict.at_ms
    show_retrying(step, step.tell(RetryTask(retrying)), f"attempt {ordinal - 1} did not succeed")
    step.due.append(DueChange(name_row(record.task_id), now_ms))


def show_retrying(step: Step, facts: list[Fact], reason: str) -> None:
    """Adds the facts of a further attempt; callers who see the task see that it still works, and why it waits."""
    if not step.record.shown:
        step.add(facts)
        return
    sight = step.sight
    message = make_message(sight.mint("msg"), step.facade, sight.context_id, [{"text": reason}])
    status = make_status(WORKING, format_ms(step.decision.now_ms), message)
    frame = status_frame(step.facade, sight.context_id, status)
    sight.content = fold(sight.content, frame)
    step.add_shown(facts, frame)


def name_row(task_id: str) -> str:
    """The due row of an attempt that is owed."""
    return f"retry:{task_id}"
