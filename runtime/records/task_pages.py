"""Lists of a caller's tasks by status time, newest first, in pages that stay stable while the list changes.

With a context the session's own list is read, without one the owner index. It contains only tasks that the caller may
see: its own, shown ones, of the requested agent. A page token names the last row by time and id. A page ends early once
its content is ``PAGE_BYTES``: it is in memory as a whole. Large tasks are read one at a time in the whole process: each
is in memory with its artifacts, even if the page has none.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.content import leave_out_artifacts
from passerelle.a2a_mapping.frames import render_page
from passerelle.a2a_mapping.history import cut_history
from passerelle.a2a_mapping.long_task import measure_artifact
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import CANCELED, COMPLETED, FAILED, REJECTED
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import InvalidInput
from passerelle.core.ids import parse_facade
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import LISTED, TERMINAL
from passerelle.core.wire.times import parse_ms
from passerelle.protocol.concurrency import join_all
from passerelle.runtime.records.exposures import view_exposure
from passerelle.runtime.records.ownership import may_see
from passerelle.runtime.records.places import list_places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from passerelle.core.commands import ListTasks
    from passerelle.core.decision import Held
    from passerelle.core.ports.projections import IndexPart, Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.writes import Writes

PAGE_BYTES: Final = 16 * 1024 * 1024
"""Content of the artifacts and messages of one page, which has one task at least."""
LARGE_BYTES: Final = 1024 * 1024
"""A task with more content of artifacts is read while no other one is."""
_CHUNK: Final = 100
_ENDS: Final[Mapping[str, IndexPart]] = {
    COMPLETED: "completed",
    CANCELED: "canceled",
    FAILED: "failed",
    REJECTED: "rejected",
}
"""The part of the owner's list for each final state."""


@dataclass(slots=True)
class Listing:
    """Lists tasks."""

    writes: Writes
    projections: Projections
    contents: Contents
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1), init=False)

    async def list_tasks(self, principal: Principal, query: ListTasks) -> JsonObject:
        """One page in A2A form: ``tasks, nextPageToken, pageSize, totalSize``.

        Raises:
            InvalidInput: the page token is not from this list.
        """
        if query.context_id is not None:
            return await self._list_context(principal, query, query.context_id)
        if query.state is not None:
            return await self._list_state(principal, query, query.state)
        return await self._list_index(principal, query)

    async def _list_context(
        self, principal: Principal, query: ListTasks, context_id: str
    ) -> JsonObject:
        """A page of the tasks of a conversation."""
        before = read_token(query.page_token)
        page, total = _Page(query), 0
        last: tuple[int, str] | None = None
        more = False
        rows = await self._context_rows(principal, context_id)
        async for row, held in self._walk(principal, query, rows):
            is_behind = before is None or row < before
            wanted = is_behind and not more and page.has_room(held)
            # Content is read for the tasks of this page; a state filter requires it for all others as well.
            task = await self._read(query, held) if wanted or query.state is not None else None
            if task is None and (wanted or query.state is not None):
                continue
            total += 1
            more = more or (is_behind and not wanted)
            if wanted and task is not None:
                page.add(task)
                last = row
        token = write_token(last) if more and last else ""
        return render_page(page.tasks, query.page_size, total, token)

    async def _list_state(self, principal: Principal, query: ListTasks, state: str) -> JsonObject:
        """A page of tasks in one state: ended ones are listed by final state, open ones are read and filtered.

        For a final state open tasks are read too: a task that has just ended is briefly still listed as open (LT-7).
        """
        before = read_token(query.page_token)
        part = _ENDS.get(state)
        matches = await self._match_open(principal, query, ended=part is not None)
        total = len(matches)
        rows = [row for row in matches if before is None or row < before]
        if part is not None:
            key, limit = principal.key, query.page_size + 1
            listed = await self.projections.read_index(key, query.agent, before, limit, [part])
            rows += [(at_ms, facade) for facade, at_ms in listed if _is_after(query, at_ms)]
            total += await self.projections.count_index(key, query.agent, query.after_ms, [part])
        rows = sorted(set(rows), reverse=True)
        wanted = [(facade, at_ms) for at_ms, facade in rows[: query.page_size]]
        end = rows[query.page_size - 1] if len(rows) > query.page_size else None
        page, last = _Page(query), None
        for row, held in await self._load(principal, query, wanted):
            if not page.has_room(held):
                end = last
                break
            task = await self._read(query, held)
            if task is not None:
                page.add(task)
            last = row
        token = write_token(end) if end else ""
        return render_page(page.tasks, query.page_size, total, token)

    async def _match_open(
        self, principal: Principal, query: ListTasks, *, ended: bool
    ) -> list[tuple[int, str]]:
        """The tasks of the open part of the list that are in the requested state, by their current time."""
        matches: list[tuple[int, str]] = []
        before: tuple[int, str] | None = None
        # They would all be in memory at once.
        query = replace(query, include_artifacts=False, history_length=0)
        while True:
            key = principal.key
            rows = await self.projections.read_index(key, query.agent, before, _CHUNK, ["open"])
            loaded = await self._load(principal, query, rows)
            fitting = [(facade, held) for (_, facade), held in loaded if _has_ended(held) is ended]
            found = await join_all(self._matches(query, held) for _, held in fitting)
            matches += [
                (_read_time(held), facade)
                for (facade, held), is_found in zip(fitting, found, strict=True)
                if is_found
            ]
            if len(rows) < _CHUNK:
                return matches
            before = (rows[-1][1], rows[-1][0])

    async def _list_index(self, principal: Principal, query: ListTasks) -> JsonObject:
        """A page from the owner's index: only the page's tasks are read, the rest is counted in the index."""
        last = read_token(query.page_token)
        page = _Page(query)
        more, is_full = True, False
        while more and not is_full and len(page.tasks) < query.page_size:
            wanted = query.page_size - len(page.tasks)
            rows = await self.projections.read_index(principal.key, query.agent, last, wanted + 1)
            if query.after_ms is not None:
                rows = [row for row in rows if _is_after(query, row[1])]
            more = len(rows) > wanted
            ends = (rows[:wanted][-1][1], rows[:wanted][-1][0]) if rows else last
            for row, held in await self._load(principal, query, rows[:wanted]):
                if not page.has_room(held):
                    more = is_full = True
                    break
                task = await self._read(query, held)
                if task is not None:
                    page.add(task)
                last = row
            if not is_full:
                last = ends
        total = await self.projections.count_index(principal.key, query.agent, query.after_ms)
        token = write_token(last) if more and last else ""
        return render_page(page.tasks, query.page_size, total, token)

    async def _context_rows(self, principal: Principal, context_id: str) -> list[tuple[str, int]]:
        for place in list_places(principal, context_id):
            thread = (await self.writes.load_one(place.thread)).record
            if isinstance(thread, ThreadRecord) and thread.owner == principal.key:
                return await self.writes.log.read_session_tasks(thread.session_id)
        return []

    async def _walk(
        self, principal: Principal, query: ListTasks, rows: list[tuple[str, int]]
    ) -> AsyncIterator[tuple[tuple[int, str], Held]]:
        """The matching tasks as (time, facade id) with their entities, newest first, read in batches."""
        for part in in_chunks(rows, _CHUNK):
            for row in await self._load(principal, query, part):
                yield row

    async def _load(
        self, principal: Principal, query: ListTasks, rows: list[tuple[str, int]]
    ) -> list[tuple[tuple[int, str], Held]]:
        parsed = [
            ((at_ms, facade), EntityRef(EntityKind.TASK, task[0]), task[1])
            for facade, at_ms in rows
            if _is_after(query, at_ms) and (task := parse_facade(facade)) is not None
        ]
        held = await self.writes.load([ref for _, ref, _ in parsed])
        seen = ((row, view_exposure(held[ref], exposure)) for row, ref, exposure in parsed)
        return [
            (row, one)
            for row, one in seen
            if one is not None and _fits(one.record, principal, query)
        ]

    async def _matches(self, query: ListTasks, held: Held) -> bool:
        return await self._read(query, held) is not None

    async def _read(self, query: ListTasks, held: Held) -> JsonObject | None:
        if _measure(held) <= LARGE_BYTES:
            return await self._read_now(query, held)
        async with self._turn:
            return await self._read_now(query, held)

    async def _read_now(self, query: ListTasks, held: Held) -> JsonObject | None:
        if not isinstance(held.record, TaskRecord):
            return None
        task = await self.contents.read_task(held.record, held.fields)
        if task is None or not _has_state(task, query.state):
            return None
        task = cut_history(task, query.history_length)
        return task if query.include_artifacts else leave_out_artifacts(task)


@dataclass(slots=True)
class _Page:
    """The tasks of a page so far, and the bytes of their content."""

    query: ListTasks
    tasks: list[JsonObject] = field(default_factory=list["JsonObject"])
    size: int = 0

    def has_room(self, held: Held) -> bool:
        """Whether the page takes this task. Its record has the size of its artifacts, so it need not be read."""
        if not self.tasks:
            return True
        size = self.size + (_measure(held) if self.query.include_artifacts else 0)
        return len(self.tasks) < self.query.page_size and size <= PAGE_BYTES

    def add(self, task: JsonObject) -> None:
        """Adds a task that was read."""
        self.tasks.append(task)
        content = (*objects_at(task, "artifacts"), *objects_at(task, "history"))
        self.size += sum(map(measure_artifact, content))


def _measure(held: Held) -> int:
    """Bytes of the artifacts of a task."""
    if not isinstance(held.record, TaskRecord):
        return 0
    return sum(artifact.size for artifact in held.record.artifacts)


def _fits(record: object, principal: Principal, query: ListTasks) -> bool:
    return (
        isinstance(record, TaskRecord)
        and record.shown
        and record.visibility in LISTED
        and may_see(principal, record)
        and record.kind == query.agent
        and (query.context_id is None or record.scope.context_id == query.context_id)
    )


def _has_state(task: JsonObject, state: str | None) -> bool:
    return state is None or text_at(object_at(task, "status"), "state") == state


def _is_after(query: ListTasks, at_ms: int) -> bool:
    return query.after_ms is None or at_ms > query.after_ms


def _read_time(held: Held) -> int:
    """The time that the list will have once the relay has carried the change."""
    return parse_ms(held.record.status_at) if isinstance(held.record, TaskRecord) else 0


def _has_ended(held: Held) -> bool:
    return isinstance(held.record, TaskRecord) and held.record.status in TERMINAL


def write_token(row: tuple[int, str]) -> str:
    """A page token: opaque to callers."""
    return base64.urlsafe_b64encode(f"{row[0]}.{row[1]}".encode()).decode().rstrip("=")


def read_token(token: str | None) -> tuple[int, str] | None:
    """The row that a token names; None for no token.

    Raises:
        InvalidInput: the token is not from this list.
    """
    if not token:
        return None
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        at_ms, _, facade = text.partition(".")
        return int(at_ms), facade
    except ValueError:
        raise InvalidInput("pageToken", "it is not a token of this list") from None
