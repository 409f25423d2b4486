"""Sessions of a caller: opened by name, described, listed (EVC-1).

A session that a message opened is listed once it has a visible task; one that was opened or named by command is listed
at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.task_changes import check_version
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.index_changes import SESSIONS, UNSEEN
from passerelle.core.payloads.conversation import SessionUpdated
from passerelle.core.session import machine
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.requests import SessionChanged
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.listed_sessions import create_session, index_session
from passerelle.runtime.records.task_lanes import CHUNK
from passerelle.runtime.records.task_pages import read_token, write_token
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from passerelle.core.decision import Decision, Held
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import (
        DescribeSession,
        ListSessions,
        OpenSession,
    )
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.task_lanes import TaskListRow
    from passerelle.runtime.records.task_lists import TaskLists


@frozen
class Sessions:
    """Opens, changes and lists sessions."""

    records: TaskLists

    async def open(
        self, principal: Principal, command: OpenSession, idem: str | None
    ) -> SessionChanged:
        """Opens a session, once per idempotency key.

        Raises:
            IdempotencyConflict: the key was used for another request.
        """
        held, repeated = await create_session(
            self.records.writes, self.records.projections, principal, command, idem
        )
        return _render(held, repeated=repeated)

    async def describe(
        self, principal: Principal, command: DescribeSession, idem: str | None
    ) -> SessionChanged:
        """Changes title and labels; writes ``session.updated`` if anything differs.

        Raises:
            NotFound, VersionMismatch, IdempotencyConflict: nothing is changed.
            InvalidInput: it names nothing to change.
        """
        if command.title is None and not command.labels:
            raise InvalidInput("title", "title or labels are required")
        held = await self.records.find_session(principal, command.session_id)
        writes, once = self.records.writes, make_once(principal, command, idem)
        ref = EntityRef(EntityKind.SESSION, command.session_id)
        if await once.find(writes.log, ref.shard) is not None:
            return _render(held, repeated=True)

        def body(decision: Decision) -> AppendOptions:
            check_version(command.version, decision.version(ref))
            now = decision.state(ref)
            if isinstance(now, SessionRecord) and _differs(now, command):
                updated = SessionUpdated(title=command.title, labels=command.labels)
                decision.add(machine.decide(now, machine.RelabelSession(updated)))
            return AppendOptions(idem=once.remember(ref.id))

        written = await writes.change(ref.id, [ref], body)
        await index_session(self.records.projections, written.held[ref])
        return _render(written.held[ref], repeated=written.repeated is not None)

    async def list_sessions(self, principal: Principal, query: ListSessions) -> JsonObject:
        """One page: ``sessions``, and ``nextPageToken`` if there may be more.

        Raises:
            InvalidInput: an invalid page token.
        """
        found: list[Json] = []
        last: TaskListRow | None = None
        async for row, session_id in self._walk(principal, read_token(query.page_token)):
            if len(found) == query.page_size:
                return {"sessions": found, "nextPageToken": write_token(last) if last else ""}
            last = row
            newest = await self.records.writes.log.read_session_tasks(session_id)
            # A session is listed at the row of its newest task; the row of its own id counts only while it has no task.
            if row[1] != (newest[0][0] if newest else session_id):
                continue
            try:
                held = await self.records.find_session(principal, session_id)
            except NotFound:
                continue
            changed = _render(held)
            summary: JsonObject = {"activeAt": format_ms(row[0]), "tasks": len(newest)}
            found.append({**changed.session, **summary, "version": changed.version})
        return {"sessions": found, "nextPageToken": ""}

    async def _walk(
        self, principal: Principal, before: TaskListRow | None
    ) -> AsyncIterator[tuple[TaskListRow, str]]:
        """Rows with the session that each belongs to, newest first."""
        batch: list[TaskListRow] = []
        async for row in self.records.list_all(principal, before, also=(UNSEEN, SESSIONS)):
            batch.append(row)
            if len(batch) == CHUNK:
                for one in await self._name_sessions(batch):
                    yield one
                batch = []
        for one in await self._name_sessions(batch):
            yield one

    async def _name_sessions(self, rows: list[TaskListRow]) -> list[tuple[TaskListRow, str]]:
        tasks = {
            row: held.record
            for row, held in await self.records.load([row for row in rows if not _is_session(row)])
        }
        named: list[tuple[TaskListRow, str]] = []
        for row in rows:
            record = tasks.get(row)
            if _is_session(row):
                named.append((row, row[1]))
            elif isinstance(record, TaskRecord):
                named.append((row, record.session_id))
        return named


def _is_session(row: TaskListRow) -> bool:
    return row[1].startswith("se_")


def _differs(now: SessionRecord, command: DescribeSession) -> bool:
    if command.title is not None and command.title != now.title:
        return True
    return any(now.labels.get(name, "") != text for name, text in command.labels.items())


def _render(held: Held, *, repeated: bool = False) -> SessionChanged:
    session = to_wire(held.record) if isinstance(held.record, SessionRecord) else {}
    return SessionChanged(session, held.stamp.version, repeated)
