"""Rewrites what is derived from the records of a session from its stream: lists, open set, inboxes (I10).

Facts and records are never touched. A gateway may write meanwhile, so the session is compared again after the writes,
until nothing differs or nothing was written during the comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.audience import list_readers
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose, parse_facade, shard_of
from passerelle.core.index_changes import UNSEEN, is_open
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.projections import project_inbox, read_entity, sees_question
from passerelle.delegation.verification.rebuild import (
    compare_rebuilt,
    digest_tasks,
    expect_all_rows,
    expect_rows,
    list_former,
    read_owed,
)
from passerelle.delegation.verification.stream import replay_session
from passerelle.store.keys import OwnerList

if TYPE_CHECKING:
    from passerelle.core.ports.projections import InboxRow
    from passerelle.delegation.verification.report import Problem
    from passerelle.delegation.verification.stream import SessionReplay
    from passerelle.store.store import Store

_LOOKS: Final = 8


@frozen
class SessionRepair:
    """What differed in a session at first, and what still differs."""

    found: tuple[Problem, ...] = ()
    left: tuple[Problem, ...] = ()
    last: int = 0
    """The last sequence that was read."""
    sha256: str = ""
    """Of the canonical list of its tasks, built from its facts alone."""


async def repair_session(store: Store, session: str, *, has_lost: bool = False) -> SessionRepair:
    """Compares what is derived from a session, and rewrites it where something differs.

    ``has_lost``: rewrites in any case, including what no comparison covers. A session whose beginning is not in its
    stream is left alone.

    Raises:
        StoreUnavailable: the rest is left to a retry.
    """
    found: tuple[Problem, ...] | None = None
    for tries in range(1, _LOOKS + 1):
        replay = await replay_session(store.log, session)
        if replay is None or not replay.is_whole:
            break
        left = tuple(await compare_rebuilt(store, replay))
        is_due = bool(left) or (has_lost and found is None)
        found = left if found is None else found
        if is_due:
            await _write_anew(store, replay)
            if await store.log.read_head(StreamRef(StreamKind.SESSION, session)) == replay.head:
                left, is_due = tuple(await compare_rebuilt(store, replay)), False
        if not is_due or tries == _LOOKS:
            return SessionRepair(found, left, replay.head.sequence, digest_tasks(replay))
    return SessionRepair()


async def _write_anew(store: Store, replay: SessionReplay) -> None:
    tasks = {one.task_id: one for one in replay.states.values() if isinstance(one, TaskRecord)}
    await _write_session(store, replay, tasks)
    for row in expect_all_rows(replay, tasks):
        await store.views.put_row(row)
    for record, owner in list_former(replay, tasks):
        facade = expose(TaskId(record.task_id), record.exposure)
        for agent in (UNSEEN, record.kind):
            await store.views.drop_row(OwnerList(owner, agent, "open"), facade)
    if not any(row.look for row in await read_owed(store, replay.session)):
        await _write_inboxes(store, replay)


async def _write_session(store: Store, replay: SessionReplay, tasks: dict[str, TaskRecord]) -> None:
    rebuilt = {ref.id for ref, record in replay.states.items() if is_open(record)}
    stored = frozenset(await store.log.read_open(replay.session))
    await store.views.open_in_session(replay.session, rebuilt - stored)
    await store.views.close_in_session(replay.session, stored - rebuilt)
    for record in tasks.values():
        for row in expect_rows(record):
            await store.views.list_in_session(replay.session, row.facade, row.at_ms)
    for facade, _ in await store.log.read_session_tasks(replay.session):
        parsed = parse_facade(facade)
        if parsed is None or parsed[0] not in tasks:
            await store.views.unlist_in_session(replay.session, facade)


async def _write_inboxes(store: Store, replay: SessionReplay) -> None:
    for record in replay.states.values():
        if not isinstance(record, ActionRecord):
            continue
        name = record.request.action_id
        wanted: list[InboxRow] = []
        for owner in list_readers(record):
            pending = {one for one, _ in await store.projections.read_inbox(owner)}
            if record.is_open != (name in pending):
                wanted += [row for row in _find_rows(replay, record) if row.owner == owner]
            if name in pending and record.was_settled:
                await store.views.drop_question(owner, name)
            if record.state != "pending" and not record.was_settled:
                at_ms = parse_ms(record.closed_at)
                await store.views.list_closed(owner, record.state, name, at_ms)
        for row in wanted:
            await store.projections.put_anew(shard_of(replay.session), shard_of(row.owner), [row])


def _find_rows(replay: SessionReplay, record: ActionRecord) -> list[InboxRow]:
    """The rows of the last event that opens or closes a question."""
    ref = EntityRef(EntityKind.ACTION, record.request.action_id)
    for entry in reversed(replay.entries):
        if sees_question(entry.type) and read_entity(entry, EntityKind.ACTION) == ref.id:
            rows = project_inbox(entry, record)
            if any(row.action is not None and (row.view is None) != record.is_open for row in rows):
                return rows
    return []
