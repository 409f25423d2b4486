"""Reads list streams: a note names the row that changed, and its record gives the row's current values (TR-16).

Of several changes of a row in one page only the last is shown. A follower reads at most four pages a second, so no row
is shown more often.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.ports.log import LISTS, StreamKind
from passerelle.core.principal import name_tenant_lists
from passerelle.core.read_models.jobs import show_job
from passerelle.core.read_models.list_rows import JOB_ROW, NO_ROW, TASK_ROW
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import LISTED
from passerelle.core.wire.codec import to_wire
from passerelle.runtime.records.task_lists import summarize
from passerelle.runtime.records.writes import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.batch import Loaded
    from passerelle.core.ports.log import Entry, Head, StreamRef
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.packet_reads import PacketReads

_KINDS: Final = {TASK_ROW: EntityKind.TASK, JOB_ROW: EntityKind.SESSION}


@frozen
class RowReads:
    """``channels.follower.StreamReads``: list rows are built on read; other streams are read through ``below``."""

    below: PacketReads

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head of a stream."""
        return await self.below.read_head(stream)

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """The head, then a page, in this order."""
        head, entries = await self.below.read_resume(stream, after, limit)
        if stream.kind not in LISTS or not entries:
            return head, entries
        notes = [cast("JsonObject", orjson.loads(one.data)) for one in entries]
        last = {str(note.get("name")): place for place, note in enumerate(notes)}
        shown = {place: _find_ref(notes[place]) for place in last.values()}
        refs = dict.fromkeys(ref for ref in shown.values() if ref is not None)
        loaded = (
            {one.ref: one for one in await self.below.contents.log.load([*refs])} if refs else {}
        )
        return head, [
            _show(stream, entry, note, loaded, shown.get(place))
            for place, (entry, note) in enumerate(zip(entries, notes, strict=True))
        ]


def _find_ref(note: JsonObject) -> EntityRef | None:
    kind, name = _KINDS.get(str(note.get("type"))), str(note.get("name"))
    if kind is EntityKind.TASK:
        parsed = parse_facade(name)
        return EntityRef(kind, parsed[0]) if parsed else None
    return None if kind is None else EntityRef(kind, name)


def _show(
    stream: StreamRef,
    entry: Entry,
    note: JsonObject,
    loaded: Mapping[EntityRef, Loaded],
    ref: EntityRef | None,
) -> Entry:
    found = None if ref is None else loaded.get(ref)
    rendered = None if found is None else _render_row(stream, note, found)
    if rendered is None:
        return replace(entry, type=NO_ROW, data=b"{}", frame=None, facade=None)
    whole = {"sequence": entry.sequence, **note, **rendered}
    return replace(entry, data=orjson.dumps(whole), frame=None, facade=None)


def _render_row(stream: StreamRef, note: JsonObject, found: Loaded) -> JsonObject | None:
    """The current row; None if followers may not see it, or its task has another name now."""
    record = read_record(found)
    match record:
        case TaskRecord() if _is_of(stream, record):
            if record.visibility not in LISTED:
                return None
            row = summarize(record, found.stamp.version, found.archive)
            if row["taskId"] != note.get("name"):
                return None  # the task continues as its next exposure, which has its own row
            if stream.kind is StreamKind.TENANT_TASKS:
                row = {**row, "owner": record.scope.principal}
            return {"agent": record.agent, "row": row}
        case SessionRecord() if record.owner == stream.id:
            job = show_job(record)
            return None if job is None else {"row": to_wire(job)}
        case _:
            # It was transferred to another owner, or is gone.
            return {"gone": True}


def _is_of(stream: StreamRef, record: TaskRecord) -> bool:
    if stream.kind is StreamKind.TENANT_TASKS:
        return name_tenant_lists(record.scope.tenant) == stream.id
    return record.owner == stream.id
