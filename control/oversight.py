"""Reads of other owners' data in the same tenant, with the right to it, recorded (A.1 of the oversight of a tenant).

An overseer reads as the owner would: the same handlers answer, limited to the reader's own agents and operations.
Oversight never answers or changes anything. Each read is recorded as a fact in the reader's home session before
anything is returned, one per person, task or session, and hour; if the fact cannot be stored, nothing is read.

A name of another tenant, an unknown one and one that the reader may not see get the same answer as for any caller. For
a page of a session that has left memory, a fact in its owner's home session records that it came from the archive
(EXT-11).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, assert_never

from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import (
    GetArchived,
    GetOutput,
    GetRecord,
    GetSession,
    GetSessionTasks,
    GetTaskModel,
    GetThread,
    GetThreadContext,
)
from passerelle.core.errors import NotFound
from passerelle.core.ids import parse_facade, read_shard
from passerelle.core.payloads.history import HistoryWindowLoaded
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session.archived import ArchiveRef
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.subagent.name import parse_subagent
from passerelle.core.subagent.requests import (
    GetSubagent,
    GetSubagentEvents,
    ListSubagents,
    SubagentQuery,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import ListRecords
from passerelle.core.wire.record import change
from passerelle.runtime.common.calls import require_scope
from passerelle.runtime.records.places import hash_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.decision import Held
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.places import Home
    from passerelle.runtime.records.writes import Writes

OverseenQuery: TypeAlias = (
    GetArchived
    | GetOutput
    | GetRecord
    | GetSession
    | GetSessionTasks
    | GetTaskModel
    | GetThread
    | GetThreadContext
    | ListRecords
    | SubagentQuery
)
Q = TypeVar("Q", bound=OverseenQuery)

HOUR_MS: Final = 3_600_000
_MOST_RECORDED: Final = 4_096
_NO_EVENTS: Final = HistoryWindowLoaded(0, 0, "stream")
"""A list shows current states, and no events."""


@dataclass(slots=True)
class Oversight:
    """Finds the owner to read as."""

    writes: Writes
    home: Home
    _recorded: OrderedDict[tuple[str, str, int], None] = field(
        default_factory=OrderedDict["tuple[str, str, int]", None]
    )
    """Facts that this process knows to be stored, so that repeated reads of a page cost no append."""

    def over(
        self, read: Callable[[Principal, Q], Awaitable[JsonObject]]
    ) -> Callable[[Principal, Q], Awaitable[JsonObject]]:
        """A handler that answers the owner, and overseers of the owner's tenant."""

        async def overseen(principal: Principal, query: Q) -> JsonObject:
            if isinstance(query, ListRecords) and query.owners == "all":
                require_scope(principal, (AccessScope.OVERSEE_TASKS,))
                await self.record_tenant_read(principal)
            try:
                answer = await read(principal, query)
            except NotFound:
                owner = await self._find_owner(principal, query)
                if owner is None:
                    raise
            else:
                await self._record_page(principal, query, answer)
                return answer
            return await read(owner, query)

        return overseen

    async def record_tenant_read(self, principal: Principal) -> None:
        """Records that a principal read a tenant's tasks, before they are returned."""
        await self._record(principal, name_tenant(principal), _NO_EVENTS)

    async def record_requests_read(self, principal: Principal) -> None:
        """The same for the pending approval requests of a tenant."""
        await self._record(principal, f"questions of {name_tenant(principal)}", _NO_EVENTS)

    async def record_request_read(
        self, principal: Principal, action: str, owner: str, first: int, last: int
    ) -> None:
        """The same for one approval request."""
        loaded = HistoryWindowLoaded(first, last, "stream", owner=owner)
        await self._record(principal, action, loaded)

    async def find_task(self, principal: Principal, task_id: str) -> Principal | None:
        """The owner of a task of the tenant, with the reader's rights; None if the reader may not oversee it."""
        if AccessScope.OVERSEE_TASKS not in principal.scopes:
            return None
        parsed = parse_facade(task_id)
        return None if parsed is None else await self._find(principal, EntityKind.TASK, parsed[0])

    async def find_session(self, principal: Principal, session_id: str) -> Principal | None:
        """The same for a session. A person's home session is never readable by others."""
        if AccessScope.OVERSEE_TASKS not in principal.scopes:
            return None
        return await self._find(principal, EntityKind.SESSION, session_id)

    async def _find_owner(self, principal: Principal, query: OverseenQuery) -> Principal | None:
        if AccessScope.OVERSEE_TASKS not in principal.scopes:
            return None
        match query:
            case GetRecord() | GetTaskModel() | GetOutput():
                return await self.find_task(principal, query.task)
            case GetSession() | GetSessionTasks():
                return await self.find_session(principal, query.session_id)
            case ListRecords():
                return await self.find_session(principal, query.session_id or "")
            case GetArchived():
                ref = ArchiveRef.read(query.ref)
                return await self.find_session(principal, ref.session_id)
            case GetThread() | GetThreadContext():
                return await self._find_thread(principal, query.thread_id)
            case GetSubagent() | GetSubagentEvents():
                name = parse_subagent(query.subagent_id)
                return await self._find_thread(principal, name.thread_id if name else "")
            case ListSubagents():
                return await self._find_scope(principal, query)
            case _:
                assert_never(query)

    async def _find_scope(self, principal: Principal, query: ListSubagents) -> Principal | None:
        if query.task_id is not None:
            return await self.find_task(principal, query.task_id)
        if query.thread_id is not None:
            return await self._find_thread(principal, query.thread_id)
        return await self.find_session(principal, query.session_id or "")

    async def _find_thread(self, principal: Principal, thread_id: str) -> Principal | None:
        thread = await self._load(EntityKind.THREAD, thread_id)
        known = thread.record if thread else None
        session = known.session_id if isinstance(known, ThreadRecord) else ""
        return await self.find_session(principal, session)

    async def _find(self, principal: Principal, kind: EntityKind, name: str) -> Principal | None:
        held = await self._load(kind, name)
        record = held.record if held else None
        match record:
            case TaskRecord() if principal.sees(record.agent):
                owner = _as_owner(principal, record.scope.principal, record.scope.tenant)
                first, last = record.first, record.last
            case SessionRecord():
                owner = _as_owner(principal, record.principal, record.tenant)
                first, last = 1, record.last
                if owner is None or not await self._sees_all(principal, owner, name):
                    return None
            case _:
                return None
        if held is None or owner is None or owner.key != record.owner:
            return None
        loaded = HistoryWindowLoaded(
            first, last, "stream" if held.archive is None else "archive", owner=owner.key
        )
        await self._record(principal, name, loaded)
        return owner

    async def _sees_all(self, principal: Principal, owner: Principal, session: str) -> bool:
        """A session contains the events of all its tasks, so the reader must see the agent of each."""
        if session == owner.home_session:
            return False
        if principal.agents is None:
            return True
        log = self.writes.log
        listed = [facade for facade, _ in await log.read_session_tasks(session)]
        names = (parse_facade(name) for name in (*listed, *await log.read_open(session)))
        tasks = await self.writes.read_all(TaskRecord, sorted(one[0] for one in names if one))
        return all(principal.sees(one.agent) for one in tasks.values())

    async def _load(self, kind: EntityKind, name: str) -> Held | None:
        if read_shard(name) is None:
            return None
        ref = EntityRef(kind, name)
        return await self.writes.load_one(ref)

    async def _record_page(
        self, principal: Principal, query: OverseenQuery, answer: JsonObject
    ) -> None:
        """Records that an owner paged through a session that has left memory."""
        if not isinstance(query, GetArchived) or answer["inMemory"]:
            return
        session, after = str(answer["sessionId"]), answer.get("after")
        last = after if isinstance(after, int) else ArchiveRef.read(query.ref).sequence
        first = min(query.after + 1, last)
        loaded = HistoryWindowLoaded(first, last, "archive", None if after is None else str(after))
        await self._record(principal, session, loaded)

    async def _record(self, principal: Principal, name: str, loaded: HistoryWindowLoaded) -> None:
        hour = self.writes.clock.now_ms() // HOUR_MS
        key_of_read = (principal.key, name, hour)
        if key_of_read in self._recorded:
            return
        key = hash_key(principal, f"oversee {name} {hour}")
        await self.home.record(
            principal, change(loaded, of=name), row=IdempotencyRow(key, key, b"", 2 * HOUR_MS)
        )
        self._recorded[key_of_read] = None
        if len(self._recorded) > _MOST_RECORDED:
            self._recorded.popitem(last=False)


def name_tenant(principal: Principal) -> str:
    """The audit's name for a tenant's task list."""
    return f"tenant:{principal.tenant}"


def _as_owner(principal: Principal, owner: str | None, tenant: str) -> Principal | None:
    """The owner with the reader's rights; None if the reader is the owner, or of another tenant."""
    if owner is None or tenant != principal.tenant or owner == principal.id:
        return None
    return change(principal, id=owner)
