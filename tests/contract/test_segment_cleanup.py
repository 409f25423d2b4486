"""Unreferenced segments are deleted a week later, whatever was killed when; all others stay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.archive.locator import place_row
from passerelle.store.archive.segment_cleanup import CleanedSegments
from passerelle.store.connection import pack
from passerelle.store.scripts import Script
from tests.contract.test_archive import Story, begin, leave, read_all
from tests.support.batches import make_place
from tests.support.engine import Server, ask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from passerelle.store.connection import RespValue
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio
HOME = Shard(9)
DAY_MS = 24 * 3_600_000


def read_ms(store: Store, days: float = 0) -> int:
    """The time ``days`` days from now."""
    return store.clock.read_ms(HOME) + round(days * DAY_MS)


async def clean(store: Store, days: float = 0) -> CleanedSegments:
    """Cleans up as if ``days`` days had passed."""
    return await store.segment_cleanup.clean(HOME, read_ms(store, days))


def list_objects(folder: Path) -> list[Path]:
    """Existing segments, without the file that identifies the storage."""
    return [path for path in (folder / "blobs" / "archive").rglob("*") if path.is_file()]


async def append_stories(store: Store, count: int) -> list[Story]:
    """Sessions of one shard."""
    return [await begin(store, 2, Story(make_place(HOME))) for _ in range(count)]


async def count_named(store: Store) -> tuple[int, int]:
    """Number of segments that rows reference, and of noted ones."""
    asked = (pack("ZCARD", name(HOME)) for name in (keys.segments, keys.segment_notes))
    named, noted = await store.nodes.query_all(HOME, *asked)
    assert isinstance(named, int)
    assert isinstance(noted, int)
    return named, noted


async def test_segment_is_deleted_a_week_after_its_last_session_was_revived(
    store: Store, tmp_path: Path
) -> None:
    back, stays = await append_stories(store, 2), await append_stories(store, 1)
    before = [await read_all(store, story) for story in (*back, *stays)]
    await leave(store, *back)
    await leave(store, *stays)
    assert await count_named(store) == (2, 0)
    await store.log.restore(HOME, back[0].at.task)
    assert await clean(store) == CleanedSegments()
    await store.log.restore(HOME, back[1].at.task)
    assert await clean(store) == CleanedSegments(noted=1)
    assert await clean(store, 6.9) == CleanedSegments()
    assert len(list_objects(tmp_path)) == 2
    done = await clean(store, 7.1)
    assert (done.noted, done.deleted) == (0, 1)
    assert done.bytes > 500
    assert (len(list_objects(tmp_path)), await count_named(store)) == (1, (1, 0))
    assert [await read_all(store, story) for story in (*back, *stays)] == before
    assert await clean(store, 30) == CleanedSegments()
    assert [await read_all(store, story) for story in (*back, *stays)] == before


@pytest.mark.parametrize("step", ["note", "put", "commit"])
@pytest.mark.parametrize("is_done", [True, False])
async def test_segment_of_a_killed_process_is_deleted_and_its_sessions_stay(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    stories = await append_stories(store, 3)
    before = [await read_all(store, story) for story in stories]
    put = (store.archiver.segments, "put_pieces")
    owner, name = put if step == "put" else (store.nodes, "run")
    script = {"note": "note_segment", "commit": "archive_commit"}.get(step)
    call: Callable[..., Awaitable[object]] = getattr(owner, name)

    async def be_killed(*words: object) -> object:
        if isinstance(words[0], Script) and words[0].name != script:
            return await call(*words)
        if is_done:
            await call(*words)
        raise StoreUnavailable("killed", "unknown")

    monkeypatch.setattr(owner, name, be_killed)
    with pytest.raises(StoreUnavailable):
        await leave(store, *stories)
    monkeypatch.undo()
    assert [await read_all(store, story) for story in stories] == before
    assert len(list_objects(tmp_path)) == (step == "commit" or (step == "put" and is_done))
    await clean(store)
    await clean(store, 8)
    named = int(step == "commit" and is_done)
    assert (len(list_objects(tmp_path)), await count_named(store)) == (named, (named, 0))
    assert [await read_all(store, story) for story in stories] == before
    if not named:
        await leave(store, *stories)
    await clean(store, 16)
    assert [await read_all(store, story) for story in stories] == before


OTHER = Shard(40)


async def leave_together(store: Store, *stories: Story) -> None:
    """Archives sessions of two shards in one object, which belongs to the first."""
    parts = {
        shard: [story.at.session for story in stories if story.at.shard == shard]
        for shard in (HOME, OTHER)
    }
    assert (await store.archiver.archive_together(parts)).stay == []


async def clean_both(store: Store, days: float = 0) -> list[CleanedSegments]:
    """The same in both shards, the other one first."""
    return [
        await store.segment_cleanup.clean(shard, read_ms(store, days)) for shard in (OTHER, HOME)
    ]


@pytest.mark.parametrize("first", [HOME, OTHER])
async def test_object_of_two_shards_is_deleted_a_week_after_both_were_revived(
    store: Store, tmp_path: Path, first: Shard
) -> None:
    stories = [await begin(store, 2, Story(make_place(shard))) for shard in (HOME, OTHER)]
    await leave_together(store, *stories)
    # The first of this list is revived first.
    stories.sort(key=lambda story: story.at.shard != first)
    before = [await read_all(store, story) for story in stories]
    back, stays = stories
    await store.log.restore(back.at.shard, back.at.task)
    assert sum(one.noted for one in await clean_both(store)) == 1
    for days in (8.0, 30.0):
        assert [one.deleted for one in await clean_both(store, days)] == [0, 0]
    assert len(list_objects(tmp_path)) == 1
    assert await read_all(store, stays) == before[1]
    await store.log.restore(stays.at.shard, stays.at.task)
    assert sum(one.noted for one in await clean_both(store, 31)) == 1
    assert [one.deleted for one in await clean_both(store, 37)] == [0, 0]
    assert [one.deleted for one in await clean_both(store, 39)] == [0, 1]
    assert (list_objects(tmp_path), await count_named(store)) == ([], (0, 0))
    assert [await read_all(store, story) for story in stories] == before


@pytest.mark.parametrize("committed", [None, HOME, OTHER])
async def test_object_referenced_by_one_of_two_shards_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: Shard | None
) -> None:
    """A process is killed between the commits of its shards."""
    stories = [await begin(store, 2, Story(make_place(shard))) for shard in (HOME, OTHER)]
    before = [await read_all(store, story) for story in stories]
    run = cast("Callable[..., Awaitable[object]]", store.nodes.run)

    async def be_killed(script: Script[object], shard: Shard, *words: object) -> object:
        if script.name == "archive_commit" and shard != committed:
            raise StoreUnavailable("killed", "unknown")
        return await run(script, shard, *words)

    monkeypatch.setattr(store.nodes, "run", be_killed)
    with pytest.raises(StoreUnavailable):
        await leave_together(store, *stories)
    monkeypatch.undo()
    assert [await read_all(store, story) for story in stories] == before
    for days in (0.0, 8.0, 30.0):
        await clean_both(store, days)
    assert len(list_objects(tmp_path)) == (committed is not None)
    assert [await read_all(store, story) for story in stories] == before
    for story in stories:
        await store.log.restore(story.at.shard, story.at.task)
    await clean_both(store, 31)
    await clean_both(store, 39)
    assert (list_objects(tmp_path), await count_named(store)) == ([], (0, 0))
    assert [await read_all(store, story) for story in stories] == before


async def test_object_stays_while_a_shard_is_unavailable(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [story] = await append_stories(store, 1)
    await leave(store, story)
    await store.log.restore(HOME, story.at.task)
    await clean(store)
    query = store.nodes.query_in_background

    async def refuse(shard: Shard, *commands: bytes) -> list[RespValue]:
        if shard == OTHER:
            raise StoreUnavailable("connection refused", "no")
        return await query(shard, *commands)

    monkeypatch.setattr(store.nodes, "query_in_background", refuse)
    with pytest.raises(StoreUnavailable):
        await clean(store, 8)
    monkeypatch.undo()
    assert len(list_objects(tmp_path)) == 1
    assert (await clean(store, 8)).deleted == 1


async def test_archiving_frees_memory_when_it_is_full(store: Store, server: Server) -> None:
    """Noting, committing and cleaning up stay possible: without them memory would stay full."""
    back, gone = await append_stories(store, 1), await append_stories(store, 1)
    await leave(store, *back)
    await store.log.restore(HOME, back[0].at.task)
    for url in server.nodes:
        ask(url, "CONFIG", "SET", "maxmemory", 1)
    try:
        await leave(store, *gone)
        assert await clean(store) == CleanedSegments(noted=1)
        assert (await clean(store, 8)).deleted == 1
    finally:
        for url in server.nodes:
            ask(url, "CONFIG", "SET", "maxmemory", 0)


async def test_note_of_a_referenced_segment_is_removed(store: Store) -> None:
    stories = await append_stories(store, 2)
    before = [await read_all(store, story) for story in stories]
    await leave(store, *stories)
    [segment] = await store.archive.list_segments(HOME)
    note = pack("ZADD", keys.segment_notes(HOME), 1, str(segment.name))
    await store.nodes.update(HOME, note)
    assert await clean(store, 8) == CleanedSegments()
    assert await count_named(store) == (1, 0)
    assert [await read_all(store, story) for story in stories] == before


async def test_damaged_row_prevents_deletion(store: Store, tmp_path: Path) -> None:
    [story] = await append_stories(store, 1)
    await leave(store, story)
    await store.log.restore(HOME, story.at.task)
    await clean(store)
    bucket, name = place_row(HOME, "another")
    await store.nodes.update(HOME, pack("HSET", bucket, name, "rubbish"))
    with pytest.raises(ArchiveDamaged, match=f"a row of the archive of shard {HOME.tag}"):
        await clean(store, 8)
    assert len(list_objects(tmp_path)) == 1


async def test_foreign_files_are_not_touched(store: Store) -> None:
    digest = await store.archiver.segments.put(HOME, b"of another store in the same place")
    await leave(store, *await append_stories(store, 1))
    await clean(store, 30)
    assert await store.archiver.segments.get(HOME, digest) is not None


async def test_unavailable_storage_is_retried(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [story] = await append_stories(store, 1)
    await leave(store, story)
    await store.log.restore(HOME, story.at.task)
    await clean(store)

    async def refuse(*_: object) -> bool:
        raise StoreUnavailable("blob directory: Input/output error", "no")

    monkeypatch.setattr(store.segment_cleanup.segments, "expire", refuse)
    with pytest.raises(StoreUnavailable):
        await clean(store, 8)
    monkeypatch.undo()
    # A file that its storage considers recently written waits; its note stays.
    [path] = list_objects(tmp_path)
    late_s = read_ms(store, 8) / 1000
    os.utime(path, (late_s, late_s))
    assert (await clean(store, 8)).deleted == 0
    assert (await clean(store, 15)).deleted == 1
    assert (list_objects(tmp_path), await count_named(store)) == ([], (0, 0))
