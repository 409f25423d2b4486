"""Jobs of a caller: submitted, cancelled and retried (EXT-9, CMD-24).

A job is a session of its own, and its record is part of the session's. Its items are ordinary tasks of the caller, each
in a session of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import orjson

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.a2a_mapping.rpc import Method
from passerelle.control.job_reads import render
from passerelle.control.task_graph import find_parent
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.commands import CancelTask
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable, WriteConflict
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.job import machine
from passerelle.core.job.requests import MOST_INPUT_BYTES, CancelJob, JobChanged, RetryJob
from passerelle.core.payloads.job import JobCreated
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.delegation.jobs.jobs import describe_input
from passerelle.delegation.jobs.parents import name_row, stop_job, update_parent
from passerelle.runtime.common.calls import require_operation, require_sending
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.family import check_above, refuse_below_stopped
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.listed_sessions import create_session
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.job_reads import JobReads
    from passerelle.core.commands import Command
    from passerelle.core.decision import Decision, Held
    from passerelle.core.facts import Ref
    from passerelle.core.ids import Shard
    from passerelle.core.job.machine import JobState
    from passerelle.core.job.requests import SubmitJob
    from passerelle.core.peer import Peer
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import Writes


@frozen
class Jobs:
    """Submits and changes jobs of callers."""

    writes: Writes
    projections: Projections
    blobs: Blobs
    find_peer: Callable[[str], Peer]
    ownership: Ownership
    reads: JobReads
    govern: Callable[[Principal, Command], Awaitable[None]]

    async def submit(
        self, principal: Principal, command: SubmitJob, idem: str | None
    ) -> JobChanged:
        """Creates a job, once per idempotency key; its items start afterwards.

        Raises:
            NotFound: an agent that the caller may not call, or no such parent task of the caller.
            Forbidden: it may not send to one of the agents.
            UnsupportedOperation, GraphLimit: the parent task takes no child (any more).
            InvalidInput: several agents and several inputs, too long inputs, or a wrong number of titles.
            IdempotencyConflict: the key was used for another request.
        """
        self._check(principal, command)

        async def prepare(ref: EntityRef) -> Callable[[Decision], DueChange]:
            above = command.parent_task_id
            parent = None if above is None else await find_parent(self.ownership, principal, above)
            job = _drop_duplicates(command) if command.distinct else command
            inputs = await self._store_inputs(ref.shard, job)
            created = _describe(ref.id, principal, job, parent.record.task_id if parent else None)

            def add(decision: Decision) -> DueChange:
                decision.add([Fact(Scope(ref.id), created, {machine.INPUT: inputs})])
                return DueChange(name_row(ref.id), decision.now_ms)

            return add

        held, repeated = await create_session(
            self.writes, self.projections, principal, command, idem, prepare
        )
        return render(await self._register_at_parent(held), repeated=repeated)

    async def _store_inputs(self, shard: Shard, command: SubmitJob) -> Ref:
        """Stores the messages of the items."""
        spill = BlobOverflow()
        messages = [
            describe_input(text, ROLE_USER, title)
            for text, title in zip_longest(command.inputs, command.titles)
        ]
        inputs = spill.keep(orjson.dumps(messages))
        for blob in spill.blobs:
            await self.blobs.put(shard, blob)
        return inputs

    def _check(self, principal: Principal, command: SubmitJob) -> None:
        for agent in dict.fromkeys(command.agents):
            require_sending(principal, agent)
            if agent != ROUTER:
                self.find_peer(agent)
        if len(command.agents) > 1 and len(command.inputs) > 1:
            raise InvalidInput("inputs", "takes one input for several agents")
        if len(command.titles) not in {0, len(command.inputs)}:
            raise InvalidInput("titles", "takes one for each input")
        if sum(len(text.encode()) for text in command.inputs) > MOST_INPUT_BYTES:
            raise InvalidInput("inputs", f"takes at most {MOST_INPUT_BYTES} bytes together")

    async def _register_at_parent(self, held: Held) -> Held:
        """Registers the job at its parent task; the job's due row does so as well, so a failure loses nothing."""
        record = held.record
        if not isinstance(record, SessionRecord) or record.job is None or record.job.parent is None:
            return held
        ref = EntityRef(EntityKind.SESSION, record.session_id)
        with suppress(StoreUnavailable, WriteConflict):
            stop = await update_parent(self.writes, ref.id, record.owner, record.job)
            if stop is not None:
                await stop_job(self.writes, ref, stop)
                return await self.writes.load_one(ref)
        return held

    async def change(
        self, principal: Principal, command: CancelJob | RetryJob, idem: str | None
    ) -> JobChanged:
        """Cancels a job, or retries items of it.

        Raises:
            NotFound: no job of the caller, or an agent that it may not call.
            UnsupportedOperation: it is over, it has nothing to retry, or a task above it is being cancelled.
            InvalidInput: an item that has not failed.
            IdempotencyConflict: the key was used for another request.
            Forbidden: it may not cancel one of its tasks, or a rule denies it, or it may not send to an agent.
        """
        found = await self.reads.find(principal, command.job_id)
        ref, writes = EntityRef(EntityKind.SESSION, command.job_id), self.writes
        once = make_once(principal, command, None if idem is None else f"{idem}\0{ref.id}")
        if await once.find(writes.log, ref.shard) is not None:
            return render(found, repeated=True)
        if isinstance(command, RetryJob):
            await self._check_retry(principal, found)
        else:
            await self._check_cancel(principal, command, found)
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

        written = await writes.change(ref.id, [ref], body)
        writes.wake_duties(ref.shard)
        return render(written.held[ref], repeated=written.repeated is not None)

    async def _check_cancel(self, principal: Principal, command: CancelJob, held: Held) -> None:
        """Grants and rules about cancelling apply here too (EXT-1): running tasks are cancelled with their job."""
        record = held.record
        state = record.job if isinstance(record, SessionRecord) else None
        if state is None:
            return
        for one in state.running:
            require_operation(principal, state.agent_of(one.item), Method.CANCEL_TASK)
            with suppress(NotFound):  # erased meanwhile
                await self.govern(principal, CancelTask(one.task_id, reason=command.reason))

    async def _check_retry(self, principal: Principal, held: Held) -> None:
        """A retry sends again, and a task above the job may be cancelled (GR-11).

        Raises:
            NotFound, Forbidden: the caller may not send to an agent of the job.
            UnsupportedOperation: a task above the job is being cancelled.
        """
        record = held.record
        state = record.job if isinstance(record, SessionRecord) else None
        for agent in dict.fromkeys(state.agents if state is not None else ()):
            require_sending(principal, agent)
        if state is None or state.parent is None:
            return
        parent = await self.writes.read(TaskRecord, state.parent)
        if parent is not None:
            refuse_below_stopped(parent)
            await check_above(self.writes, parent)


def _describe(
    job_id: str, principal: Principal, command: SubmitJob, parent: str | None
) -> JobCreated:
    return JobCreated(
        job_id=job_id,
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
        parent_task_id=parent,
    )


def _drop_duplicates(command: SubmitJob) -> SubmitJob:
    """Keeps only the first of items with the same agent, text and title."""
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
