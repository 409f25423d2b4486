"""A job and the task that delegates it: the edge of that task, and what its end means for the job (TEV-18, GR-11).

Job and task are in different streams, so the job is created first and then linked to its task. No item of the job
begins before the task has the edge: each visit of the job's row brings the edge up to date, so after a crash another
instance completes what is missing. A task that has ended meanwhile takes no job, and the job stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.job import machine
from passerelle.core.job.item_name import JOB
from passerelle.core.job.machine import LIVE, JobStatus, StopJob
from passerelle.core.payloads.task import TaskDelegated, TaskDependencyUpdated
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask
from passerelle.core.task.folds.relations import find_edge
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.delegation.runs.limits import GATEWAY
from passerelle.runtime.records.family import check_above, refuse_below_stopped
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.decision import Decision, Held
    from passerelle.core.facts import EdgeStatus
    from passerelle.core.job.machine import JobState
    from passerelle.runtime.records.writes import Writes


def name_row(job_id: str) -> str:
    """The due row of a job."""
    return f"{JOB}:{job_id}"


def read_job(decision: Decision, ref: EntityRef) -> JobState | None:
    """The job of a session within a decision; None if it has none."""
    record = decision.state(ref)
    return record.job if isinstance(record, SessionRecord) else None


async def update_parent(writes: Writes, job_id: str, owner: str, state: JobState) -> StopJob | None:
    """Updates the edge of the parent task to the job's state; returns why the job must stop, None where it may run.

    A parent task that has left memory, or has another owner by now, is skipped. Without a parent nothing is read.

    Raises:
        StoreUnavailable, WriteConflict: the row of the job comes back.
    """
    if state.parent is None:
        return None
    ref = EntityRef(EntityKind.TASK, state.parent)
    held = await writes.load_one(ref)
    if held.archive is not None:
        return None
    parent = held.record
    if not isinstance(parent, TaskRecord) or parent.owner != owner:
        return None
    is_live = state.status in LIVE
    try:
        if is_live:
            refuse_below_stopped(parent)
            await check_above(writes, parent)
        if not _is_up_to_date(parent, job_id, state):
            await _update_edge(writes, ref, {ref: held}, parent.session_id, job_id, state)
    except UnsupportedOperation as error:
        return StopJob(GATEWAY, error.message, "runtime") if is_live else None
    return None


def _is_up_to_date(parent: TaskRecord, job_id: str, state: JobState) -> bool:
    """Whether the parent's edge shows the job's state; the edge of an archived task is never changed."""
    edge = find_edge(parent, job_id)
    return edge is not None and (
        parent.status is Status.ARCHIVED or edge.status == _find_edge_status(state)
    )


def _find_edge_status(state: JobState) -> EdgeStatus:
    return "satisfied" if state.status is JobStatus.COMPLETED else "open"


async def _update_edge(
    writes: Writes,
    ref: EntityRef,
    known: Mapping[EntityRef, Held],
    session_id: str,
    job_id: str,
    state: JobState,
) -> None:
    """Creates the edge, or updates it to the job's outcome.

    Raises:
        UnsupportedOperation: the task has ended, or takes no more work.
    """

    def body(decision: Decision) -> AppendOptions:
        parent = decision.state(ref)
        if isinstance(parent, TaskRecord) and not _is_up_to_date(parent, job_id, state):
            decision.add(_decide(parent, job_id, state))
        return AppendOptions()

    await writes.decide(session_id, [ref], body, known)


def _decide(parent: TaskRecord, job_id: str, state: JobState) -> list[Fact]:
    edge = find_edge(parent, job_id)
    if edge is None:
        if parent.status in ENDED:
            raise UnsupportedOperation(f"the parent task has ended: {parent.status}")
        refuse_below_stopped(parent)
        return [Fact(tasks.scope_of(parent), TaskDelegated("job", job_id, len(state.states)))]
    reason = "the job is done" if state.status is JobStatus.COMPLETED else "the job goes on"
    changed = TaskDependencyUpdated(
        job_id, "child", job_id, _find_edge_status(state), edge.status, reason
    )
    return tasks.decide(parent, LinkTask(changed))


async def stop_job(writes: Writes, ref: EntityRef, command: StopJob) -> None:
    """Cancels a live job; its due row stops the tasks that are running."""

    def body(decision: Decision) -> AppendOptions:
        state = read_job(decision, ref)
        if state is None or state.status not in LIVE:
            return AppendOptions()
        decision.add([Fact(Scope(ref.id), machine.decide(ref.id, state, command))])
        return AppendOptions(due=(DueChange(name_row(ref.id), decision.now_ms),))

    await writes.decide(ref.id, [ref], body)
    writes.wake_duties(ref.shard)


async def list_live(writes: Writes, tasks_above: Iterable[TaskRecord]) -> list[EntityRef]:
    """The live jobs that these tasks have delegated."""
    parents = {job: task for task in tasks_above for job in task.jobs}
    jobs = (await writes.read_all(SessionRecord, parents)).items()
    return [EntityRef(EntityKind.SESSION, job) for job, one in jobs if _is_below(one, parents[job])]


def _is_below(record: SessionRecord, parent: TaskRecord) -> bool:
    return (
        record.owner == parent.owner
        and record.job is not None
        and record.job.status in LIVE
        and record.job.parent == parent.task_id
    )
