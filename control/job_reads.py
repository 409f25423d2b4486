"""Reads a caller's jobs: one, their list, and the results of the items (CMD-24, PRS-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.content import read_text
from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.commands import GetTask
from passerelle.core.errors import NotFound, PasserelleError
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.index_changes import JOBS
from passerelle.core.job import machine
from passerelle.core.job.requests import JobChanged, JobItemLine, JobResults, JobWait
from passerelle.core.payloads.job import JobItemFailed, JobItemStarted, JobProgress
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.jobs import list_waits, show_job
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.runtime.records.listed_sessions import read_session_page
from passerelle.runtime.records.ownership import load_own

if TYPE_CHECKING:
    from passerelle.control.task_reads import TaskReads
    from passerelle.core.decision import Held
    from passerelle.core.facts import ErrorDetail
    from passerelle.core.job.machine import JobState
    from passerelle.core.job.requests import GetJob, GetJobResults, ListJobs
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.writes import Writes

RESULT_LENGTH: Final = 2_000
"""Characters of a result in one table row."""


@frozen
class Results:
    """Reads the result of a task as one text, as its owner sees it: for tables of many tasks."""

    reads: TaskReads

    async def read(self, principal: Principal, task: TaskRecord) -> str | None:
        """The texts of its artifacts, one line each; without artifacts the agent's last message.

        The parts of an artifact are one text. None if there is no text, or it cannot be read now.
        """
        facade = expose(TaskId(task.task_id), task.exposure)
        try:
            if not task.shown:
                owned = await self.reads.ownership.find(principal, facade, None, hidden=True)
                said = await self.reads.contents.read_answer(owned.record)
                return read_text(said)[:RESULT_LENGTH] or None
            shown = await self.reads.read(principal, GetTask(facade, history_length=0))
        except PasserelleError:
            return None
        texts = [text for one in objects_at(shown, "artifacts") if (text := read_text(one))]
        said = object_at(object_at(shown, "status"), "message")
        return ("\n".join(texts) or read_text(said))[:RESULT_LENGTH] or None


@frozen
class JobReads:
    """Reads jobs for their owners. ``spending`` None: there are no quotas."""

    writes: Writes
    projections: Projections
    results: Results
    spending: Spending

    async def read(self, principal: Principal, query: GetJob) -> JsonObject:
        """A job, its counts, and what its items wait for. Raises NotFound."""
        held = await self.find(principal, query.job_id)
        changed, record = render(held), held.record
        state = record.job if isinstance(record, SessionRecord) else None
        waits = await self._list_waits(principal, state) if state is not None else ()
        listed: list[Json] = [to_wire(one) for one in waits]
        return {**changed.job, "version": changed.version, "waits": listed}

    async def _list_waits(self, principal: Principal, state: JobState) -> tuple[JobWait, ...]:
        if state.status not in machine.LIVE:
            return ()
        running = (one.task_id for one in state.running)
        tasks = [*(await self.writes.read_all(TaskRecord, running)).values()]
        unpaid = [task.peer or "" for task in tasks if waits_for_quota(task)]
        # An item that a quota refuses is not sent; it is tried again while there is room.
        refused = state.counts.waiting if len(state.running) < state.concurrency else 0
        unpaid += [state.agent_of(item) for item, _ in machine.list_next(state, refused)]
        waits = list_waits(tasks)
        if unpaid:
            shortage = await self.spending.find_shortage(principal, unpaid[0])
            if shortage is not None:
                until = format_ms(shortage.till_ms)
                waits += (JobWait("quota", len(unpaid), shortage.text, until),)
        return waits

    async def list(self, principal: Principal, query: ListJobs) -> JsonObject:
        """One page: ``jobs``, and ``nextPageToken`` if there may be more.

        Raises:
            InvalidInput: an invalid page token.
        """
        page, token = await read_session_page(
            self.projections, self.writes, principal.key, JOBS, query.page_token, query.page_size
        )
        found: list[Json] = []
        for record, held in page:
            if record.job is not None:
                changed = render(held)
                found.append({**changed.job, "version": changed.version})
        return {"jobs": found, "nextPageToken": token}

    async def read_results(self, principal: Principal, query: GetJobResults) -> JsonObject:
        """A page of the results. Raises NotFound."""
        held = await self.find(principal, query.job_id)
        record = held.record
        if not isinstance(record, SessionRecord) or record.job is None:
            raise NotFound("job", query.job_id)
        state = record.job
        wanted = [
            item
            for item in range(query.after + 1, len(state.states) + 1)
            if query.state in {None, machine.ITEM_STATES[state.states[item - 1]]}
        ]
        chosen = wanted[: query.limit]
        tasks, errors = await self._read_facts(query.job_id, frozenset(chosen))
        records = await self.writes.read_all(TaskRecord, tasks.values())
        lines = list[JobItemLine]()
        for item in chosen:
            task = records.get(tasks.get(item, ""))
            lines.append(await self._show_item(principal, state, item, task, errors.get(item)))
        more = chosen[-1] if len(wanted) > len(chosen) else None
        return to_wire(JobResults(tuple(lines), more, str(more or "")))

    async def _read_facts(
        self, job_id: str, items: frozenset[int]
    ) -> tuple[dict[int, str], dict[int, ErrorDetail]]:
        """The newest task of each item, and the error of each failed item."""
        tasks, errors = dict[int, str](), dict[int, "ErrorDetail"]()
        stream, after = StreamRef(StreamKind.SESSION, job_id), 0
        while page := await self.writes.log.read_page(stream, after):
            for entry in page:
                if not entry.type.startswith("job."):
                    continue
                fact = decode_event(entry.data, entry.frame, entry.facade).fact
                match fact.payload:
                    case JobItemStarted(item=item) if item in items:
                        tasks[item] = fact.scope.task_id or ""
                        errors.pop(item, None)
                    case JobItemFailed(item=item, error=error) if item in items:
                        errors[item] = error
                    case JobProgress(refused=refused):
                        errors.update({one.item: one.error for one in refused if one.item in items})
                    case _:
                        pass
            after = page[-1].sequence
        return tasks, errors

    async def _show_item(
        self,
        principal: Principal,
        state: JobState,
        item: int,
        task: TaskRecord | None,
        error: ErrorDetail | None,
    ) -> JobItemLine:
        letter = state.states[item - 1]
        return JobItemLine(
            item=item,
            state=machine.ITEM_STATES[letter],
            attempts=state.tries_of(item),
            agent=state.agent_of(item),
            title=task.title if task else None,
            task_id=task.task_id if task else None,
            task_status=str(task.status) if task else None,
            percent=task.progress.percent if task else None,
            result=await self.results.read(principal, task)
            if task and letter == machine.COMPLETED
            else None,
            error=error if letter in {machine.FAILED, machine.WAITING} else None,
        )

    async def find(self, principal: Principal, job_id: str) -> Held:
        """A job of the caller. Raises NotFound."""
        record, held = await load_own(self.writes, SessionRecord, principal, job_id, "job")
        if record.job is None:
            raise NotFound("job", job_id)
        return held


def render(held: Held, *, repeated: bool = False) -> JobChanged:
    """The job of a session in wire form. Raises NotFound if the session is not a job."""
    record = held.record
    model = show_job(record) if isinstance(record, SessionRecord) else None
    if model is None:
        raise NotFound("job", "")
    return JobChanged(to_wire(model), held.stamp.version, repeated)
