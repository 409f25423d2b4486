"""Erasure of single sessions: their frames are removed from segments, and everything else is read as before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.core.batch import Appended, OpenChange
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.archive.erased_frame import read_erased
from passerelle.store.archive.owner_survey import SessionFinder
from passerelle.store.archive.segment import SegmentName
from passerelle.store.archive.session_survey import ChosenSessions, SessionChoice, SessionWalk
from passerelle.store.archive.tombstones import LegalHold, Tombstones
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story, find_keys, leave, read_all
from tests.contract.test_forgetting import ADA, BOB, HOME, NOW_MS, append_story, find_names
from tests.support.engine import Server, ask
from tests.support.killing import Killed, kill_change

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.store.archive.segment import FrameNote
    from passerelle.store.archive.session_forgetting import ForgottenSessions

pytestmark = pytest.mark.anyio
OTHER = Shard(12)


def choose(*stories: Story, before_ms: int = NOW_MS) -> SessionChoice:
    return SessionChoice(before_ms, frozenset(story.at.session for story in stories))


async def forget(store: Store, *stories: Story) -> ForgottenSessions:
    return await store.session_forgetting.forget(choose(*stories), "operator")


async def leave_together(store: Store, *stories: Story) -> SegmentName:
    """Archives sessions of several shards in one segment."""
    parts = dict[Shard, list[str]]()
    for story in stories:
        parts.setdefault(story.at.shard, []).append(story.at.session)
    assert (await store.archiver.archive_together(parts)).stay == []
    [name] = {one.name for shard in parts for one in await store.archive.list_segments(shard)}
    return name


def list_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def is_gone(server: Server, folder: Path, *stories: Story) -> bool:
    """Whether no key and no file contains data of these."""
    files = list_files(folder)
    names = [ref.id for story in stories for ref in story.refs]
    return not find_names(server, *names) and not any(
        name.encode() in content for name in names for content in files
    )


async def test_frame_is_removed_and_all_others_of_its_segment_are_read_as_before(
    store: Store, server: Server, tmp_path: Path
) -> None:
    mine = [await append_story(store, ADA, home) for home in (HOME, OTHER)]
    others = [
        await append_story(store, owner, home) for owner in (ADA, BOB) for home in (HOME, OTHER)
    ]
    name = await leave_together(store, *mine, *others)
    kept = [await read_all(store, story) for story in others]
    before = await store.archive.read_notes(name)
    plan = await store.session_forgetting.plan(choose(*mine))
    assert (plan.counts.sessions, plan.counts.archived, plan.counts.tasks) == (2, 2, 2)
    assert plan.counts.bytes > 500
    done = await forget(store, *mine)
    assert (done.count, done.held) == (2, [])
    assert is_gone(server, tmp_path, *mine)
    for story in mine:
        assert await store.log.read_head(story.at.stream) is None
        assert f"content of {story.at.task}".encode() not in b"".join(list_files(tmp_path))
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh:
        assert [await read_all(fresh, story) for story in others] == kept
    gone = {story.at.session for story in mine}
    assert await store.archive.read_notes(name) == [
        note for note in before if note.session not in gone
    ]
    assert (await store.session_forgetting.plan(choose(*mine))).counts.sessions == 0


async def test_erased_frame_leaves_its_digest_and_the_tombstone(
    store: Store, server: Server, tmp_path: Path
) -> None:
    story = await append_story(store)
    await leave(store, story)
    [segment] = await store.archive.list_segments(HOME)
    [note] = await store.archive.read_notes(segment.name)
    sealed = await store.archive.read_sealed(HOME, segment, note)
    [tombstone] = (await forget(store, story)).tombstones
    erased = read_erased(await store.archive.read_sealed(HOME, segment, note))
    assert erased is not None
    assert erased.tombstone == tombstone.id
    assert sealed not in b"".join(list_files(tmp_path))
    assert len(sealed) == note.length
    # Nothing is left in it to ask about.
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh, asyncio.timeout(10):
        assert await fresh.archive.list_archived(HOME, segment) == []


async def test_frames_of_earlier_archivings_are_erased_too(
    store: Store, server: Server, tmp_path: Path
) -> None:
    story, other = await append_story(store), await append_story(store, BOB)
    await leave(store, story, other)
    await store.log.restore(HOME, story.at.task)
    assert isinstance(await store.log.append(story.tell("again")), Appended)
    [first] = await store.archive.list_segments(HOME)
    await leave(store, story)
    kept = await read_all(store, other)
    await forget(store, story)
    assert is_gone(server, tmp_path, story)
    assert [note.session for note in await store.archive.read_notes(first.name)] == [
        other.at.session
    ]
    assert await read_all(store, other) == kept


async def test_earlier_frames_of_a_revived_session_are_erased(
    store: Store, server: Server, tmp_path: Path
) -> None:
    story, other = await append_story(store), await append_story(store, BOB)
    await leave(store, story, other)
    await store.log.restore(HOME, story.at.task)
    assert isinstance(await store.log.append(story.tell("again")), Appended)
    kept = await read_all(store, other)
    assert (await forget(store, story)).count == 1
    assert is_gone(server, tmp_path, story)
    assert await read_all(store, other) == kept


async def test_engine_data_is_erased_as_well(store: Store, server: Server, tmp_path: Path) -> None:
    mine, other = [await append_story(store) for _ in range(3)], await append_story(store)
    kept = await read_all(store, other)
    done = await forget(store, *mine)
    assert done.count == 3
    assert is_gone(server, tmp_path, *mine)
    assert await read_all(store, other) == kept


async def test_sessions_older_than_a_time_are_erased_and_younger_ones_stay(
    store: Store, server: Server, tmp_path: Path
) -> None:
    old = [await append_story(store, owner, home) for owner in (ADA, BOB) for home in (HOME, OTHER)]
    young = [await append_story(store, owner) for owner in (ADA, BOB)]
    for story in young:
        later = pack("HSET", keys.head(story.at.stream), "at", "2026-01-02T03:05:00.000Z")
        await store.nodes.update(HOME, later)
    await leave_together(store, *old[:2], young[0])
    kept = [await read_all(store, story) for story in young]
    choice = SessionChoice(NOW_MS)
    plan = await store.session_forgetting.plan(choice)
    assert (plan.counts.sessions, plan.counts.archived) == (4, 2)
    done = await store.session_forgetting.forget(choice, "operator")
    assert done.count == 4
    assert is_gone(server, tmp_path, *old)
    assert [await read_all(store, story) for story in young] == kept


async def test_many_sessions_are_erased_in_parts(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [await append_story(store) for _ in range(5)]
    await leave(store, *mine[:3])
    look, parts = SessionWalk.look, list[int]()

    async def look_at_two(walk: SessionWalk, _most: int = 0) -> ChosenSessions:
        found = await look(walk, 2)
        parts.append(len(found.chosen))
        return found

    monkeypatch.setattr(SessionWalk, "look", look_at_two)
    plan = await store.session_forgetting.plan(SessionChoice(NOW_MS))
    assert plan.counts.sessions == 5
    assert parts == [2, 2, 1]
    done = await store.session_forgetting.forget(SessionChoice(NOW_MS), "operator")
    assert done.count == 5
    assert is_gone(server, tmp_path, *mine)


async def count_reads(
    store: Store, stories: list[Story], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """Segments of two sessions each; returns the number of footer reads to erase all of these in parts of two."""
    for part in in_chunks(stories, 2):
        await leave(store, *part)
    segments, reads = await store.archive.list_segments(HOME), list[SegmentName]()
    read_notes = store.archive.read_notes

    async def count(name: SegmentName) -> list[FrameNote]:
        reads.append(name)
        return await read_notes(name)

    with monkeypatch.context() as patch:
        patch.setattr(store.archive, "read_notes", count)
        walk = await store.session_forgetting.begin(SessionChoice(NOW_MS))
        gone = 0
        while not walk.is_over:
            gone += (await store.session_forgetting.forget_part(walk, "operator", 2)).count
    assert gone == len(stories)
    return len(segments), len(reads)


async def test_footer_reads_do_not_grow_with_the_number_of_parts(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice along the walk, and once at its end for content that others may reference."""
    stories = [await append_story(store) for _ in range(6)]
    assert await count_reads(store, stories, monkeypatch) == (3, 9)
    assert is_gone(server, tmp_path, *stories)
    assert not any(b"content of" in content for content in list_files(tmp_path))
    await store.nodes.update(HOME, pack("UNLINK", keys.segments(HOME), keys.segment_notes(HOME)))
    stories = [await append_story(store) for _ in range(24)]
    assert await count_reads(store, stories, monkeypatch) == (12, 36)
    assert is_gone(server, tmp_path, *stories)


async def test_open_session_stays(store: Store) -> None:
    story = Story(owner=ADA)
    opened = (OpenChange(story.at.task, 0),)
    assert isinstance(await store.log.append(story.tell("", opened=opened)), Appended)
    plan = await store.session_forgetting.plan(choose(story))
    assert (plan.counts.sessions, plan.open) == (0, (story.at.session,))
    assert (await forget(store, story)).count == 0
    assert await store.log.read_head(story.at.stream) is not None


@pytest.mark.parametrize("is_archived", [True, False])
async def test_held_session_stays_even_if_the_hold_comes_at_the_last_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, is_archived: bool
) -> None:
    mine, other = await append_story(store), await append_story(store, BOB)
    if is_archived:
        await leave(store, mine, other)
    hold = LegalHold(NOW_MS, "carl", "case 12")
    assert await store.tombstones.hold(ADA, hold)
    plan = await store.session_forgetting.plan(choose(mine, other))
    assert (plan.counts.sessions, plan.held) == (1, (mine.at.session,))
    await store.tombstones.release(ADA)
    find_hold = Tombstones.find_hold

    async def hold_behind(tombstones: Tombstones, owner: str) -> LegalHold | None:
        found = await find_hold(tombstones, owner)
        if owner == ADA:
            await tombstones.hold(ADA, hold)
        return found

    monkeypatch.setattr(Tombstones, "find_hold", hold_behind)
    kept = await read_all(store, mine)
    done = await forget(store, mine, other)
    assert (done.count, done.held) == (1, [mine.at.session])
    assert await read_all(store, mine) == kept
    assert await store.log.read_head(other.at.stream) is None


async def test_session_continued_between_check_and_removal_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = await append_story(store)
    read, changed = SessionFinder.read, list[str]()

    async def append_behind(finder: SessionFinder, shard: Shard, session: str) -> object:
        frame = await read(finder, shard, session)
        if not changed:
            changed.append(session)
            assert isinstance(await store.log.append(story.tell("meanwhile")), Appended)
            late = pack("HSET", keys.head(story.at.stream), "at", "2026-01-02T03:05:00.000Z")
            await store.nodes.update(HOME, late)
        return frame

    monkeypatch.setattr(SessionFinder, "read", append_behind)
    assert (await forget(store, story)).count == 0
    assert len((await store.log.read_resume(story.at.stream, 0))[1]) == 8


def kill_at(store: Store, monkeypatch: pytest.MonkeyPatch, step: int, *, is_done: bool) -> None:
    """Makes the ``step``-th change of a store the last one, or the first one that is not made."""
    forgetting = store.session_forgetting
    places = (
        (store.nodes, ("run", "update")),
        (store.blobs, ("expire",)),
        (store.copies, ("expire",)),
        (forgetting.tombstones.objects, ("put",)),
        (forgetting.erasure.segments, ("replace",)),
    )
    kill_change(monkeypatch, places, step, is_done=is_done)


@pytest.mark.parametrize("is_done", [True, False])
async def test_erasure_killed_at_any_step_is_completed_by_the_next(
    store: Store,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_done: bool,
) -> None:
    others = [await append_story(store, owner) for owner in (ADA, BOB)]
    await leave(store, others[0])
    steps, settings = 0, StoreSettings(server.url, tmp_path / "blobs")
    while True:
        steps += 1
        mine = [await append_story(store, ADA, home) for home in (HOME, HOME, OTHER)]
        second = await append_story(store, BOB)
        await leave(store, mine[0], second)
        others = [*others[:2], second]
        kept = [await read_all(store, story) for story in others]
        with monkeypatch.context() as patch:
            kill_at(store, patch, steps, is_done=is_done)
            try:
                await forget(store, *mine)
                break
            except Killed:
                pass
        async with await Store.open(settings) as fresh:
            await fresh.session_forgetting.resume(ALL_SHARDS, NOW_MS)
            await forget(fresh, *mine)
            assert is_gone(server, tmp_path, *mine), steps
            assert [await read_all(fresh, story) for story in others] == kept
            assert await fresh.session_forgetting.resume(ALL_SHARDS, NOW_MS + 1) == []
    assert is_gone(server, tmp_path, *mine)
    assert steps > 10


def copy_engine(server: Server) -> dict[str, tuple[str, bytes]]:
    return {
        key: (url, cast("bytes", ask(url, "DUMP", key)))
        for key, url in find_keys(server, "*").items()
        if ":probe" not in key
    }


def put_back(server: Server, copies: dict[str, tuple[str, bytes]]) -> None:
    """Restores the engine to the state of the copy."""
    for key, url in find_keys(server, "*").items():
        ask(url, "DEL", key)
    for key, (url, dumped) in copies.items():
        ask(url, "RESTORE", key, 0, dumped, "REPLACE")


@pytest.mark.parametrize("is_archived", [True, False])
async def test_restored_backup_reads_as_erased_and_is_erased_again(
    store: Store, server: Server, tmp_path: Path, *, is_archived: bool
) -> None:
    mine, other = await append_story(store), await append_story(store)
    await store.owner_keys.tag(ADA)
    if is_archived:
        await leave(store, mine, other)
    kept, copies = await read_all(store, other), copy_engine(server)
    await forget(store, mine)
    put_back(server, copies)
    settings = StoreSettings(server.url, tmp_path / "blobs")
    async with await Store.open(settings) as fresh:
        head = await fresh.log.read_head(mine.at.stream)
        # A row leads to a frame that is marked as erased; the engine's data stays until it is erased again.
        assert (head is None) == is_archived
        done = await fresh.session_forgetting.resume(ALL_SHARDS, NOW_MS - 1)
        assert len(done) == (not is_archived)
        assert await fresh.log.read_head(mine.at.stream) is None
        assert await read_all(fresh, other) == kept
        assert await fresh.session_forgetting.resume(ALL_SHARDS, NOW_MS + 1) == []
        if not is_archived:
            assert is_gone(server, tmp_path, mine)


async def test_new_session_with_the_same_id_is_not_erased_by_an_old_tombstone(
    store: Store, server: Server, tmp_path: Path
) -> None:
    mine = await append_story(store)
    await forget(store, mine)
    again = Story(mine.at, owner=ADA)
    assert isinstance(await store.log.append(again.tell("again")), Appended)
    later = pack("HSET", keys.head(mine.at.stream), "at", "2026-01-02T03:05:00.000Z")
    await store.nodes.update(HOME, later)
    await store.nodes.update(HOME, pack("UNLINK", keys.forgotten_sessions(HOME)))
    assert await store.session_forgetting.resume(ALL_SHARDS, 0) == []
    assert len((await store.log.read_resume(mine.at.stream, 0))[1]) == 2


async def test_tombstone_contains_a_keyed_hash_and_the_engine_only_time_and_actor(
    store: Store, server: Server
) -> None:
    story = await append_story(store)
    [done] = (await forget(store, story)).tombstones
    rows = await store.nodes.query(HOME, pack("HGETALL", keys.forgotten_sessions(HOME)), as_hash)
    assert rows == {done.id: done.header.encode()}
    assert find_names(server, story.at.session) == []
    [digest] = await store.session_forgetting.tombstones.objects.list_digests(HOME)
    stored = await store.session_forgetting.tombstones.objects.get(HOME, digest)
    assert stored is not None
    assert story.at.session.encode() not in stored
    assert ADA.encode() not in stored
    [lost] = await store.session_forgetting.tombstones.list_lost(HOME, 0)
    assert lost.tags == {await store.owner_keys.tag(story.at.session)}


async def test_concurrent_rewrites_of_one_object_erase_all_of_both(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one overwrites the newer state with an older one, and notices it."""
    mine, yours, other = (
        await append_story(store),
        await append_story(store),
        await append_story(store, BOB),
    )
    await leave(store, mine, yours, other)
    kept = await read_all(store, other)
    segments = store.session_forgetting.erasure.segments
    replace_object = segments.replace
    settings = StoreSettings(server.url, tmp_path / "blobs")
    writes = list[str]()

    async def replace_late(shard: Shard, name: str, content: bytes) -> None:
        if not writes:
            writes.append(name)
            async with await Store.open(settings) as fresh:
                assert (await forget(fresh, yours)).count == 1
        await replace_object(shard, name, content)

    monkeypatch.setattr(segments, "replace", replace_late)
    assert (await forget(store, mine)).count == 1
    assert is_gone(server, tmp_path, mine, yours)
    assert await read_all(store, other) == kept


async def test_concurrent_erasures_leave_all_other_sessions(
    store: Store, server: Server, tmp_path: Path
) -> None:
    stories = [await append_story(store) for _ in range(8)]
    other = await append_story(store, BOB)
    await leave(store, *stories, other)
    kept = await read_all(store, other)
    await asyncio.gather(*(forget(store, *stories[place::3], stories[0]) for place in range(3)))
    assert is_gone(server, tmp_path, *stories)
    assert await read_all(store, other) == kept


async def test_unavailable_storage_leaves_the_erasure_to_the_next_call(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, other = await append_story(store), await append_story(store, BOB)
    await leave(store, story, other)
    kept = await read_all(store, other)

    async def refuse(*_words: object) -> None:
        reason = "disk full"
        raise StoreUnavailable(reason, "no")

    with monkeypatch.context() as patch:
        patch.setattr(store.session_forgetting.erasure.segments, "replace", refuse)
        with pytest.raises(StoreUnavailable, match="disk full"):
            await forget(store, story)
        assert await store.log.read_head(story.at.stream) is None
        assert await read_all(store, other) == kept
    assert len(await store.session_forgetting.finish(ALL_SHARDS)) == 1
    assert is_gone(server, tmp_path, story)
    assert await read_all(store, other) == kept


@pytest.mark.parametrize("cut", [1, 200])
async def test_corrupt_object_is_reported_and_not_rewritten(
    store: Store, server: Server, tmp_path: Path, cut: int
) -> None:
    story, other, elsewhere = (
        await append_story(store),
        await append_story(store, BOB),
        await append_story(store),
    )
    await leave(store, story, other)
    [segment] = await store.archive.list_segments(HOME)
    [path] = (tmp_path / "blobs" / "archive").glob(f"*/*/{segment.name.sha256}")
    whole = path.read_bytes()
    notes = await store.archive.read_notes(segment.name)
    at = next(note.offset for note in notes if note.session == other.at.session)
    damaged = whole[: at + cut] + bytes([whole[at + cut] ^ 1]) + whole[at + cut + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(ArchiveDamaged, match=f"segment {segment.name.sha256}"):
        await forget(store, story, elsewhere)
    assert path.read_bytes() == damaged
    [begun] = await store.session_forgetting.tombstones.list_begun(HOME)
    assert {one.session for one in begun.sessions.values()} >= {story.at.session}
    path.write_bytes(whole)
    await store.session_forgetting.finish(ALL_SHARDS)
    assert is_gone(server, tmp_path, story, elsewhere)
