"""A job and the task that delegates it: the edge of that task, and what its end means for the job (TEV-18, GR-11).

Job and task stand in streams of their own, so the job is made first and its task is told then. Nothing of the job
begins before its task knows of it: each visit of its row tells the task what that does not know yet, so whoever goes on
after a death does what was left. A task that takes no job any more, since it has ended meanwhile, stops the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import read_shard
from passerelle.core.job import machine
from passerelle.core.job.item_name import JOB
from passerelle.core.job.machine import LIVE, JobStatus, StopJob
from passerelle.core.payloads.task import TaskDelegated, TaskDependencyUpdated
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask
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
    from passerelle.core.task.record import Edge
    from passerelle.runtime.records.writes import Writes

_AT_ONCE: Final = 64
"""Records of one read."""


def name_row(job_id: str) -> str:
    """The due row of a job."""
    return f"{JOB}:{job_id}"


def read_job(decision: Decision, ref: EntityRef) -> JobState | None:
    """The job of a session as a decision has it; None where there is none."""
    record = decision.state(ref)
    return record.job if isinstance(record, SessionRecord) else None


async def update_parent(writes: Writes, job_id: str, owner: str, state: JobState) -> StopJob | None:
    """Has the task above know how the job stands; why the job may not go on, None where it may.

    A task that has left memory, or is somebody else's by now, is not asked. Without a task above nothing is read.

    Raises:
        StoreUnavailable, WriteConflict: the row of the job comes back.
    """
    if state.parent is None:
        return None
    ref = EntityRef(EntityKind.TASK, state.parent)
    held = (await writes.load([ref]))[ref]
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
    """Whether its edge says how the job stands; that of a task that is put away is not touched any more."""
    edge = _find(parent, job_id)
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
    """Makes the edge, or has it say what became of the job.

    Raises:
        UnsupportedOperation: the task takes no job any more.
    """

    def body(decision: Decision) -> AppendOptions:
        parent = decision.state(ref)
        if isinstance(parent, TaskRecord) and not _is_up_to_date(parent, job_id, state):
            decision.add(_decide(parent, job_id, state))
        return AppendOptions()

    await writes.decide(session_id, [ref], body, known)


def _decide(parent: TaskRecord, job_id: str, state: JobState) -> list[Fact]:
    edge = _find(parent, job_id)
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


def _find(parent: TaskRecord, job_id: str) -> Edge | None:
    return next((edge for edge in parent.relationships if edge.edge_id == job_id), None)


async def stop_job(writes: Writes, ref: EntityRef, command: StopJob) -> None:
    """Cancels a job that goes on; what runs of it is stopped by its row."""

    def body(decision: Decision) -> AppendOptions:
        state = read_job(decision, ref)
        if state is None or state.status not in LIVE:
            return AppendOptions()
        decision.add([Fact(Scope(ref.id), machine.decide(ref.id, state, command))])
        return AppendOptions(due=(DueChange(name_row(ref.id), decision.now_ms),))

    await writes.decide(ref.id, [ref], body)
    writes.news(ref.shard)


async def list_live(writes: Writes, tasks_above: Iterable[TaskRecord]) -> list[EntityRef]:
    """The jobs that go on below some tasks, which each of them has delegated."""
    parents = {job: task for task in tasks_above for job in task.jobs}
    refs = [EntityRef(EntityKind.SESSION, job) for job in parents if read_shard(job) is not None]
    found = list[EntityRef]()
    for first in range(0, len(refs), _AT_ONCE):
        held = await writes.load(refs[first : first + _AT_ONCE])
        found += [ref for ref, one in held.items() if _is_below(one, parents[ref.id])]
    return found


def _is_below(held: Held, parent: TaskRecord) -> bool:
    record = held.record
    return (
        isinstance(record, SessionRecord)
        and record.owner == parent.owner
        and record.job is not None
        and record.job.status in LIVE
        and record.job.parent == parent.task_id
    )
