"""Erasure of an owner's data in the engine, in the archive and outside sessions; data of others is not touched."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from passerelle.core.batch import Appended, IdempotencyRow, OpenChange, TargetChange
from passerelle.core.errors import InvalidInput, StoreUnavailable
from passerelle.core.events import EncodedEvent
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import InboxRow, IndexRow
from passerelle.core.principal import Principal
from passerelle.store import keys
from passerelle.store.archive import owner_keys
from passerelle.store.archive.locator import place_row
from passerelle.store.archive.owner_keys import OwnerKeys
from passerelle.store.archive.owner_survey import SessionFinder
from passerelle.store.archive.tombstones import LegalHold, Tombstone, Tombstones
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import AT_MS, Story, begin, find_keys, leave, read_all
from tests.support.batches import make_place
from tests.support.engine import Server, ask
from tests.support.engine_dump import read_keys
from tests.support.killing import Killed, kill_change

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from passerelle.store.archive.sealed_frame import OwnerKey

pytestmark = pytest.mark.anyio
ADA, BOB = Principal("ada").key, Principal("bob").key
HOME = Shard(9)
NOW_MS = AT_MS + 1_000


async def append_story(store: Store, owner: str = ADA, home: Shard | None = HOME) -> Story:
    """An ended session of an owner, with a list row and content."""
    story = await begin(store, 2, Story(make_place(home), owner=owner))
    digest = await store.blobs.put(story.at.shard, f"content of {story.at.task}".encode())
    assert isinstance(await store.log.append(story.tell(f"see {digest}")), Appended)
    await store.views.put_row(IndexRow(owner, "echo", story.at.task, AT_MS, "completed"))
    return story


def find_names(server: Server, *names: str) -> list[str]:
    """Keys whose name or content contains one of these texts."""
    keys_of = defaultdict[str, list[str]](list)
    for key, url in find_keys(server, "*").items():
        keys_of[url].append(key)
    return [
        f"{stored.partition(b' ')[0].decode()}: {name}"
        for url, held in keys_of.items()
        for stored in read_keys(url, held)
        for name in names
        if name.encode() in stored
    ]


async def forget(store: Store, owner: str = ADA) -> Tombstone:
    return await store.forgetting.forget(owner, "operator", NOW_MS)


async def test_data_of_an_owner_is_erased_and_data_of_others_stays(
    store: Store, server: Server, tmp_path: Path
) -> None:
    mine = [await append_story(store, ADA, home) for home in (HOME, HOME, Shard(12))]
    others = [await append_story(store, BOB, home) for home in (HOME, HOME)]
    await leave(store, mine[0], others[0])
    kept = [await read_all(store, story) for story in others]
    plan = await store.forgetting.plan(ADA, NOW_MS)
    assert plan.obstacle is None
    counts = plan.counts
    assert (counts.sessions, counts.archived, counts.tasks, counts.approvals) == (3, 1, 3, 3)
    assert counts.bytes > 1_000
    before = await store.owner_keys.find_name(ADA)
    done = await forget(store)
    assert (done.counts, done.key) == (counts, before)
    assert find_names(server, *(story.at.task for story in mine), ADA) == []
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for story in mine:
        assert f"content of {story.at.task}".encode() not in files
        assert await store.log.read_head(story.at.stream) is None
    for story in others:
        assert f"content of {story.at.task}".encode() in files
    assert [await read_all(store, story) for story in others] == kept
    assert (await store.forgetting.plan(ADA, NOW_MS)).counts.sessions == 0
    assert await store.owner_keys.find_name(ADA) is None


async def test_only_the_owners_frames_are_erased_from_a_shared_object(
    store: Store, server: Server
) -> None:
    homes = (HOME, Shard(12), Shard(47))
    mine = [await append_story(store, ADA, home) for home in homes]
    others = [await append_story(store, BOB, home) for home in homes]
    kept = [await read_all(store, story) for story in others]
    parts = {
        home: [one.at.session for one in (*mine, *others) if one.at.shard == home] for home in homes
    }
    assert (await store.archiver.archive_together(parts)).stay == []
    [name] = {one.name for home in homes for one in await store.archive.list_segments(home)}
    plan = await store.forgetting.plan(ADA, NOW_MS)
    assert (plan.counts.sessions, plan.counts.archived) == (3, 3)
    await forget(store)
    assert find_names(server, *(story.at.task for story in mine), ADA) == []
    for story in mine:
        assert await store.log.read_head(story.at.stream) is None
    assert [await read_all(store, story) for story in others] == kept
    for home, other in zip(homes, others, strict=True):
        [segment] = await store.archive.list_segments(home)
        assert segment.name == name
        assert await store.archive.list_archived(home, segment) == [other.at.session]


def kill_at(store: Store, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Makes the ``step``-th change of a store the last one."""
    blobs = (store.blobs, store.copies, store.tombstones.objects)
    places = ((store.nodes, ("run", "update")), *((one, ("put", "expire")) for one in blobs))
    kill_change(monkeypatch, places, step)


async def is_whole(store: Store, mine: list[Story], server: Server, folder: Path) -> bool:
    """Whether nothing of these is left."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return not find_names(server, *(story.at.task for story in mine), ADA) and not any(
        f"content of {story.at.task}".encode() in files for story in mine
    )


async def test_erasure_killed_at_any_step_is_completed_by_the_next(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await append_story(store, BOB)
    kept = await read_all(store, other)
    steps = 0
    while True:
        steps += 1
        mine = [await append_story(store) for _ in range(2)]
        await leave(store, mine[0])
        with monkeypatch.context() as patch:
            kill_at(store, patch, steps)
            try:
                await forget(store)
                break
            except Killed:
                pass
        settings = StoreSettings(server.url, tmp_path / "blobs")
        async with await Store.open(settings) as fresh:
            if not await fresh.forgetting.resume(ALL_SHARDS, NOW_MS):
                await forget(fresh)
            assert await is_whole(fresh, mine, server, tmp_path), steps
            assert await read_all(fresh, other) == kept
            assert await fresh.forgetting.resume(ALL_SHARDS, NOW_MS + 1) == []
    assert await is_whole(store, mine, server, tmp_path)
    assert steps > 10


async def test_nothing_is_readable_once_the_tombstone_is_written(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after the tombstone: the rows lead to frames whose key still exists but is no longer used."""
    story = await append_story(store)
    await leave(store, story)
    await store.owner_keys.tag(ADA)
    with monkeypatch.context() as patch:
        kill_at(store, patch, 3)
        with pytest.raises(Killed):
            await forget(store)
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh:
        assert await fresh.log.read_head(story.at.stream) is None
        assert {one.stamp.version for one in await fresh.log.load(story.refs)} == {0}
        assert await fresh.log.read_session_tasks(story.at.session) == []
        again = Story(story.at, owner=ADA)
        stored = await fresh.log.append(again.tell("again"))
        assert isinstance(stored, Appended)
        assert stored.first == 1


@pytest.mark.requirement("FGT-2")
@pytest.mark.parametrize("is_archived", [True, False])
async def test_restored_backup_is_erased_again(
    store: Store, server: Server, tmp_path: Path, *, is_archived: bool
) -> None:
    mine, other = [await append_story(store) for _ in range(2)], await append_story(store, BOB)
    kept = await read_all(store, other)
    await store.owner_keys.tag(ADA)
    if is_archived:
        await leave(store, *mine)
    copies = {
        key: (url, cast("bytes", ask(url, "DUMP", key)))
        for key, url in find_keys(server, "*").items()
        if ":probe" not in key
    }
    done = await forget(store)
    for key, (url, dumped) in copies.items():
        ask(url, "RESTORE", key, 0, dumped, "REPLACE")
    shard = shard_of(ADA)
    await store.nodes.update(shard, pack("UNLINK", keys.tombstones(shard)))
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh:
        assert (await fresh.log.read_head(mine[0].at.stream)) is not None
        assert await fresh.forgetting.resume([Shard(1)], NOW_MS + 1) == []
        [again] = await fresh.forgetting.resume(ALL_SHARDS, NOW_MS + 1)
        assert (again.key, again.counts) == (done.key, done.counts)
        assert not find_names(server, *(story.at.task for story in mine))
        assert await read_all(fresh, other) == kept
        assert await fresh.forgetting.resume(ALL_SHARDS, NOW_MS + 1) == []


@pytest.mark.requirement("FGT-3")
async def test_open_or_held_sessions_are_not_erased_and_are_named(store: Store) -> None:
    story = Story(make_place(HOME), owner=ADA)
    opened = (OpenChange(story.at.task, 0),)
    assert isinstance(await store.log.append(story.tell("", opened=opened)), Appended)
    with pytest.raises(InvalidInput, match=f"owner: something is open in {story.at.session}: end"):
        await forget(store)
    closed = (OpenChange(story.at.task, None),)
    assert isinstance(await store.log.append(story.tell("", opened=closed)), Appended)
    assert await store.tombstones.hold(ADA, LegalHold(AT_MS, "carl", "case 12"))
    assert await store.tombstones.hold(ADA, LegalHold(AT_MS + 1, "dora", "another"))
    with pytest.raises(
        InvalidInput, match=r"is held since 2026-01-02T03:04:05\.006Z by carl: case"
    ):
        await forget(store)
    assert await store.log.read_head(story.at.stream) is not None
    await store.tombstones.release(ADA)
    assert (await forget(store)).counts.sessions == 1
    assert await store.log.read_head(story.at.stream) is None


async def test_hold_before_the_tombstone_counts_and_a_later_one_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = await append_story(store)
    obtain = OwnerKeys.obtain

    async def hold_first(owner_keys: OwnerKeys, owner: str) -> OwnerKey:
        assert await store.tombstones.hold(ADA, LegalHold(AT_MS, "carl", "case 12"))
        return await obtain(owner_keys, owner)

    with monkeypatch.context() as patch:
        patch.setattr(OwnerKeys, "obtain", hold_first)
        with pytest.raises(InvalidInput, match="somebody has placed a hold on it just now"):
            await forget(store)
    assert len((await store.log.read_resume(story.at.stream, 0))[1]) == 6
    await store.tombstones.release(ADA)
    end = Tombstones.end

    async def hold_late(tombstones: Tombstones, tombstone: Tombstone) -> None:
        assert not await store.tombstones.hold(ADA, LegalHold(AT_MS, "carl", "case 12"))
        await end(tombstones, tombstone)

    monkeypatch.setattr(Tombstones, "end", hold_late)
    await forget(store)
    assert await store.tombstones.hold(ADA, LegalHold(AT_MS, "carl", "case 13"))


async def test_concurrent_and_later_sessions_stay(store: Store) -> None:
    story = await append_story(store)
    later = await append_story(store)
    head = keys.head(later.at.stream)
    await store.nodes.update(HOME, pack("HSET", head, "at", "2026-01-02T03:05:00.000Z"))
    await forget(store)
    assert await store.log.read_head(story.at.stream) is None
    assert len((await store.log.read_resume(later.at.stream, 0))[1]) == 6
    await leave(store, later)
    assert len((await store.log.read_resume(later.at.stream, 0))[1]) == 6


async def test_session_being_archived_is_erased_with_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key was read before the tombstone was written, and it leaves the engine after that."""
    story = await append_story(store)
    put = store.archiver.segments.put_pieces

    async def begin_meanwhile(shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        await put(shard, sha256, pieces)
        key = (await store.owner_keys.obtain(ADA)).name
        tag = await store.owner_keys.tag(ADA)
        from_now_on = Tombstone(key, tag, NOW_MS, "operator", owner=ADA)
        assert await store.tombstones.begin(from_now_on) == "begun"

    monkeypatch.setattr(store.archiver.segments, "put_pieces", begin_meanwhile)
    monkeypatch.setattr(owner_keys, "FRESH_S", 0.0)
    await leave(store, story)
    assert await store.log.read_head(story.at.stream) is None
    [done] = await store.forgetting.resume(ALL_SHARDS, NOW_MS + 1)
    assert done.owner == ADA
    assert await store.archive.list_sessions(ALL_SHARDS) == []


async def test_content_referenced_by_others_stays(store: Store) -> None:
    shared = await store.blobs.put(HOME, b"shared")
    stories = [Story(make_place(HOME), owner=owner) for owner in (ADA, ADA, BOB, BOB)]
    for story in stories:
        assert isinstance(await store.log.append(story.tell(f"see {shared}")), Appended)
    await leave(store, stories[0], stories[2])
    await forget(store)
    assert await store.blobs.get(HOME, shared) == b"shared"
    await forget(store, BOB)
    assert await store.blobs.get(HOME, shared) is None


async def test_data_outside_sessions_is_erased_with_them(store: Store, server: Server) -> None:
    mine, other = Story(make_place(HOME), owner=ADA), Story(make_place(HOME), owner=BOB)
    for story in (mine, other):
        batch = story.tell("", targets=(TargetChange(f"hook-{story.owner}", "*", whole=True),))
        idem = IdempotencyRow(f"key-{story.owner}", "digest", story.at.task.encode(), 60_000)
        assert isinstance(await store.log.append(replace(batch, idem=idem)), Appended)
        stuck = pack("ZADD", keys.stuck(HOME), 1, f"{story.at.session} hook-{story.owner}")
        await store.nodes.update(HOME, stuck)
        await store.acks.store_ack(story.at.stream, "phone", 1, "", NOW_MS)
        due = pack("ZADD", keys.due(HOME), 1, f"after:{story.at.task}:1")
        await store.nodes.update(HOME, due)
        listed = f"{story.owner} echo {story.at.task} 1 completed"
        row = ("s", story.at.session, "f", 1, "t", 2, "e", 0, "l", 0, "x", listed)
        await store.nodes.update(HOME, pack("XADD", keys.feed(HOME), "*", *row))
        brought = IndexRow(story.owner, "echo", story.at.task, 1, "completed")
        await store.projections.put_anew(HOME, shard_of(story.owner), [brought])
    assert len(await store.projections.list_lists()) == 2
    await forget(store)
    assert [one.owner for one in await store.projections.list_lists()] == [BOB]
    assert find_names(server, mine.at.session, mine.at.task, ADA) == []
    left = find_names(server, other.at.session, other.at.task, BOB)
    assert len(left) > 9
    assert await store.log.read_idempotency(HOME, f"key-{BOB}") is not None


async def test_inbox_is_trimmed_up_to_the_erased_events(store: Store) -> None:
    """A reader that lags gets a gap; later events, and requests of others, stay."""
    mine, other = await append_story(store), await append_story(store, BOB)
    action = mine.refs[3].id

    def copy(story: Story, name: str, closed: str | None = None) -> InboxRow:
        said = f'"eventId":"{name}","sessionId":"{story.at.session}","payload":{{}}}}'
        copied = EncodedEvent(name, "action.required", said.encode())
        acted = story.refs[3].id
        return InboxRow(
            BOB, copied, acted, None if closed else b"{}", AT_MS, cast("Any", closed), AT_MS
        )

    rows = [
        copy(other, "ev_a"),
        copy(mine, "ev_b"),
        copy(mine, "ev_c", "allowed"),
        copy(other, "ev_d"),
    ]
    for number, row in enumerate(rows, 1):
        await store.projections.advance(Shard(62), shard_of(BOB), f"{number}-0", [row])
    inbox = StreamRef(StreamKind.INBOX, BOB)
    await forget(store)
    head = await store.log.read_head(inbox)
    assert head is not None
    assert (head.first, head.sequence) == (4, 4)
    assert [one.sequence for one in await store.log.read_page(inbox, 0)] == [4]
    assert [name for name, _ in await store.projections.read_inbox(BOB)] == [other.refs[3].id]
    shard = shard_of(BOB)
    closed = keys.inbox_closed(shard, BOB, "allowed")
    assert await store.nodes.query(shard, pack("ZSCORE", closed, action), as_bytes) is None


@pytest.mark.requirement("FGT-2")
async def test_tombstone_does_not_reveal_its_owner(store: Store, server: Server) -> None:
    await append_story(store)
    done = await forget(store)
    shard = shard_of(ADA)
    rows = await store.nodes.query(shard, pack("HGETALL", keys.tombstones(shard)), as_hash)
    assert list(rows) == [done.key.id.hex()]
    assert ADA.encode() not in b"".join(rows.values())
    [kept] = await store.tombstones.list_objects()
    assert kept == replace(done, owner="")
    assert kept.owner_tag == await store.owner_keys.tag(ADA) != await store.owner_keys.tag(BOB)


async def test_unavailable_storage_stops_erasure_before_any_removal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = await append_story(store)

    async def refuse(*_piece: object) -> str:
        reason = "disk full"
        raise StoreUnavailable(reason, "no")

    with monkeypatch.context() as patch:
        patch.setattr(store.tombstones.objects, "put", refuse)
        with pytest.raises(StoreUnavailable, match="disk full"):
            await forget(store)
        assert await store.log.read_head(story.at.stream) is not None
    assert len(await store.forgetting.resume(ALL_SHARDS, NOW_MS + 1)) == 1
    assert await store.log.read_head(story.at.stream) is None


@pytest.mark.parametrize("damage", ["frame", "row", "entry"])
async def test_damage_stops_erasure_before_any_removal(
    store: Store, tmp_path: Path, damage: str
) -> None:
    story, other = await append_story(store), await append_story(store)
    if damage == "entry":
        entries = keys.entries(story.at.stream)
        await store.nodes.update(HOME, pack("XADD", entries, "99-0", "d", "rubbish"))
    else:
        await leave(store, story)
    if damage == "row":
        bucket, name = place_row(HOME, story.at.session)
        await store.nodes.update(HOME, pack("HSET", bucket, name, "rubbish"))
    if damage == "frame":
        [segment] = await store.archive.list_segments(HOME)
        [path] = (tmp_path / "blobs" / "archive").glob(f"*/*/{segment.name.sha256}")
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreUnavailable):
        await forget(store)
    assert len((await store.log.read_resume(other.at.stream, 0))[1]) == 6
    assert await store.tombstones.list_objects() == []


@pytest.mark.parametrize("change", ["append", "open"])
async def test_session_that_changes_between_check_and_removal_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    story = await append_story(store)
    read, changed = SessionFinder.read, list[str]()

    async def change_behind(finder: SessionFinder, shard: Shard, session: str) -> object:
        frame = await read(finder, shard, session)
        begun = await store.tombstones.list_in_engine(shard_of(ADA))
        if begun and not changed:
            changed.append(session)
            if change == "open":
                await store.views.open_in_session(session, [story.at.task])
            else:
                assert isinstance(await store.log.append(story.tell("meanwhile")), Appended)
                head = keys.head(story.at.stream)
                late = pack("HSET", head, "at", "2026-01-02T03:05:00.000Z")
                await store.nodes.update(HOME, late)
        return frame

    monkeypatch.setattr(SessionFinder, "read", change_behind)
    await forget(store)
    assert changed == [story.at.session]
    assert len((await store.log.read_resume(story.at.stream, 0))[1]) >= 6


async def test_log_is_rewritten_after_the_key_and_before_the_end(store: Store) -> None:
    await append_story(store)
    key = (await store.owner_keys.obtain(ADA)).name
    seen = list[str]()

    async def rewrite() -> None:
        assert await store.owner_keys.recall(key) is None
        [begun] = await store.tombstones.list_in_engine(shard_of(ADA))
        seen.append(begun.owner)

    forgetting = replace(store.forgetting, rewrite_logs=rewrite)
    await forgetting.forget(ADA, "operator", NOW_MS)
    assert seen == [ADA]
    [ended] = await store.tombstones.list_in_engine(shard_of(ADA))
    assert not ended.owner
