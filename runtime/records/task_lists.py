"""The list of a caller's tasks in the control plane: of every agent, including tasks not started yet (CMD-12).

It walks the caller's lists by time, newest first, and reads the records of the rows. A page token names the last row
read, so a changing list neither loses nor repeats unchanged rows. Matches may be rare: a page ends after a maximum
number of rows, with fewer tasks than requested and a token to continue.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose, parse_facade
from passerelle.core.index_changes import UNSEEN
from passerelle.core.read_models.task import show_progress
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import LISTED
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import parse_ms
from passerelle.runtime.records.ownership import load_own, may_oversee, may_see
from passerelle.runtime.records.task_lanes import CHUNK, TaskLane, merge_lanes, open_lanes
from passerelle.runtime.records.task_pages import read_token, write_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from passerelle.core.decision import Held
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.task.requests import ListRecords
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.lag import Lag
    from passerelle.runtime.records.task_lanes import TaskListRow
    from passerelle.runtime.records.writes import Writes

_MOST_ROWS: Final = 2_000
"""Maximum rows that one page reads."""


@frozen
class TaskLists:
    """Lists records of tasks."""

    writes: Writes
    projections: Projections
    list_agents: Callable[[], tuple[str, ...]]
    lag: Lag
    tenants: dict[str, str] = field(default_factory=dict[str, str])
    """The tenant of each owner seen in a list; it never changes."""

    async def list_tasks(self, principal: Principal, query: ListRecords) -> JsonObject:
        """One page: ``tasks``, ``nextPageToken`` if there may be more, and ``marks`` if the lists may be outdated.

        Raises:
            InvalidInput: the page token or a time is invalid.
            NotFound: the session is not the caller's.
        """
        bounds = _read_time("since", query.since), _read_time("until", query.until)
        # Measured before the rows are read: rows carried in between are no reason for doubt.
        doubt = await self.lag.find() if query.session_id is None else None
        found: list[Json] = []
        every = query.owners == "all"
        sees = may_oversee if every else may_see
        last: TaskListRow | None = None
        looked, token = 0, ""
        # One more shows whether the page is the last; a larger batch would read the archive for each archived task.
        at_once = min(CHUNK, query.page_size + 1)
        async for row, held in self.walk(self._choose_rows(principal, query), at_once):
            if len(found) == query.page_size or looked == _MOST_ROWS:
                token = write_token(last) if last else ""
                break
            last, looked = row, looked + 1
            record = held.record
            if not isinstance(record, TaskRecord):
                continue
            if every:
                self.tenants[record.owner] = record.scope.tenant
            if sees(principal, record) and _fits(record, query, bounds):
                shown = summarize(record, held.stamp.version, held.archive)
                found.append({**shown, "owner": record.scope.principal} if every else shown)
        page: JsonObject = {"tasks": found, "nextPageToken": token}
        return page if doubt is None else {**page, "marks": {"tasks": to_wire(doubt)}}

    def _choose_rows(self, principal: Principal, query: ListRecords) -> AsyncIterator[TaskListRow]:
        before = read_token(query.page_token)
        if query.q is not None and parse_facade(query.q) is not None:
            return self.list_named(query.q)
        if query.owners == "all":
            if query.session_id is not None:
                raise InvalidInput("owners", "a session has one owner, and is listed without it")
            return self.list_tenant(principal, before, query.agent)
        if query.session_id is not None:
            return self.list_session(principal, query.session_id, before)
        return self.list_all(principal, before, query.agent)

    async def walk(
        self, rows: AsyncIterator[TaskListRow], at_once: int = CHUNK
    ) -> AsyncIterator[tuple[TaskListRow, Held]]:
        """The stored tasks of rows, each under its newest exposure only, read in batches of ``at_once``."""
        batch: list[TaskListRow] = []
        async for row in rows:
            batch.append(row)
            if len(batch) == at_once:
                for one in await self.load(batch):
                    yield one
                batch = []
        for one in await self.load(batch):
            yield one

    async def load(self, batch: list[TaskListRow]) -> list[tuple[TaskListRow, Held]]:
        """The stored tasks of some rows; rows of an earlier exposure are left out."""
        named = [(row, parsed) for row in batch if (parsed := parse_facade(row[1])) is not None]
        refs = {row: EntityRef(EntityKind.TASK, parsed[0]) for row, parsed in named}
        held = await self.writes.load(dict.fromkeys(refs.values())) if refs else {}
        return [
            (row, held[refs[row]])
            for row, parsed in named
            if _is_newest(held[refs[row]].record, parsed[1])
        ]

    async def list_named(self, facade: str) -> AsyncIterator[TaskListRow]:
        """The row of one task, of any owner; none if there is no such task."""
        parsed = parse_facade(facade)
        record = await self.writes.read(TaskRecord, parsed[0]) if parsed else None
        if parsed and record is not None and parsed[1] <= record.exposure:
            yield parse_ms(record.status_at), expose(TaskId(record.task_id), record.exposure)

    async def list_all(
        self,
        principal: Principal,
        before: TaskListRow | None,
        agent: str | None = None,
        also: tuple[str, ...] = (UNSEEN,),
    ) -> AsyncIterator[TaskListRow]:
        """Rows of every agent that the caller sees, or of one, merged with the lists that belong to no agent."""
        names = [agent] if agent is not None else self.list_agents()
        lanes = [
            TaskLane(self.projections, principal.key, name, before)
            for name in (*filter(principal.sees, names), *also)
        ]
        async for row, _ in merge_lanes(lanes):
            yield row

    async def list_tenant(
        self, principal: Principal, before: TaskListRow | None, agent: str | None
    ) -> AsyncIterator[TaskListRow]:
        """Rows of every owner in the tenant; owners known to be of other tenants are skipped."""
        names = {agent, UNSEEN}
        lanes, bounds = open_lanes(
            self.projections,
            [
                one
                for one in await self.projections.list_lists()
                if (one.agent in names if agent else principal.sees(one.agent) or not one.agent)
                and self.tenants.get(one.owner, principal.tenant) == principal.tenant
            ],
            before,
        )
        async for row, lane in merge_lanes(lanes, bounds):
            if self.tenants.get(lane.owner, principal.tenant) == principal.tenant:
                yield row

    async def list_session(
        self, principal: Principal, session_id: str, before: TaskListRow | None
    ) -> AsyncIterator[TaskListRow]:
        """Rows of one session, with its open tasks that callers do not see yet.

        Raises:
            NotFound: it is not the caller's.
        """
        await self.find_session(principal, session_id)
        times = dict(await self.writes.log.read_session_tasks(session_id))
        unlisted = [one for one in await self.writes.log.read_open(session_id) if one not in times]
        names = (one for one in unlisted if parse_facade(one))
        for task in (await self.writes.read_all(TaskRecord, names)).values():
            if task.exposure == 1:
                times[task.task_id] = parse_ms(task.status_at)
        for row in sorted(((at_ms, facade) for facade, at_ms in times.items()), reverse=True):
            if before is None or row < before:
                yield row

    async def find_session(self, principal: Principal, session_id: str) -> Held:
        """A session of the caller. Raises NotFound."""
        _, held = await load_own(self.writes, SessionRecord, principal, session_id)
        return held


def _is_newest(record: object, exposure: int) -> bool:
    return isinstance(record, TaskRecord) and record.exposure == exposure


def _fits(
    record: TaskRecord,
    query: ListRecords,
    bounds: tuple[int | None, int | None],
) -> bool:
    since_ms, until_ms = bounds
    at_ms = parse_ms(record.status_at)
    return (
        record.visibility in (query.visibility or LISTED)
        and (not query.status or record.status in query.status)
        and (not query.family or record.family in query.family)
        and query.agent in {None, record.kind}
        and query.session_id in {None, record.session_id}
        and query.context_id in {None, record.scope.context_id}
        and (since_ms is None or at_ms >= since_ms)
        and (until_ms is None or at_ms < until_ms)
        and (query.text is None or query.text.casefold() in record.title.casefold())
        and (query.q is None or _is_named(record, query.q))
    )


def _is_named(record: TaskRecord, q: str) -> bool:
    """Whether ``q`` is an id of the task or of its session, thread, context or attempts, or part of its title."""
    if q.casefold() in record.title.casefold() or (parse_facade(q) or ("",))[0] == record.task_id:
        return True
    if q in {record.session_id, record.thread_id, record.scope.context_id}:
        return True
    return any(q in {one.run_id, one.message_id, one.remote_task_id} for one in record.attempts)


def summarize(record: TaskRecord, version: int, archive: str | None = None) -> JsonObject:
    """A task as a list row; ``archive`` is the archive reference of its session, if that is archived."""
    progress = show_progress(record)
    away: JsonObject = {} if archive is None else {"archive": archive}
    return {
        "taskId": expose(TaskId(record.task_id), record.exposure),
        "title": record.title,
        "status": record.status,
        "statusReason": record.status_reason,
        "statusAt": record.status_at,
        "agent": record.kind,
        "assignee": record.assignee,
        "priority": record.priority,
        "sessionId": record.session_id,
        "contextId": record.scope.context_id,
        "parentTaskId": record.parent_task_id,
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
        "attempts": len(record.attempts),
        "progress": {
            "phase": progress.phase,
            "percent": progress.percent,
            "step": progress.step,
            "summary": progress.summary,
        },
        "error": record.last_error.code if record.last_error else None,
        "version": version,
        **away,
    }


def _read_time(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_ms(text)
    except ValueError:
        raise InvalidInput(name, "is no RFC 3339 time in UTC") from None
