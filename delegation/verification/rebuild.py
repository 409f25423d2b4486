"""Rebuilds what is derived from records from the stream alone, and compares it (I10): read models, lists, inboxes.

Rows that the relay has not delivered yet are pending, not missing. A relay repeats the feed by itself, so a difference
is a fault, or a loss that is older than the feed. Nothing is repaired here (``repair.py``).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from passerelle.core.approval.audience import list_readers
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import RecordDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose, parse_facade
from passerelle.core.index_changes import (
    SESSIONS,
    UNSEEN,
    is_open,
    list_rows,
    list_session,
)
from passerelle.core.machine import read_loaded
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.principal import Principal
from passerelle.core.read_models.tasks import show_tasks
from passerelle.core.read_models.thread import show_thread
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_bytes, to_wire
from passerelle.delegation.verification.report import Problem
from passerelle.runtime.records.lag import RELAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.ports.projections import FeedRow, IndexRow
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.verification.stream import SessionReplay
    from passerelle.store.store import Store

_FEED_PAGE = 512


async def compare_rebuilt(store: Store, replay: SessionReplay) -> list[Problem]:
    """Compares everything that is derived from one whole session with what its stream gives."""
    tasks = {one.task_id: one for one in replay.states.values() if isinstance(one, TaskRecord)}
    listed = await _list_session(store, replay.session)
    owed = await read_owed(store, replay.session)
    return [
        *_compare_open(replay, listed.open_things),
        *_compare_models(replay, tasks, listed.tasks),
        *await _compare_index(store, replay, tasks, owed),
        *await _compare_given(store, replay, tasks, owed),
        *await _compare_inboxes(store, replay, owed),
    ]


@frozen
class _Listed:
    open_things: frozenset[str]
    tasks: frozenset[str]


async def _list_session(store: Store, session: str) -> _Listed:
    """The names in the lists of a session, through which readers find its tasks."""
    named = [facade for facade, _ in await store.log.read_session_tasks(session)]
    still_open = await store.log.read_open(session)
    parsed = (parse_facade(name) for name in (*named, *still_open))
    return _Listed(frozenset(still_open), frozenset(str(one[0]) for one in parsed if one))


def _compare_open(replay: SessionReplay, stored: frozenset[str]) -> Iterator[Problem]:
    rebuilt = {ref.id for ref, record in replay.states.items() if is_open(record)}
    for name in sorted(rebuilt ^ stored):
        detail = (
            "is open and not in the set" if name in rebuilt else "is in the set and is not open"
        )
        yield Problem("open_set", replay.session, name, detail)


def _compare_models(
    replay: SessionReplay, tasks: dict[str, TaskRecord], listed: frozenset[str]
) -> Iterator[Problem]:
    """Compares the models of the session and of its threads: from the lists, and from the stream."""
    wanted = {name for name, record in tasks.items() if is_open(record) or expect_rows(record)}
    for name in sorted(listed - tasks.keys()):
        yield Problem("stray_row", replay.session, name, "is listed and has no facts")
    rebuilt = [tasks[name] for name in sorted(wanted | (listed & tasks.keys()))]
    found = {one.task_id: one for one in _read_tasks(replay)}
    stored = [found[one.task_id] for one in rebuilt if one.task_id in listed & found.keys()]
    pairs: list[tuple[str, JsonObject, JsonObject]] = [
        (
            replay.session,
            to_wire(show_tasks(replay.session, replay.head.sequence, stored, 0)),
            to_wire(show_tasks(replay.session, replay.head.sequence, rebuilt, 0)),
        )
    ]
    for record in replay.states.values():
        if isinstance(record, ThreadRecord):
            one = to_wire(show_thread(record, stored, replay.head.sequence, 0))
            other = to_wire(show_thread(record, rebuilt, replay.head.sequence, 0))
            pairs.append((record.thread_id, one, other))
    for subject, one, other in pairs:
        path = find_difference(one, other)
        if path is not None:
            yield Problem("read_model", replay.session, subject, f"differs at {path}")


def digest_tasks(replay: SessionReplay) -> str:
    """The SHA-256 of the canonical list of a session's tasks, built from its facts alone."""
    tasks = [one for one in replay.states.values() if isinstance(one, TaskRecord)]
    shown = show_tasks(replay.session, replay.head.sequence, tasks, 0)
    return hashlib.sha256(to_bytes(shown)).hexdigest()


def _read_tasks(replay: SessionReplay) -> Iterator[TaskRecord]:
    for loaded in replay.stored:
        try:
            record = read_loaded(loaded)
        except RecordDamaged:
            continue  # reported as a mismatch
        if isinstance(record, TaskRecord):
            yield record


def expect_rows(record: TaskRecord) -> tuple[IndexRow, ...]:
    """The rows that a record must have in its owner's lists, whatever led to it; none for an archived one."""
    return () if record.status is Status.ARCHIVED else list_rows(None, record)


def expect_all_rows(replay: SessionReplay, tasks: dict[str, TaskRecord]) -> Iterator[IndexRow]:
    """The rows of a session and of its tasks."""
    for record in tasks.values():
        yield from expect_rows(record)
    for other in replay.states.values():
        if isinstance(other, SessionRecord):
            yield from list_session(other)


async def _compare_index(
    store: Store, replay: SessionReplay, tasks: dict[str, TaskRecord], owed: list[FeedRow]
) -> list[Problem]:
    found: list[Problem] = []
    coming = {(row.owner, row.agent, row.facade) for one in owed for row in one.index}
    for row in expect_all_rows(replay, tasks):
        parts = await store.views.find_parts(row.owner, row.agent, row.facade)
        if row.part not in parts and (row.owner, row.agent, row.facade) not in coming:
            what = "sessions" if row.agent == SESSIONS else f"{row.part} tasks"
            detail = f"is not in the list of {what} of its owner"
            found.append(Problem("unlisted", replay.session, row.facade, detail))
    return found


async def _compare_given(
    store: Store, replay: SessionReplay, tasks: dict[str, TaskRecord], owed: list[FeedRow]
) -> list[Problem]:
    """A transferred task must not be in a list of open tasks of its former owner."""
    found: list[Problem] = []
    coming = {(row.owner, row.agent, row.facade) for one in owed for row in one.index}
    for record, owner in list_former(replay, tasks):
        facade = expose(TaskId(record.task_id), record.exposure)
        for agent in (UNSEEN, record.kind):
            parts = await store.views.find_parts(owner, agent, facade)
            if "open" in parts and (owner, agent, facade) not in coming:
                detail = "is in the list of a former owner"
                found.append(Problem("listed", replay.session, facade, detail))
    return found


def list_former(
    replay: SessionReplay, tasks: dict[str, TaskRecord]
) -> Iterator[tuple[TaskRecord, str]]:
    """The tasks that were transferred, each with the keys of its former owners."""
    for event in replay.events:
        payload, record = event.fact.payload, tasks.get(event.fact.scope.task_id or "")
        if isinstance(payload, TaskUpdated) and payload.new_owner is not None and record:
            former = Principal(str(payload.changed["owner"]["old"]), record.scope.tenant).key
            if former != record.owner:
                yield record, former


async def _compare_inboxes(
    store: Store, replay: SessionReplay, owed: list[FeedRow]
) -> list[Problem]:
    actions = {
        one.request.action_id: one
        for one in replay.states.values()
        if isinstance(one, ActionRecord)
    }
    if not actions or any(row.look for row in owed):
        return []
    found: list[Problem] = []
    readers = {name: list_readers(record) for name, record in actions.items()}
    for owner in sorted({reader for named in readers.values() for reader in named}):
        pending = frozenset(name for name, _ in await store.projections.list_inbox(owner))
        for name, record in actions.items():
            if owner in readers[name] and record.is_open != (name in pending):
                detail = "is open and not in the inbox" if record.is_open else "is closed and in it"
                found.append(Problem("inbox", replay.session, name, detail))
    return found


async def read_owed(store: Store, session: str) -> list[FeedRow]:
    """The feed rows of a session above the relay's mark."""
    shard = EntityRef(EntityKind.SESSION, session).shard
    mark = await store.projections.read_mark(shard, RELAY)
    after = None if mark is None else mark.partition(".")[2]
    found: list[FeedRow] = []
    while page := await store.projections.read_feed(shard, after, _FEED_PAGE):
        found += [row for row in page if row.session == session]
        after = page[-1].id
    return found


def find_difference(one: Json, other: Json, at: str = "") -> str | None:
    """The path of the first member in which two values differ; None where they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        steps = ((f"{at}.{name}".lstrip("."), one.get(name), other.get(name)) for name in names)
        found = (find_difference(left, right, path) for path, left, right in steps)
        return next((path for path in found if path is not None), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        found = (find_difference(left, right, f"{at}[{n}]") for n, (left, right) in pairs)
        return next((path for path in found if path is not None), None)
    return None if one == other else at or "the whole"
