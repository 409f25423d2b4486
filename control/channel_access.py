"""Authorization and snapshots for channels (CMD-27).

Another principal's stream and one that does not exist get the same answer, before anything of it is read. A snapshot is
read after its cursor: an event in between arrives again, and none is lost.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.a2a_mapping.rpc import Method
from passerelle.channels.services import (
    EVERY_OWNER,
    FOLLOW,
    FOLLOW_INBOX,
    StreamGrant,
    StreamName,
)
from passerelle.channels.views import (
    FullView,
    JobRowView,
    MessageView,
    PacketView,
    PlainView,
    TaskRowView,
    TaskView,
    UnpairedView,
    shows,
)
from passerelle.core.commands import ListActions
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.event_type import EventType
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade, read_shard
from passerelle.core.index_changes import JOBS
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import AccessScope, name_tenant_lists
from passerelle.core.read_models.jobs import show_job
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import ListRecords
from passerelle.core.task.status import Visibility
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.answers.question_lists import require_inbox
from passerelle.runtime.common.calls import require_operation, require_scope
from passerelle.store.coalescer import Coalescer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.control.oversight import Oversight
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.vocabulary import WithdrawalReason
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.answers.question_lists import QuestionLists
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.packet_reads import PacketReads
    from passerelle.runtime.records.task_lists import TaskLists
    from passerelle.runtime.records.writes import Writes

_LISTED: Final = 100
"""Highest number of tasks, jobs, requests and packets in a snapshot."""
_LOOKED_BACK: Final = 256
"""Events of an inbox searched for notices."""
_NOTICES: Final = 32
_PACKETS_LOOKED_BACK: Final = 1_024
"""Events of a session searched for the packets of a snapshot."""


@frozen
class StreamGrants:
    """``channels.services.StreamAccess``: a principal follows its own streams, and those it may oversee.

    Without ``oversight`` it follows only its own.
    """

    writes: Writes
    arrivals: InboxArrivals
    projections: Projections
    oversight: Oversight | None = None
    _sessions: Coalescer[str, None, SessionRecord | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sessions", Coalescer(self._read_session))

    async def grant(self, principal: Principal, name: StreamName, *, full: bool) -> StreamGrant:
        """The stream behind a name.

        Raises:
            NotFound: unknown, another principal's, or of an agent that it may not see: they look the same.
            Forbidden: a missing scope, a grant that excludes following tasks there, or an agent that asks for an inbox.
        """
        match name.word:
            case "session" | "inputs" | "results":
                require_scope(principal, self._follow)
                session = await self._find_session(principal, name)
                await self._check_session(principal, session)
                reader = _name_reader(principal, session.owner)
                if name.word != "session":
                    packets = StreamRef(StreamKind(name.word), session.session_id)
                    return StreamGrant(packets, PacketView(), reader)
                view = FullView() if full else PlainView()
                return StreamGrant(_session(session.session_id), view, reader)
            case "messages":
                require_scope(principal, self._follow)
                return await self._grant_messages(principal, name)
            case "task":
                require_scope(principal, self._follow)
                record = await self._find_task(principal, name.id or "")
                require_operation(principal, record.kind, Method.SUBSCRIBE_TO_TASK)
                reader = _name_reader(principal, record.owner)
                return StreamGrant(_session(record.session_id), TaskView(record.task_id), reader)
            case "inbox":
                if name.id not in {None, principal.key, principal.id}:
                    raise NotFound("stream", f"inbox:{name.id}")
                require_scope(principal, FOLLOW_INBOX)
                require_inbox(principal)
                # The stream may begin with a request that this caller was just notified of.
                await self.arrivals.wait(principal.key)
                seen = FullView() if principal.paired else UnpairedView()
                return StreamGrant(StreamRef(StreamKind.INBOX, principal.key), seen)
            case "tasks" if name.id == EVERY_OWNER:
                return await self._grant_tenant(principal, f"{name.word}:{name.id}")
            case "tasks" | "jobs":
                require_scope(principal, FOLLOW)
                await self.projections.open_rows(principal.key, self.writes.clock.now_ms())
                rows = TaskRowView(principal.agents) if name.word == "tasks" else JobRowView()
                return StreamGrant(StreamRef(StreamKind(name.word), principal.key), rows)
            case _:
                assert_never(name.word)

    async def _grant_messages(self, principal: Principal, name: StreamName) -> StreamGrant:
        thread_id = name.id or ""
        thread = await self.writes.read(ThreadRecord, thread_id)
        if thread is not None:
            found = replace(name, id=thread.session_id)
            with suppress(NotFound):
                session = await self._find_session(principal, found)
                await self._check_session(principal, session)
                stream = StreamRef(StreamKind.MESSAGES, session.session_id)
                reader = _name_reader(principal, session.owner)
                return StreamGrant(stream, MessageView(thread_id), reader)
        raise NotFound("thread", thread_id)

    async def _grant_tenant(self, principal: Principal, name: str) -> StreamGrant:
        if self.oversight is None:
            raise NotFound("stream", name)
        require_scope(principal, (AccessScope.OVERSEE_TASKS,))
        await self.oversight.record_tenant_read(principal)
        tenant = name_tenant_lists(principal.tenant)
        await self.projections.watch_tenant(tenant, self.writes.clock.now_ms())
        ref = StreamRef(StreamKind.TENANT_TASKS, tenant)
        return StreamGrant(ref, TaskRowView(principal.agents), principal.key)

    async def _find_session(self, principal: Principal, name: StreamName) -> SessionRecord:
        session_id = name.id or ""
        if read_shard(session_id) is not None:
            record = await self._sessions.call(session_id, None)
            if record is not None and (
                record.owner == principal.key
                or (self.oversight and await self.oversight.find_session(principal, session_id))
            ):
                return record
        raise NotFound("stream", f"{name.word}:{session_id}")

    async def _read_session(self, session_id: str, asked: list[None]) -> list[SessionRecord | None]:
        """One read for all concurrent requests for a session."""
        record = await self.writes.read(SessionRecord, session_id)
        return [record] * len(asked)

    async def _check_session(self, principal: Principal, session: SessionRecord) -> None:
        """A session's stream contains the events of all its tasks, so the caller must be allowed to follow each."""
        if session.given and session.owner == principal.key:
            raise Forbidden(
                "a task of this session belongs to another owner; follow the others one by one",
                why="task_given",
            )
        if principal.agents is None and not principal.operations:
            return
        listed = await self.writes.log.read_session_tasks(session.session_id)
        tasks = {parsed[0] for facade, _ in listed if (parsed := parse_facade(facade))}
        records = await self.writes.read_all(TaskRecord, sorted(tasks))
        for agent in {one.agent for one in records.values()}:
            if not principal.may_use(agent, Method.SUBSCRIBE_TO_TASK):
                raise Forbidden(
                    "a task of this session may not be followed; follow the others one by one",
                    operation=Method.SUBSCRIBE_TO_TASK,
                )

    async def _find_task(self, principal: Principal, facade: str) -> TaskRecord:
        parsed = parse_facade(facade)
        if parsed is not None:
            record = await self.writes.read(TaskRecord, parsed[0])
            if record is not None and await self._may_follow(principal, record):
                return record
        raise NotFound("stream", f"task:{facade}")

    async def _may_follow(self, principal: Principal, record: TaskRecord) -> bool:
        if record.visibility is Visibility.HIDDEN or not principal.sees(record.agent):
            return False
        if record.owner == principal.key:
            return True
        return bool(self.oversight and await self.oversight.find_task(principal, record.task_id))

    @property
    def _follow(self) -> tuple[AccessScope, ...]:
        return FOLLOW if self.oversight is None else (*FOLLOW, AccessScope.OVERSEE_TASKS)


def _name_reader(principal: Principal, owner: str) -> str | None:
    return None if principal.key == owner else principal.key


@frozen
class StreamSnapshots:
    """``channels.services.Snapshots``: current read models."""

    writes: Writes
    questions: QuestionLists
    packets: PacketReads
    projections: Projections
    tasks: TaskLists

    async def read_snapshot(
        self, principal: Principal, name: StreamName, grant: StreamGrant
    ) -> JsonObject:
        """The state of a stream; the caller has read its cursor before."""
        match name.word:
            case "inbox":
                pending = await self._list_pending(principal, _LISTED)
                views: list[Json] = list(pending)
                return {"pending": views, "notices": await self._read_notices(grant.stream)}
            case "task":
                assert isinstance(grant.view, TaskView)  # noqa: S101  StreamGrants always creates this view for a task
                return {"task": await self._read_task(grant.view.task)}
            case "session":
                return await self._read_session(grant.stream.id)
            case "inputs" | "results":
                return await self._read_packets(grant)
            case "messages":
                return await self._read_packets(grant, "messages")
            case "tasks":
                return await self._list_tasks(principal, every=name.id == EVERY_OWNER)
            case "jobs":
                return await self._list_jobs(principal)
            case _:
                assert_never(name.word)

    async def _read_notices(self, inbox: StreamRef) -> list[Json]:
        """The latest notices, as events."""
        log = self.writes.log
        head = await log.read_head(inbox)
        if head is None:
            return []
        page = await log.read_page(inbox, max(0, head.sequence - _LOOKED_BACK), _LOOKED_BACK)
        said = [entry for entry in page if entry.type == EventType.CHANNEL_MESSAGE]
        return [orjson.loads(entry.data) for entry in said[-_NOTICES:]]

    async def _read_packets(self, grant: StreamGrant, word: str = "packets") -> JsonObject:
        """The last packets among the recent events of a session; ``more``: there may be earlier ones."""
        head = await self.packets.read_head(grant.stream)
        if head is None:
            return {word: [], "more": False}
        start = max(head.first - 1, head.sequence - _PACKETS_LOOKED_BACK)
        found: list[Json] = []
        after = start
        while after < head.sequence:
            _, page = await self.packets.read_resume(grant.stream, after)
            if not page:
                break
            found += [orjson.loads(entry.data) for entry in page if shows(grant.view, entry)]
            after = page[-1].sequence
        shown = found[-_LISTED:]
        return {word: shown, "more": start > 0 or len(shown) < len(found)}

    async def _read_task(self, task_id: str) -> JsonObject:
        record = await self.writes.read(TaskRecord, task_id)
        return to_wire(record) if record is not None else {}

    async def _read_session(self, session_id: str) -> JsonObject:
        record = await self.writes.read(SessionRecord, session_id)
        log = self.writes.log
        listed = await log.read_session_tasks(session_id)
        # Tasks that were not yet shown to callers are in no list, but are open.
        names = [facade for facade, _ in listed[:_LISTED]] + await log.read_open(session_id)
        parsed = (parse_facade(name) for name in names)
        tasks: list[Json] = [
            await self._read_task(task_id)
            for task_id in dict.fromkeys(one[0] for one in parsed if one)
        ]
        return {
            "session": to_wire(record) if record is not None else {},
            "tasks": tasks,
            "tasksMore": len(listed) > _LISTED,
        }

    async def _list_tasks(self, principal: Principal, *, every: bool) -> JsonObject:
        """The tasks whose status changed last; ``every``: of all owners that the principal oversees."""
        asked = ListRecords(page_size=_LISTED, owners="all" if every else "mine")
        page = await self.tasks.list_tasks(principal, asked)
        return {"rows": page["tasks"], "more": bool(page["nextPageToken"])}

    async def _list_jobs(self, principal: Principal) -> JsonObject:
        page = await self.projections.read_index(principal.key, JOBS, None, _LISTED + 1)
        records = await self.writes.read_all(SessionRecord, (name for name, _ in page[:_LISTED]))
        jobs = map(show_job, records.values())
        rows: list[Json] = [to_wire(job) for job in jobs if job is not None]
        return {"rows": rows, "more": len(page) > _LISTED}

    async def read_pending(
        self, principal: Principal, limit: int
    ) -> tuple[tuple[JsonObject, ...], bool]:
        """Open requests from their own records, and whether there are more; empty without the right to read them."""
        may_read = any(scope in principal.scopes for scope in FOLLOW_INBOX)
        if not (may_read and principal.has_inbox):
            return (), False
        found = await self._list_pending(principal, limit + 1)
        return tuple(found[:limit]), len(found) > limit

    async def _list_pending(self, principal: Principal, limit: int) -> list[JsonObject]:
        return (await self.questions.find(principal, ListActions(limit))).views

    async def read_withdrawn(
        self, before: Principal, now: Principal
    ) -> Sequence[tuple[str, WithdrawalReason]]:
        """Open requests that a principal could see or answer ``before`` and cannot ``now``."""
        return await self.questions.find_withdrawn(before, now)


def _session(session_id: str) -> StreamRef:
    return StreamRef(StreamKind.SESSION, session_id)
