"""The recovery state of a device that resumes its streams: one of six states, from the stored records (CHN-12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.paired_mark import is_view_for_paired
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.read_models.channels import choose_recovery, find_recovery
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.channel import Recovery, Resumption
    from passerelle.core.ports.projections import Projections
    from passerelle.runtime.records.writes import Writes

_LOOKED_AT: Final = 50
"""Tasks of a session that are read: the newest ones, and the open ones."""


@frozen
class Recoveries:
    """Determines recovery states of streams."""

    writes: Writes
    projections: Projections

    async def find(
        self, owner: str, streams: Iterable[Resumption], *, paired: bool = False
    ) -> Recovery:
        """The dominant state among all streams; ``from_sequence`` of each is the device's position."""
        return choose_recovery([await self.find_one(owner, one, paired=paired) for one in streams])

    async def find_one(self, owner: str, stream: Resumption, *, paired: bool = False) -> Recovery:
        """The state of one stream of a principal (by key), for a device that is ``paired`` or not."""
        word, _, name = stream.stream.partition(":")
        if word == "messages":
            name = await self._find_session(name)
        match word:
            case "inbox":
                waiting = await self.projections.read_inbox(owner)
                seen = any(paired or not is_view_for_paired(view) for _, view in waiting)
                return "waiting" if seen else "idle"
            case "tasks" | "jobs":
                return "idle"
            case "task":
                parsed = parse_facade(name)
                refs = [EntityRef(EntityKind.TASK, parsed[0])] if parsed else []
            case _:
                if not await self._exists(owner, name):
                    return "archived_or_missing"
                refs = await self._list_tasks(name)
        tasks = await self._load(owner, refs)
        if word == "task" and not tasks:
            return "archived_or_missing"
        now_ms, known = self.writes.clock.now_ms(), stream.from_sequence
        return choose_recovery(find_recovery(one, known, now_ms, archive) for one, archive in tasks)

    async def _find_session(self, thread: str) -> str:
        """The session of a thread; empty if there is no such thread."""
        record = await self.writes.read(ThreadRecord, thread)
        return record.session_id if record is not None else ""

    async def _exists(self, owner: str, session: str) -> bool:
        record = await self.writes.read(SessionRecord, session)
        return record is not None and record.owner == owner

    async def _list_tasks(self, session: str) -> list[EntityRef]:
        newest = await self.writes.log.read_session_tasks(session)
        names = [facade for facade, _ in newest[:_LOOKED_AT]]
        names += (await self.writes.log.read_open(session))[:_LOOKED_AT]
        parsed = (parse_facade(name) for name in names)
        return [*dict.fromkeys(EntityRef(EntityKind.TASK, one[0]) for one in parsed if one)]

    async def _load(self, owner: str, refs: list[EntityRef]) -> list[tuple[TaskRecord, str | None]]:
        """Tasks of the owner, each with the archive reference of its session if that is archived."""
        held = await self.writes.load(refs)
        records = ((one.record, one.archive) for one in held.values())
        return [
            (one, archive)
            for one, archive in records
            if isinstance(one, TaskRecord) and one.owner == owner
        ]
