"""Reads subagents: contexts of agents in threads of the caller, as children of what opened them (CMD-24).

They are derived from records and facts of threads, tasks and attempts; a subagent has no record of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.channels.views import read_header, read_task
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.event_type import EventType
from passerelle.core.events import Event, decode_event, encode_event
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.job.item_name import find_item
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.mark import unavailable
from passerelle.core.read_models.subagents import (
    JobLine,
    find_subagents,
    list_subagents,
)
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.subagent.life import derive_subagent_events
from passerelle.core.subagent.name import SubagentName, parse_subagent
from passerelle.core.subagent.requests import SubagentEvents, SubagentList
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.runtime.records.ownership import find_hidden, find_own, may_see

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from passerelle.control.read_models import Models
    from passerelle.core.ports.log import EventLog, Head
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.mark import FreshnessMark
    from passerelle.core.read_models.subagents import Subagent
    from passerelle.core.subagent.requests import GetSubagent, GetSubagentEvents, ListSubagents
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes

LOOKED_AT: Final = 16_384
"""Events of a session that are searched for those of one subagent."""
_PAGE: Final = 256
_TURN: Final = "turnId"
_UNLISTED: Final = 250
"""Unlisted tasks that are read: the first ones of a session, and as many of the last."""
_STARTED: Final = str(EventType.TASK_ATTEMPT_STARTED.value)


@frozen
class Family:
    """The subagents of a session, and the records that they were derived from."""

    session: SessionRecord
    sequence: int
    tasks: Sequence[TaskRecord]
    threads: dict[str, ThreadRecord]
    subagents: Sequence[Subagent]
    left_out: int


async def gather(models: Models, principal: Principal, session_id: str) -> Family:
    """The subagents of a session of the caller.

    Raises:
        NotFound: unknown, or another principal's.
    """
    session, head, tasks, left_out = await models.load_session(principal, session_id)
    threads = await load_threads(models.writes, tasks, session.threads)
    if not _knows_all(tasks, threads):
        tasks = await _add_unlisted(models, principal, session_id, head, tasks)
    turns = await _find_turns(models.writes.log, tasks)
    found = find_subagents(tasks, threads, turns)
    return Family(session, head.sequence, tasks, threads, found, left_out)


def _knows_all(tasks: Sequence[TaskRecord], threads: Mapping[str, ThreadRecord]) -> bool:
    """Whether each turn is one of the tasks: a task that was answered with a bare Message is in no list."""
    known = Counter[str]()
    for task in tasks:
        known[task.thread_id or ""] += len(task.inputs)
    return all(known[name] >= thread.turns for name, thread in threads.items())


async def _add_unlisted(
    models: Models, principal: Principal, session_id: str, head: Head, tasks: list[TaskRecord]
) -> list[TaskRecord]:
    """The tasks plus unlisted ones, found by the facts of their attempts: the first and the last ones."""
    stream, after = StreamRef(StreamKind.SESSION, session_id), 0
    known, named = {one.task_id for one in tasks}, dict[str, None]()
    while after < min(head.sequence, LOOKED_AT):
        page = await models.writes.log.read_page(stream, after, _PAGE)
        if not page:
            break
        started = (read_task(one.data) for one in page if one.type == _STARTED)
        named |= {task: None for task in started if task is not None and task not in known}
        after = page[-1].sequence
    names = [*named]
    chosen = names if len(names) <= 2 * _UNLISTED else names[:_UNLISTED] + names[-_UNLISTED:]
    others = await models.writes.read_all(TaskRecord, chosen)
    return [*tasks, *(one for one in others.values() if may_see(principal, one))]


async def load_threads(
    writes: Writes, tasks: Iterable[TaskRecord], named: Iterable[str] = ()
) -> dict[str, ThreadRecord]:
    """The threads of some tasks, and the named ones, by id."""
    own = (one.thread_id for one in tasks if one.thread_id)
    return await writes.read_all(ThreadRecord, [*own, *named])


async def _find_turns(log: EventLog, tasks: Iterable[TaskRecord]) -> dict[str, str]:
    """The first turn of each task with several turns: its record has only the last one."""

    async def find(task: TaskRecord) -> tuple[str, str] | None:
        stream = StreamRef(StreamKind.SESSION, task.session_id)
        for entry in await log.read_page(stream, task.inputs[0] - 1, 1):
            turn = read_header(entry.data).get(_TURN)
            if entry.sequence == task.inputs[0] and isinstance(turn, str):
                return task.task_id, turn
        return None

    several = [find(task) for task in tasks if len(task.inputs) > 1]
    return dict(one for one in await asyncio.gather(*several) if one is not None)


async def read_summary(models: Models, principal: Principal, task: TaskRecord) -> JsonObject:
    """The children of a task (SNAP-12)."""
    family = await gather(models, principal, task.session_id)
    found = family.subagents
    if all(one.task_id != task.task_id for one in family.tasks):
        # The task is older than those that were read.
        tasks = [*family.tasks, task]
        threads = family.threads | await load_threads(models.writes, [task])
        found = find_subagents(tasks, threads, await _find_turns(models.writes.log, tasks))
    jobs = await _show_jobs(models.writes, task)
    return to_wire(list_subagents(task, found, jobs, left_out=family.left_out))


async def _show_jobs(writes: Writes, task: TaskRecord) -> list[JobLine]:
    """The job that a task is an item of, then the jobs that it has delegated."""
    item = find_item(task)
    items: dict[str, int | None] = dict([item] if item else []) | dict.fromkeys(task.jobs)
    found = list[JobLine]()
    for name, record in (await writes.read_all(SessionRecord, items)).items():
        if record.owner == task.owner:
            found += _show_job(record, items[name])
    return found


def _show_job(record: SessionRecord, item: int | None = None) -> list[JobLine]:
    job = record.job
    if job is None:
        return []
    counts = {name: count for name, count in to_wire(job.counts).items() if type(count) is int}
    return [JobLine(record.session_id, job.status, len(job.states), counts, item)]


@frozen
class SubagentReads:
    """Reads subagents for their owners; an unknown id and another principal's look the same (``NotFound``)."""

    models: Models

    async def list_all(self, principal: Principal, query: ListSubagents) -> JsonObject:
        """The subagents of a task, a thread or a session.

        Raises:
            InvalidInput: not exactly one of the three is named.
            NotFound: it is not the caller's.
        """
        given = [one for one in (query.task_id, query.thread_id, query.session_id) if one]
        if len(given) != 1:
            raise InvalidInput(
                "taskId", "exactly one of taskId, threadId and sessionId is required"
            )
        session_id, task = query.session_id, None
        if query.task_id is not None:
            owned = await self.models.ownership.find(principal, query.task_id, None, hidden=True)
            task, session_id = owned.record, owned.record.session_id
        if query.thread_id is not None:
            writes = self.models.writes
            thread = await find_own(writes, ThreadRecord, principal, query.thread_id)
            session_id = thread.session_id
        family = await gather(self.models, principal, session_id or "")
        found, jobs = family.subagents, _show_job(family.session)
        if task is not None:
            summary = list_subagents(task, found)
            found, jobs = summary.subagents, await _show_jobs(self.models.writes, task)
        if query.thread_id is not None:
            mine = query.thread_id
            found = [one for one in found if mine in {one.thread_id, one.parent.thread_id}]
        return to_wire(
            SubagentList(
                session_id=family.session.session_id,
                sequence=family.sequence,
                subagents=tuple(found),
                jobs=tuple(jobs),
                marks=_mark(family.left_out),
            )
        )

    async def read(self, principal: Principal, query: GetSubagent) -> JsonObject:
        """One subagent. Raises NotFound."""
        return to_wire((await self.find(principal, query.subagent_id))[0])

    async def find(
        self, principal: Principal, subagent_id: str
    ) -> tuple[Subagent, SubagentName, Family]:
        """One subagent, with the family that it is part of. Raises NotFound."""
        name = parse_subagent(subagent_id)
        if name is None:
            raise NotFound("subagent", subagent_id)
        try:
            thread = await find_own(self.models.writes, ThreadRecord, principal, name.thread_id)
            family = await gather(self.models, principal, thread.session_id)
        except NotFound:
            raise NotFound("subagent", subagent_id) from None
        for one in family.subagents:
            if one.subagent_id == subagent_id:
                return one, name, family
        raise NotFound("subagent", subagent_id)

    async def read_events(self, principal: Principal, query: GetSubagentEvents) -> JsonObject:
        """A page of its events. Raises NotFound."""
        subagent, name, family = await self.find(principal, query.subagent_id)
        events, marks = await self._read_thread(name, family)
        tasks = (event.fact.scope.task_id for event in events)
        hidden = await find_hidden(self.models.writes, principal, tasks)
        events = [event for event in events if event.fact.scope.task_id not in hidden]
        parent = subagent.parent
        above = Scope(parent.session_id, parent.thread_id, parent.turn_id, parent.task_id)
        life = derive_subagent_events(name, events, above)
        page = life[query.after : query.after + query.limit]
        last = query.after + len(page)
        return to_wire(
            SubagentEvents(
                subagent_id=query.subagent_id,
                events=tuple(map(_show_event, page)),
                next_page_token=str(last) if last < len(life) else "",
                marks=marks,
            )
        )

    async def _read_thread(
        self, name: SubagentName, family: Family
    ) -> tuple[list[Event], dict[str, FreshnessMark]]:
        """The events of its thread and about itself, with marks for events that were not read."""
        firsts = [one.first for one in family.tasks if one.thread_id == name.thread_id]
        first = min(firsts, default=1)
        stream = StreamRef(StreamKind.SESSION, family.session.session_id)
        found, after, subagent = list[Event](), first - 1, str(name)
        marks: dict[str, FreshnessMark] = _mark(family.left_out, "events")
        while after < family.sequence:
            page = await self.models.writes.log.read_page(stream, after, _PAGE)
            if not page:
                break
            for entry in page:
                header = read_header(entry.data)
                if name.thread_id == header.get("threadId") or subagent == header.get("subagentId"):
                    found.append(decode_event(entry.data, entry.frame, entry.facade))
            after = page[-1].sequence
            if after - first >= LOOKED_AT:
                marks["events"] = unavailable(f"events after {after} were not read")
                break
        return found, marks


def _mark(left_out: int, member: str = "subagents") -> dict[str, FreshnessMark]:
    return {member: unavailable(f"{left_out} older tasks were not read")} if left_out else {}


def _show_event(event: Event) -> JsonObject:
    envelope: JsonObject = orjson.loads(encode_event(event).at(event.sequence)[0])
    return envelope
