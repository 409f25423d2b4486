"""The archive: archived sessions are read as before, and return to the engine when an append continues them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.core.batch import (
    ABSENT,
    Appended,
    Batch,
    Conflict,
    EntityKind,
    EntityRef,
    EntityWrite,
    OpenChange,
    Stamp,
    TargetChange,
)
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.principal import Principal
from passerelle.store import keys
from passerelle.store.archive.archiver import MOST_AT_ONCE, join_parts, split_into_segments
from passerelle.store.archive.ended_sessions import EndedSession, EndedSessions
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event_of, make_place, mint, operation
from tests.support.engine import Server, ask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from passerelle.store.connection import RespValue
    from passerelle.store.scripts import Script

pytestmark = pytest.mark.anyio

AT_MS = 1_767_323_045_006
AT = "2026-01-02T03:04:05.006Z"
OWNER = Principal("ada").key


@dataclass(slots=True)
class Story:
    """A session with a thread, a task and an approval; ``stamps`` are the latest versions."""

    at: TaskPlace = field(default_factory=make_place)
    stamps: dict[EntityRef, Stamp] = field(default_factory=dict["EntityRef", Stamp])
    refs: list[EntityRef] = field(default_factory=list[EntityRef])
    owner: str = OWNER

    def __post_init__(self) -> None:
        home = self.at.shard
        self.refs = [
            EntityRef(EntityKind.SESSION, self.at.session),
            EntityRef(EntityKind.THREAD, mint("th", home)),
            self.at.task_ref,
            EntityRef(EntityKind.ACTION, mint("act", home)),
        ]
        self.stamps = dict.fromkeys(self.refs, ABSENT)

    def _write_record(self) -> tuple[bytes, ...]:
        """The members of all records that the store reads; the last sequence follows."""
        return (f'{{"sessionId":"{self.at.session}","owner":"{self.owner}","last":['.encode(),)

    def tell(
        self,
        words: str = "",
        *,
        opened: tuple[OpenChange, ...] = (),
        targets: tuple[TargetChange, ...] = (),
        at_ms: int = AT_MS,
    ) -> Batch:
        """The next two events, which write every entity."""
        op = operation()
        entities = tuple(
            EntityWrite(
                ref, stamp, (*self._write_record(), 1, b"]}"), {"said": words[:99].encode()}
            )
            for ref, stamp in self.stamps.items()
        )
        self.stamps = {ref: Stamp(one.version + 1, op) for ref, one in self.stamps.items()}
        _, thread, task, action = self.refs
        events = (
            event_of(self.at.session, task.id, thread.id, words),
            event_of(self.at.session, task.id, thread.id, words, action=action.id),
        )
        return Batch(
            self.at.session,
            op,
            0,
            EPOCH,
            entities,
            events,
            task_times=((self.at.task, at_ms),),
            at=AT,
            open=opened,
            targets=targets,
        )


async def begin(store: Store, appends: int = 3, story: Story | None = None) -> Story:
    """Appends a session and ends it."""
    story = story or Story()
    for number in range(appends):
        assert isinstance(await store.log.append(story.tell(f"part {number}")), Appended)
    return story


async def read_all(store: Store, story: Story) -> list[object]:
    """The data of a session that any reader sees."""
    log, stream = store.log, story.at.stream
    head = await log.read_head(stream)
    top = 0 if head is None else head.sequence
    return [
        head,
        await log.load(story.refs),
        await store.relay_facts.load(story.refs),
        [
            await log.read_page(stream, after, limit)
            for after in range(top + 1)
            for limit in (1, 256)
        ],
        [await log.read_resume(stream, after, 3) for after in range(top + 2)],
        [await log.read_frame(stream, sequence) for sequence in range(top + 2)],
        await log.read_session_tasks(story.at.session),
        await log.read_open(story.at.session),
        await store.targets.read(stream),
        [await store.targets.find(stream, name) for name in ("hook", "none")],
        await store.acks.list_acks(stream),
    ]


async def leave(store: Store, *stories: Story) -> None:
    """Archives the sessions of one shard."""
    sessions = [story.at.session for story in stories]
    left = await store.archiver.archive(stories[0].at.shard, sessions)
    assert (left.sessions, left.stay) == (sessions, [])


def find_keys(server: Server, pattern: str) -> dict[str, str]:
    """The node of each key that matches."""
    return {
        name.decode(): url
        for url in server.nodes
        for name in cast("list[bytes]", ask(url, "KEYS", pattern))
    }


def list_keys(server: Server, story: Story) -> set[str]:
    """Keys of a session in the engine."""
    names = {ref.id for ref in story.refs}
    return {key for key in find_keys(server, "*") if any(name in key for name in names)}


@pytest.mark.requirement("ST-18")
@pytest.mark.parametrize("appends", [1, 3, 200])
async def test_archived_session_is_read_as_before(
    store: Store, server: Server, appends: int
) -> None:
    story = await begin(store, appends)
    before = await read_all(store, story)
    await leave(store, story)
    assert list_keys(server, story) == set()
    assert await read_all(store, story) == before


async def test_unknown_session_is_not_found(store: Store) -> None:
    await leave(store, await begin(store))
    story = Story()
    assert [one.stamp for one in await store.log.load(story.refs)] == [ABSENT] * 4
    assert await store.log.read_head(story.at.stream) is None
    assert await store.log.read_page(story.at.stream, 0) == []
    assert await store.log.read_resume(story.at.stream, 0) == (None, [])
    assert await store.log.read_session_tasks(story.at.session) == []


async def test_sessions_are_archived_together_and_revived_alone(store: Store) -> None:
    home = Shard(7)
    stories = [await begin(store, 1 + number % 3, Story(make_place(home))) for number in range(40)]
    before = [await read_all(store, story) for story in stories]
    await leave(store, *stories)
    assert await store.log.restore(home, stories[11].at.task)
    assert [await read_all(store, story) for story in stories] == before
    listed = await store.archive.list_sessions(ALL_SHARDS)
    gone = [story.at.session for story in stories if story is not stories[11]]
    assert sorted(listed) == sorted(gone)
    await leave(store, stories[11])
    assert [await read_all(store, story) for story in stories] == before
    assert len(await store.archive.list_sessions(ALL_SHARDS)) == 40


async def test_append_revives_an_archived_session(store: Store) -> None:
    story, other = Story(), Story()
    for one in (story, other):
        await begin(store, 2, one)
    await leave(store, story)
    results = [await store.log.append(one.tell("further")) for one in (story, other)]
    assert [(one.first, one.last) for one in results if isinstance(one, Appended)] == [(5, 6)] * 2
    _, page = await store.log.read_resume(story.at.stream, 0)
    assert [entry.sequence for entry in page] == [1, 2, 3, 4, 5, 6]
    assert await store.archive.find(story.at.shard, story.at.session) is None
    for ref in story.refs:
        assert await store.archive.find(story.at.shard, ref.id) is None


async def test_append_with_new_entities_only_revives_the_session_too(store: Store) -> None:
    """The append was decided before another writer's, and is written after that one was archived."""
    story = await begin(store, 2)
    await leave(store, story)
    task = EntityRef(EntityKind.TASK, mint("task", story.at.shard))
    batch = Batch(
        story.at.session,
        operation(),
        0,
        EPOCH,
        (EntityWrite(task, ABSENT, (story.at.session.encode(),)),),
        (event_of(story.at.session, task.id),),
    )
    stored = await store.log.append(batch)
    assert isinstance(stored, Appended)
    assert (stored.first, stored.last) == (5, 5)


async def test_append_decided_on_an_older_state_gets_the_stored_one(
    store: Store,
) -> None:
    story = await begin(store, 1)
    stale = dict(story.stamps)
    await begin(store, 1, story)
    now, story.stamps = story.stamps, stale
    batch = story.tell("stale")
    await leave(store, story)
    assert await store.log.append(batch) == Conflict(story.refs[0].id, now[story.refs[0]])


async def test_of_two_concurrent_appends_to_an_archived_session_one_wins(
    store: Store, server: Server, tmp_path: Path
) -> None:
    story = await begin(store, 2)
    await leave(store, story)
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as other:
        stamps = dict(story.stamps)
        first = story.tell("one")
        story.stamps = stamps
        second = story.tell("two")
        results = await asyncio.gather(store.log.append(first), other.log.append(second))
    assert sorted(type(one).__name__ for one in results) == ["Appended", "Conflict"]
    _, page = await store.log.read_resume(story.at.stream, 0)
    assert [entry.sequence for entry in page] == [1, 2, 3, 4, 5, 6]


async def test_session_that_changes_while_it_is_packed_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Shard(3)
    stories = [await begin(store, 2, Story(make_place(home))) for _ in range(3)]
    put = store.archiver.segments.put_pieces

    async def append_meanwhile(shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        assert isinstance(await store.log.append(stories[1].tell("meanwhile")), Appended)
        await put(shard, sha256, pieces)

    monkeypatch.setattr(store.archiver.segments, "put_pieces", append_meanwhile)
    left = await store.archiver.archive(home, [story.at.session for story in stories])
    assert left.sessions == [stories[0].at.session, stories[2].at.session]
    assert left.stay == [stories[1].at.session]
    assert await store.archive.find(home, stories[1].at.session) is None
    assert len((await store.log.read_resume(stories[1].at.stream, 0))[1]) == 6


async def test_session_that_must_stay_is_not_written(store: Store, tmp_path: Path) -> None:
    waits, owed = Story(), Story()
    hook = (TargetChange("hook", "*"),)
    for story in (waits, owed):
        assert isinstance(await store.log.append(story.tell("", targets=hook)), Appended)
    key = keys.stream_targets(waits.at.stream)
    backoff = f"backoff|*|1|{EPOCH}.1.00000000|1|0|refused"
    await store.nodes.update(waits.at.shard, pack("HSET", key, "hook", backoff))
    due = pack("ZADD", keys.due(owed.at.shard), 1, "target:hook")
    await store.nodes.update(owed.at.shard, due)
    for story in (waits, owed):
        left = await store.archiver.archive(story.at.shard, [story.at.session])
        assert left.stay == [story.at.session]
    assert not [path for path in (tmp_path / "blobs" / "archive").rglob("*") if path.is_file()]


async def test_row_of_another_id_is_not_overwritten(store: Store) -> None:
    story = await begin(store)
    home = story.at.shard
    bucket, name = place_row(home, story.refs[1].id)
    await store.nodes.update(home, pack("HSET", bucket, name, b"x" * 15))
    left = await store.archiver.archive(home, [story.at.session])
    assert left.stay == [story.at.session]
    assert len((await store.log.read_resume(story.at.stream, 0))[1]) == 6


async def test_invalid_row_is_reported(store: Store) -> None:
    story = Story()
    home = story.at.shard
    bucket, name = place_row(home, story.at.session)
    await store.nodes.update(home, pack("HSET", bucket, name, "rubbish"))
    with pytest.raises(ArchiveDamaged, match=f"a row of the archive of shard {home.tag}"):
        await store.log.read_head(story.at.stream)


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("has_events", [True, False])
async def test_session_that_changes_between_two_reads_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads: int, *, has_events: bool
) -> None:
    """The first and the last read see different states then, and neither is archived."""
    story = await begin(store, 2)
    query, calls = store.nodes.query_each_in_background, list[int]()

    async def append_behind(asked: Sequence[tuple[Shard, bytes]]) -> list[RespValue]:
        replies = await query(asked)
        calls.append(len(asked))
        if len(calls) == reads:
            batch = story.tell("meanwhile", at_ms=AT_MS + 7)
            batch = batch if has_events else replace(batch, events=(), entities=drop_holes(batch))
            assert isinstance(await store.log.append(batch), Appended)
        return replies

    monkeypatch.setattr(store.nodes, "query_each_in_background", append_behind)
    left = await store.archiver.archive(story.at.shard, [story.at.session])
    monkeypatch.undo()
    assert left.stay == [story.at.session]
    assert await store.archive.find(story.at.shard, story.at.session) is None
    before = await read_all(store, story)
    await leave(store, story)
    assert await read_all(store, story) == before
    assert await store.log.read_session_tasks(story.at.session) == [(story.at.task, AT_MS + 7)]


def drop_holes(batch: Batch) -> tuple[EntityWrite, ...]:
    return tuple(
        replace(one, snapshot=tuple(part for part in one.snapshot if isinstance(part, bytes)))
        for one in batch.entities
    )


@pytest.mark.parametrize("held_by", ["open", "receiver"])
async def test_open_or_pending_session_stays(store: Store, held_by: str) -> None:
    story = Story()
    opened = (OpenChange(story.at.task, 0),) if held_by == "open" else ()
    targets = (TargetChange("hook", "*", whole=True),) if held_by == "receiver" else ()
    assert isinstance(
        await store.log.append(story.tell("held", opened=opened, targets=targets)), Appended
    )
    left = await store.archiver.archive(story.at.shard, [story.at.session])
    assert left.stay == [story.at.session]
    closing = (OpenChange(story.at.task, None),) if held_by == "open" else ()
    ending = (TargetChange("hook", None),) if held_by == "receiver" else ()
    assert isinstance(
        await store.log.append(story.tell("let go", opened=closing, targets=ending)), Appended
    )
    await leave(store, story)


async def test_up_to_date_receiver_is_archived_and_gets_later_events(
    store: Store,
) -> None:
    story = Story()
    hook = (TargetChange("hook", story.at.task),)
    assert isinstance(await store.log.append(story.tell("first", targets=hook)), Appended)
    await store.nodes.update(story.at.shard, pack("ZREM", keys.due(story.at.shard), "target:hook"))
    before = await read_all(store, story)
    await leave(store, story)
    assert await read_all(store, story) == before
    stored = await store.log.append(story.tell("more"))
    assert isinstance(stored, Appended)
    assert stored.woken == 1


async def test_dead_receiver_of_an_archived_session_is_retried(store: Store) -> None:
    story = Story()
    hook = (TargetChange("hook", story.at.task),)
    assert isinstance(await store.log.append(story.tell("first", targets=hook)), Appended)
    key = keys.stream_targets(story.at.stream)
    dead = f"dead|{story.at.task}|9|{EPOCH}.1.00000000|1|9|refused"
    await store.nodes.update(story.at.shard, pack("HSET", key, "hook", dead))
    await leave(store, story)
    assert await store.targets.revive(story.at.stream, "hook") == "ok"
    target = await store.targets.find(story.at.stream, "hook")
    assert target is not None
    assert target.state == "live"
    assert await store.archive.find(story.at.shard, story.at.session) is None


async def test_devices_acknowledge_archived_events(store: Store) -> None:
    story = await begin(store, 2)
    stream = story.at.stream
    head, page = await store.log.read_resume(stream, 0)
    assert head is not None
    await leave(store, story)

    def cursor(after: int, epoch: str = head.epoch) -> str:
        return f"{epoch}.{after}.{page[after - 1].previous}"

    assert await store.acks.store_ack(stream, "tablet", 1, cursor(3), 5) == "stored"
    assert await store.acks.read_ack(stream, "tablet") == cursor(3)
    assert await store.acks.store_ack(stream, "tablet", 1, cursor(2), 6) == "stored"
    assert await store.acks.read_ack(stream, "tablet") == cursor(3)
    assert await store.acks.store_ack(stream, "phone", 1, cursor(2, "ffffffff"), 6) == "ack_epoch"
    ahead = f"{head.epoch}.9.00000000"
    assert await store.acks.store_ack(stream, "phone", 1, ahead, 6) == "ack_ahead"


@pytest.mark.parametrize("members", [("d", "rubbish"), ("i", "ev", "k", "x"), ("a", "b", "c", "d")])
async def test_a_session_with_a_damaged_append_stays_and_holds_up_no_other(
    store: Store, members: tuple[str, ...]
) -> None:
    home = Shard(9)
    damaged, whole = [await begin(store, 1, Story(make_place(home))) for _ in range(2)]
    entries = keys.entries(damaged.at.stream)
    await store.nodes.update(home, pack("XADD", entries, "99-0", *members))
    left = await store.archiver.archive(home, [damaged.at.session, whole.at.session])
    assert (left.sessions, left.stay) == ([whole.at.session], [damaged.at.session])


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
async def test_damaged_segment_is_an_error_that_names_it(
    store: Store, server: Server, tmp_path: Path, damage: str
) -> None:
    story, other = await begin(store), Story()
    await begin(store, 2, other)
    await leave(store, story)
    await leave(store, other)
    kept = await read_all(store, other)
    [segment] = await store.archive.list_segments(story.at.shard)
    digest = segment.name.sha256
    [path] = (tmp_path / "blobs" / "archive").glob(f"*/*/{digest}")
    content = path.read_bytes()
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(content[:20])
        case _:
            path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    fresh = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(fresh) as reader:
        for read in (
            reader.log.load(story.refs),
            reader.log.read_head(story.at.stream),
            reader.log.read_page(story.at.stream, 0),
            reader.log.append(story.tell("on")),
        ):
            with pytest.raises(ArchiveDamaged, match=digest):
                await read
        assert await read_all(reader, other) == kept


async def test_call_with_a_lost_reply_is_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Shard(9)
    stories = [await begin(store, 1, Story(make_place(home))) for _ in range(20)]
    before = [await read_all(store, story) for story in stories]
    run, calls = store.nodes.run, list[str]()

    async def run_twice(script: Script[object], *call: object) -> object:
        calls.append(script.name)
        again = cast("Callable[..., Awaitable[object]]", run)
        await again(script, *call)
        return await again(script, *call)

    monkeypatch.setattr(store.nodes, "run", run_twice)
    await store.archiver.archive(home, [story.at.session for story in stories])
    monkeypatch.undo()
    assert calls == ["keep_owner_key", "note_segment", "archive_commit", "archive_commit"]
    assert [await read_all(store, story) for story in stories] == before
    assert len(await store.archive.list_sessions([home])) == 20


async def test_segment_number_reused_after_a_failover_resolves_to_the_committed_segment(
    store: Store,
) -> None:
    """The commit is lost with its rows: the sessions are in the engine again, and no row names the old segment."""
    story = await begin(store, 2)
    home = story.at.shard
    rows = [(ref, place_row(home, ref.id)) for ref in story.refs]
    await leave(store, story)
    await read_all(store, story)
    assert await store.log.restore(home, story.at.session)
    for _, (key, name) in rows:
        await store.nodes.update(home, pack("HDEL", key, name))
    await store.nodes.update(home, pack("UNLINK", keys.segments(home)))
    await store.nodes.update(home, pack("HDEL", keys.meta(home), "segments"))
    await begin(store, 2, story)
    before = await read_all(store, story)
    await leave(store, story)
    assert await read_all(store, story) == before


async def test_session_is_archivable_after_its_last_work_and_a_delay(
    store: Store,
) -> None:
    home = Shard(11)
    ended, late, still_open, person = (Story(make_place(home)) for _ in range(4))
    for story in (ended, late):
        await begin(store, 2, story)
    await store.log.append(still_open.tell("", opened=(OpenChange(still_open.at.task, 0),)))
    await begin(store, 1, person)
    grants = EntityRef(EntityKind.GRANTS, person.at.session)
    await store.nodes.update(home, pack("HSET", keys.entity(grants), "v", 1))
    head = keys.head(late.at.stream)
    await store.nodes.update(home, pack("HSET", head, "at", "2026-01-02T03:04:09.000Z"))

    async def find(before_ms: int) -> list[tuple[str, int]]:
        found = (await store.ended_sessions.find([home], before_ms)).get(home, [])
        assert all(one.bytes > 100 for one in found)
        return [(one.session, one.at_ms) for one in found]

    assert await find(AT_MS) == []
    assert await find(AT_MS + 1) == [(ended.at.session, AT_MS)]
    assert [name for name, _ in await find(AT_MS + 10_000)] == [ended.at.session, late.at.session]
    assert await store.ended_sessions.find([Shard(12)], AT_MS + 1) == {}
    await leave(store, ended)
    assert [name for name, _ in await find(AT_MS + 10_000)] == [late.at.session]


async def test_scan_reads_only_unknown_sessions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that were too young or have left are not checked again; those that were blocked or busy are."""
    home, counts = Shard(11), list[int]()
    over, late, busy = (Story(make_place(home)) for _ in range(3))
    for story in (over, late):
        await begin(store, 2, story)
    await store.log.append(busy.tell("", opened=(OpenChange(busy.at.task, 0),)))
    head = keys.head(late.at.stream)
    await store.nodes.update(home, pack("HSET", head, "at", "2026-01-02T03:04:09.000Z"))
    query = store.nodes.query_each_in_background

    async def count(asked: Sequence[tuple[Shard, bytes]]) -> list[RespValue]:
        counts.append(len(asked))
        return await query(asked)

    monkeypatch.setattr(store.nodes, "query_each_in_background", count)

    async def find(before_ms: int) -> tuple[list[str], list[int]]:
        counts.clear()
        found = await store.ended_sessions.find([home], before_ms)
        return [one.session for one in found.get(home, [])], [*counts]

    assert await find(AT_MS + 1) == ([over.at.session], [6])
    assert await find(AT_MS + 1) == ([over.at.session], [2])
    assert await find(AT_MS) == ([], [])
    assert await find(AT_MS + 10_000) == ([over.at.session, late.at.session], [4])
    store.ended_sessions.forget([over.at.session])
    assert await find(AT_MS + 10_000) == ([over.at.session, late.at.session], [4])
    monkeypatch.undo()
    await leave(store, over)
    monkeypatch.setattr(store.nodes, "query_each_in_background", count)
    assert await find(AT_MS + 10_000) == ([late.at.session], [2])


async def test_session_found_by_a_later_scan_is_read_once_it_can_have_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, counts = Shard(11), list[int]()
    query = store.nodes.query_each_in_background

    async def count(asked: Sequence[tuple[Shard, bytes]]) -> list[RespValue]:
        counts.append(len(asked))
        return await query(asked)

    monkeypatch.setattr(store.nodes, "query_each_in_background", count)
    time = store.nodes.node(home).time

    async def find(before_ms: int) -> tuple[list[str], list[int]]:
        counts.clear()
        found = await store.ended_sessions.find([home], before_ms)
        return [one.session for one in found.get(home, [])], [*counts]

    assert await find(time.now_ms()) == ([], [])
    story = await begin(store, 2, Story(make_place(home)))
    assert await find(time.now_ms() - 20_000) == ([], []), "it began since the last look"
    assert await find(time.now_ms() - 20_000) == ([], [])
    assert await find(time.now_ms() + 1_000) == ([story.at.session], [2])
    assert await find(time.now_ms() + 1_000) == ([story.at.session], [])
    # A process that scans the shard for the first time knows nothing about it.
    assert await EndedSessions(store.nodes).find([home], AT_MS + 1) != {}


async def test_session_continued_after_a_scan_stays_until_it_ends_again(store: Store) -> None:
    home = Shard(11)
    over, goes_on = (Story(make_place(home)) for _ in range(2))
    for story in (over, goes_on):
        await begin(store, 2, story)
    before_ms = AT_MS + 1
    found = await store.ended_sessions.find([home], before_ms)
    assert len(found[home]) == 2
    later = replace(goes_on.tell("more"), at="2026-01-02T03:04:09.000Z")
    assert isinstance(await store.log.append(later), Appended)
    sessions = [over.at.session, goes_on.at.session]
    left = await store.archiver.archive(home, sessions, before_ms)
    assert (left.sessions, left.stay) == ([over.at.session], [goes_on.at.session])
    store.ended_sessions.forget(left.stay)
    assert await store.ended_sessions.find([home], before_ms) == {}
    found = await store.ended_sessions.find([home], AT_MS + 10_000)
    assert [one.session for one in found[home]] == [goes_on.at.session]


async def test_scan_memory_is_bounded_and_all_sessions_are_found(store: Store) -> None:
    home = Shard(11)
    stories = [await begin(store, 1, Story(make_place(home))) for _ in range(5)]
    few = EndedSessions(store.nodes, most_known=2)
    for before_ms, over in ((AT_MS, 0), (AT_MS, 0), (AT_MS + 1, 5), (AT_MS + 1, 5)):
        found = await few.find([home], before_ms)
        assert len(found.get(home, [])) == over
        assert few.known == 2
    await leave(store, *stories)
    assert await few.find([home], AT_MS + 1) == {}
    assert few.known == 0


def test_a_segment_has_few_sessions_or_few_bytes() -> None:
    small = [EndedSession(f"se_{number}", number, 1_000) for number in range(200)]
    assert [len(part) for part in split_into_segments(small)] == [64, 64, 64, 8]
    large = [one._replace(bytes=3 << 19) for one in small[:7]]
    assert [len(part) for part in split_into_segments(large)] == [2, 2, 2, 1]
    assert [one for part in split_into_segments(large) for one in part] == large
    assert split_into_segments([]) == []


def test_parts_of_shards_share_a_segment_while_they_fit() -> None:
    def part(count: int, size: int = 1_000) -> list[EndedSession]:
        return [EndedSession(f"se_{count}", 0, size) for _ in range(count)]

    def count(*parts: tuple[int, list[EndedSession]]) -> list[dict[int, int]]:
        joined = join_parts((Shard(number), one) for number, one in parts)
        return [{shard.number: len(names) for shard, names in one.items()} for one in joined]

    assert count((1, part(3)), (2, part(60)), (3, part(2)), (4, part(62))) == [
        {1: 3, 2: 60},
        {3: 2, 4: 62},
    ]
    assert count((1, part(40)), (1, part(2))) == [{1: 40}, {1: 2}]
    assert count((1, part(2, 1 << 20)), (2, part(2, 1 << 20)), (3, part(1))) == [
        {1: 2, 2: 2},
        {3: 1},
    ]
    assert count() == []


async def test_sessions_of_several_shards_share_one_object(
    store: Store, server: Server, tmp_path: Path
) -> None:
    stories = [
        await begin(store, 2, Story(make_place(Shard(number)))) for number in (3, 3, 17, 40, 63)
    ]
    busy = stories[3]
    opened = busy.tell("", opened=(OpenChange(busy.at.task, 0),))
    assert isinstance(await store.log.append(opened), Appended)
    before = [await read_all(store, story) for story in stories]
    parts = defaultdict[Shard, list[str]](list)
    for story in stories:
        parts[story.at.shard].append(story.at.session)
    left = await store.archiver.archive_together(parts)
    assert left.stay == [busy.at.session]
    [path] = (path for path in (tmp_path / "blobs" / "archive").rglob("*") if path.is_file())
    assert path.parts[-3] == "03", "it is stored in the shard of its first frame"
    for shard in (Shard(3), Shard(17), Shard(63)):
        [segment] = await store.archive.list_segments(shard)
        assert (segment.number, segment.name.home, segment.name.sha256) == (1, Shard(3), path.name)
        assert await store.archive.list_archived(shard, segment) == parts[shard]
    assert await store.archive.list_segments(Shard(40)) == []
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as reader:
        assert [await read_all(reader, story) for story in stories] == before
    for story in stories[2:3]:
        assert isinstance(await store.log.append(story.tell("on")), Appended)
        assert await store.archive.find(story.at.shard, story.at.session) is None


async def test_a_session_that_is_too_long_stays(store: Store) -> None:
    story = Story()
    noise = "".join(f"{number:08x}" for number in range(7_500))
    for _ in range(80):
        assert isinstance(await store.log.append(story.tell(noise)), Appended)
    assert await store.ended_sessions.find([story.at.shard], AT_MS + 1) == {}
    left = await store.archiver.archive(story.at.shard, [story.at.session])
    assert left.stay == [story.at.session]


async def test_engine_memory_of_an_archived_session(store: Store, server: Server) -> None:
    home = Shard(20)
    stories = [await begin(store, 2, Story(make_place(home))) for _ in range(MOST_AT_ONCE)]

    await leave(store, *stories)
    left = find_keys(server, f"{{{home.tag}}}:al:*") | find_keys(server, f"{{{home.tag}}}:sg")
    weights = [cast("int", ask(url, "MEMORY", "USAGE", name)) for name, url in left.items()]
    assert sum(weights) / len(stories) < 600
