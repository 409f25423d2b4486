"""Jobs of a caller: submitted, cancelled, tried again, listed and read (EXT-9, CMD-24, PRS-8).

A job is a session of its own, and its record is a part of that of the session. Its items are tasks of the caller
like all others, each in a session of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import orjson

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable
from passerelle.core.events import Fact, decode_event
from passerelle.core.facts import Scope
from passerelle.core.ids import read_shard
from passerelle.core.index_changes import JOBS, list_session
from passerelle.core.job import machine
from passerelle.core.job.requests import (
    MOST_INPUT_BYTES,
    CancelJob,
    JobChanged,
    JobItemLine,
    JobResults,
    RetryJob,
)
from passerelle.core.payloads.conversation import SessionCreated
from passerelle.core.payloads.job import JobCreated, JobItemFailed, JobItemStarted, JobProgress
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.jobs import show_job
from passerelle.core.session import machine as sessions
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.delegation.jobs.jobs import describe_input, name_row
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.places import choose_shard
from passerelle.runtime.records.task_pages import read_token, write_token
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.results import Results
    from passerelle.core.decision import Decision, Held
    from passerelle.core.facts import ErrorDetail
    from passerelle.core.job.machine import JobState
    from passerelle.core.job.requests import GetJob, GetJobResults, ListJobs, SubmitJob
    from passerelle.core.peer import Peer
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.writes import Writes


@dataclass(frozen=True, slots=True)
class Jobs:
    """Works on the jobs of callers."""

    writes: Writes
    projections: Projections
    blobs: Blobs
    find_peer: Callable[[str], Peer]
    results: Results

    async def submit(
        self, principal: Principal, command: SubmitJob, idem: str | None
    ) -> JobChanged:
        """Makes a job, once per idempotency key; its items begin behind it.

        Raises:
            NotFound: an agent that the caller may not call.
            InvalidInput: several agents and several inputs, inputs that are too long, or another number of titles.
            IdempotencyConflict: the key came with another request.
        """
        self._check(principal, command)
        writes, once = self.writes, make_once(principal, command, idem)
        shard = choose_shard(principal, writes.ids, idem)
        stored = await once.find(writes.log, shard)
        if stored is not None:
            return await self._repeat(stored)
        if command.distinct:
            command = _leave_out_equal(command)
        ref = EntityRef(EntityKind.SESSION, writes.ids.mint("se", shard))
        opened = SessionCreated(
            owner=principal.key,
            tenant=principal.tenant,
            principal=principal.id,
            title=command.title,
            labels=command.labels or None,
        )
        spill = BlobOverflow()
        inputs = spill.keep(
            orjson.dumps(
                [
                    describe_input(text, ROLE_USER, title)
                    for text, title in zip_longest(command.inputs, command.titles)
                ]
            )
        )
        for blob in spill.blobs:
            await self.blobs.put(shard, blob)
        created = JobCreated(
            job_id=ref.id,
            objective=command.title,
            over="inputs" if len(command.agents) == 1 else "peers",
            items=max(len(command.inputs), len(command.agents)),
            requested_by=principal.id,
            title=command.title,
            concurrency=command.concurrency,
            agents=command.agents,
            attempts=command.attempts,
            most_failed=command.most_failed,
            progress=command.progress or None,
        )

        def body(decision: Decision) -> AppendOptions:
            decision.add(sessions.decide(None, sessions.BeginSession(ref.id, opened)))
            decision.add([Fact(Scope(ref.id), created, {machine.INPUT: inputs})])
            row = DueChange(name_row(ref.id), decision.now_ms)
            return AppendOptions(idem=once.remember(ref.id), due=(row,))

        written = await writes.decide(ref.id, [ref], body)
        if not isinstance(written, Written):
            raise StoreUnavailable("the job could not be stored", "no")
        if written.repeated is not None and written.repeated != ref.id.encode():
            return await self._repeat(written.repeated)
        await self._list_now(written.held[ref])
        writes.news(shard)
        return _render(written.held[ref])

    def _check(self, principal: Principal, command: SubmitJob) -> None:
        for agent in dict.fromkeys(command.agents):
            if not principal.may_call(agent):
                raise NotFound("agent", agent)
            self.find_peer(agent)
        if len(command.agents) > 1 and len(command.inputs) > 1:
            raise InvalidInput("inputs", "takes one input for several agents")
        if len(command.titles) not in {0, len(command.inputs)}:
            raise InvalidInput("titles", "takes one for each input")
        if sum(len(text.encode()) for text in command.inputs) > MOST_INPUT_BYTES:
            raise InvalidInput("inputs", f"takes at most {MOST_INPUT_BYTES} bytes together")

    async def _repeat(self, stored: bytes) -> JobChanged:
        ref = EntityRef(EntityKind.SESSION, stored.decode())
        return _render((await self.writes.load([ref]))[ref], repeated=True)

    async def _list_now(self, held: Held) -> None:
        """In the list before the answer; the relay writes the same row, so a failure loses nothing."""
        for row in list_session(held.record) if isinstance(held.record, SessionRecord) else ():
            with suppress(StoreUnavailable):
                await self.projections.index_now(row)

    async def change(
        self, principal: Principal, command: CancelJob | RetryJob, idem: str | None
    ) -> JobChanged:
        """Cancels a job, or has items of it tried again.

        Raises:
            NotFound: no job of the caller.
            UnsupportedOperation: it is over, or nothing of it can be tried again.
            InvalidInput: an item that has not failed.
            IdempotencyConflict: the key came with another request.
        """
        found = await self._find(principal, command.job_id)
        ref, writes = EntityRef(EntityKind.SESSION, command.job_id), self.writes
        once = make_once(principal, command, None if idem is None else f"{idem}\0{ref.id}")
        if await once.find(writes.log, ref.shard) is not None:
            return _render(found, repeated=True)
        wanted = (
            machine.StopJob(principal.id, command.reason)
            if isinstance(command, CancelJob)
            else machine.RetryItems(principal.id, command.items)
        )

        def body(decision: Decision) -> AppendOptions:
            state = _require(decision, ref)
            decision.add([Fact(Scope(ref.id), machine.decide(ref.id, state, wanted))])
            row = DueChange(name_row(ref.id), decision.now_ms)
            return AppendOptions(idem=once.remember(ref.id), due=(row,))

        written = await writes.decide(ref.id, [ref], body)
        if not isinstance(written, Written):
            raise StoreUnavailable("the job could not be stored", "no")
        writes.news(ref.shard)
        return _render(written.held[ref], repeated=written.repeated is not None)

    async def read(self, principal: Principal, query: GetJob) -> JsonObject:
        """A job and its counts. Raises NotFound."""
        changed = _render(await self._find(principal, query.job_id))
        return {**changed.job, "version": changed.version}

    async def list(self, principal: Principal, query: ListJobs) -> JsonObject:
        """One page: ``jobs``, and ``nextPageToken`` where there may be more.

        Raises:
            InvalidInput: a page token that is not ours.
        """
        before = read_token(query.page_token)
        page = await self.projections.read_index(principal.key, JOBS, before, query.page_size + 1)
        shown = page[: query.page_size]
        refs = [EntityRef(EntityKind.SESSION, name) for name, _ in shown]
        held = await self.writes.load(refs) if refs else {}
        found: list[Json] = []
        for ref in refs:
            record = held[ref].record
            if isinstance(record, SessionRecord) and record.job is not None:
                changed = _render(held[ref])
                found.append({**changed.job, "version": changed.version})
        more = len(page) > len(shown)
        token = write_token((shown[-1][1], shown[-1][0])) if more else ""
        return {"jobs": found, "nextPageToken": token}

    async def read_results(self, principal: Principal, query: GetJobResults) -> JsonObject:
        """A page of the table of results. Raises NotFound."""
        held = await self._find(principal, query.job_id)
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
        refs = {item: EntityRef(EntityKind.TASK, task) for item, task in tasks.items()}
        loaded = await self.writes.load(dict.fromkeys(refs.values())) if refs else {}
        lines = list[JobItemLine]()
        for item in chosen:
            one = loaded[refs[item]].record if item in refs else None
            task = one if isinstance(one, TaskRecord) else None
            lines.append(await self._show_item(principal, state, item, task, errors.get(item)))
        more = chosen[-1] if len(wanted) > len(chosen) else None
        return to_wire(JobResults(tuple(lines), more, str(more or "")))

    async def _read_facts(
        self, job_id: str, items: frozenset[int]
    ) -> tuple[dict[int, str], dict[int, ErrorDetail]]:
        """The newest task of each item, and the error of each that failed last."""
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

    async def _find(self, principal: Principal, job_id: str) -> Held:
        if read_shard(job_id) is not None:
            ref = EntityRef(EntityKind.SESSION, job_id)
            held = (await self.writes.load([ref]))[ref]
            record = held.record
            if isinstance(record, SessionRecord) and record.owner == principal.key and record.job:
                return held
        raise NotFound("job", job_id)


def _leave_out_equal(command: SubmitJob) -> SubmitJob:
    """Of items with the same agent, text and title the first one alone."""
    items = dict.fromkeys(zip_longest(command.inputs, command.titles))
    return replace(
        command,
        agents=tuple(dict.fromkeys(command.agents)),
        inputs=tuple(text for text, _ in items),
        titles=tuple(title for _, title in items if title is not None),
    )


def _require(decision: Decision, ref: EntityRef) -> JobState:
    record = decision.state(ref)
    if not isinstance(record, SessionRecord) or record.job is None:
        raise NotFound("job", ref.id)
    return record.job


def _render(held: Held, *, repeated: bool = False) -> JobChanged:
    record = held.record
    model = show_job(record) if isinstance(record, SessionRecord) else None
    if model is None:
        raise NotFound("job", "")
    return JobChanged(to_wire(model), held.stamp.version, repeated)
