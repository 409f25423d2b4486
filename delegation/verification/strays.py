"""Stray rows: rows in lists and inboxes whose record is missing or elsewhere, since its shard has lost its tail.

A task or a question and the lists that name it are in different shards. A failover that loses the record leaves the
row, and nothing in the feed of the record's shard mentions it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import RecordDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, parse_facade, read_shard
from passerelle.core.index_changes import JOBS, SCHEDULES, SESSIONS, UNSEEN, find_part, make_row
from passerelle.core.machine import read_loaded
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.delegation.verification.rebuild import read_owed
from passerelle.delegation.verification.report import Problem
from passerelle.protocol.concurrency import join_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.machine import Record
    from passerelle.store.keys import OwnerList
    from passerelle.store.store import Store

_PAGE: Final = 256
_AT_ONCE: Final = 16
"""Lists that are read concurrently: there may be as many as callers, and most are short."""

Since: TypeAlias = Mapping[Shard, int]
"""Shards whose rows are checked, each with the earliest time of a row, in ms."""

EVERYTHING: Final[Since] = dict.fromkeys(ALL_SHARDS, 0)


@frozen
class StrayRow:
    """A row of ``owner``: in a list of tasks, or (``place`` None) a pending question in the inbox."""

    owner: str
    place: OwnerList | None
    subject: str
    detail: str

    @property
    def problem(self) -> Problem:
        """The row as a difference between views and streams."""
        return Problem("stray_row", self.owner, self.subject, self.detail)


async def find_stray_rows(store: Store, since: Since = EVERYTHING) -> list[StrayRow]:
    """Finds rows that are stray in two checks, a moment apart: a row may be written before the append it comes from.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    lists, owners = await store.inspection.list_views()
    checks = [
        *(partial(_check_list, store, place, since) for place in lists),
        *(partial(_check_inbox, store, owner, since) for owner in owners),
    ]
    found: list[StrayRow] = []
    for part in in_chunks(checks, _AT_ONCE):
        for rows in await join_all(check() for check in part):
            found += rows
    return [one for one in found if await still_strays(store, one)]


async def repair_stray(store: Store, stray: StrayRow) -> None:
    """Removes the row, and writes the row of the task that its record gives.

    Raises:
        StoreUnavailable: the store does not accept it.
    """
    if stray.place is None:
        await store.views.drop_question(stray.owner, stray.subject)
        return
    await store.views.drop_row(stray.place, stray.subject)
    record = (await _load(store, [_name_task(stray.subject)])).get(stray.subject)
    if isinstance(record, TaskRecord) and record.owner == stray.owner:
        await store.views.put_row(make_row(record))


async def still_strays(store: Store, stray: StrayRow) -> bool:
    """Whether a row is still stray at a second check, and the relay is not about to correct it."""
    place, subject = stray.place, stray.subject
    named = (
        (subject, EntityRef(EntityKind.ACTION, subject)) if place is None else _name(place, subject)
    )
    record = (await _load(store, [named])).get(subject)
    session = _find_session(record)
    if session is not None and await read_owed(store, session):
        return False
    if place is None:
        return any(one == stray for one in await _check_inbox(store, stray.owner, EVERYTHING))
    # Read after the pending feed rows: a row that was relayed since is correct now.
    parts = await store.views.find_parts(stray.owner, place.agent, subject)
    return place.part in parts and _judge(place, subject, record) is not None


def _find_session(record: Record | None) -> str | None:
    match record:
        case TaskRecord():
            return record.session_id
        case ActionRecord():
            return record.scope.session_id
        case _:
            return None


async def _check_list(store: Store, place: OwnerList, since: Since) -> list[StrayRow]:
    found: list[StrayRow] = []
    before: tuple[int, str] | None = None
    while True:
        page = await store.projections.read_index(
            place.owner, place.agent, before, _PAGE, (place.part,)
        )
        wanted = [name for name, at_ms in page if _is_wanted(name, at_ms, since)]
        records = await _load(store, [_name(place, name) for name in wanted])
        for name in [name for name in wanted if name in records]:
            detail = _judge(place, name, records[name])
            if detail is not None:
                found.append(StrayRow(place.owner, place, name, detail))
        if len(page) < _PAGE or page[-1][1] < min(since.values()):
            return found
        before = (page[-1][1], page[-1][0])


def _is_wanted(name: str, at_ms: int, since: Since) -> bool:
    shard = read_shard(name.partition("~")[0])
    return shard is None or (shard in since and at_ms >= since[shard])


def _judge(place: OwnerList, name: str, record: Record | None) -> str | None:
    """What is wrong with a row, or None."""
    if record is None:
        return f"is listed ({place.part}) and has no record"
    if not isinstance(record, TaskRecord) or record.status is Status.ARCHIVED:
        return None
    row = make_row(record)
    # The row of an earlier exposure stays where that ended, and an unseen task may have been retried.
    if row.facade != name or place.agent != row.agent or place.agent == UNSEEN:
        return None
    if row.owner != place.owner or row.part == place.part:
        return None
    return f"is in the list of {place.part} tasks and is {find_part(record)}"


async def _check_inbox(store: Store, owner: str, since: Since) -> list[StrayRow]:
    pending = [name for name, _ in await store.projections.read_inbox(owner)]
    wanted = [name for name in pending if read_shard(name) in since]
    refs = {name: EntityRef(EntityKind.ACTION, name) for name in wanted}
    records = await _load(store, refs.items())
    found: list[StrayRow] = []
    for name, record in records.items():
        if record is None:
            found.append(StrayRow(owner, None, name, "is pending in an inbox and has no record"))
        elif isinstance(record, ActionRecord) and not record.is_open:
            found.append(StrayRow(owner, None, name, "is pending in an inbox and is closed"))
    return found


def _name(place: OwnerList, name: str) -> tuple[str, EntityRef | None]:
    if place.agent in {SESSIONS, SCHEDULES, JOBS}:
        return name, EntityRef(EntityKind.SESSION, name) if read_shard(name) else None
    return _name_task(name)


def _name_task(name: str) -> tuple[str, EntityRef | None]:
    parsed = parse_facade(name)
    return name, None if parsed is None else EntityRef(EntityKind.TASK, parsed[0])


async def _load(
    store: Store, named: Iterable[tuple[str, EntityRef | None]]
) -> dict[str, Record | None]:
    """Records by their names in lists; unreadable ones are missing here, since they are reported elsewhere."""
    refs = {name: ref for name, ref in named if ref is not None}
    records: dict[EntityRef, Record | None] = {}
    wanted = list(dict.fromkeys(refs.values()))
    for part in in_chunks(wanted, _PAGE):
        for loaded in await store.log.load(part):
            with suppress(RecordDamaged):
                records[loaded.ref] = read_loaded(loaded)
    return {name: records[ref] for name, ref in refs.items() if ref in records}
