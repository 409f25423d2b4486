"""Small segments are merged, whatever is killed, damaged or done meanwhile; every session is read as before."""

from __future__ import annotations

import random  # noqa: TID251  seeded
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.core.batch import Appended
from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.archive.segment_merge import MergedSegments
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_int
from passerelle.store.scripts import Script
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story, begin, read_all
from tests.contract.test_segment_cleanup import DAY_MS, list_objects
from tests.support.batches import make_place
from tests.support.killing import Killed, kill_change

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from passerelle.store.archive.segment import SegmentName
    from tests.support.engine import Server

pytestmark = pytest.mark.anyio
HOME, OTHER = Shard(9), Shard(40)
COUNT = 8
MOST_OF_TWO = 5_000
"""Bytes of a segment with two sessions."""


def read_ms(store: Store, days: float = 0) -> int:
    """The time ``days`` days from now."""
    return store.clock.read_ms(HOME) + round(days * DAY_MS)


async def merge(store: Store, days: float = 0) -> MergedSegments:
    return await store.segment_merge.merge(HOME, read_ms(store, days))


async def clean(store: Store, days: float) -> int:
    """Number of objects deleted, as if ``days`` days had passed."""
    done = [
        await store.segment_cleanup.clean(shard, read_ms(store, days)) for shard in (OTHER, HOME)
    ]
    return sum(one.deleted for one in done)


async def leave_together(store: Store, *stories: Story) -> None:
    """One segment of all of these, stored with the first of them."""
    parts = dict[Shard, list[str]]()
    for story in stories:
        parts.setdefault(story.at.shard, []).append(story.at.session)
    assert (await store.archiver.archive_together(parts)).stay == []


async def append_stories(store: Store, count: int = COUNT) -> list[Story]:
    """Segments of two sessions each, one of them of another shard; all belong to one shard."""
    stories = list[Story]()
    for _ in range(count):
        pair = [await begin(store, 1, Story(make_place(shard))) for shard in (HOME, OTHER)]
        await leave_together(store, *pair)
        stories += pair
    return stories


async def read_each(store: Store, stories: list[Story]) -> list[list[object]]:
    return [await read_all(store, story) for story in stories]


async def list_names(store: Store, shard: Shard = HOME) -> list[SegmentName]:
    return [one.name for one in await store.archive.list_segments(shard)]


async def check(
    store: Store, server: Server, folder: Path, stories: list[Story], reported: list[list[object]]
) -> None:
    """Everything is read as before, by old and new readers, and each session exists once."""
    assert await read_each(store, stories) == reported
    async with await Store.open(StoreSettings(server.url, folder / "blobs")) as fresh:
        assert await read_each(fresh, stories) == reported
        listed = sorted(await fresh.archive.list_sessions(ALL_SHARDS))
        assert len(listed) == len(set(listed))
        live = [one for one in stories if await is_live(fresh, one)]
        assert set(listed) | {one.at.session for one in live} >= {one.at.session for one in stories}
        assert not {one.at.session for one in live}.intersection(listed)


async def is_live(store: Store, story: Story) -> bool:
    command = pack("EXISTS", keys.head(story.at.stream))
    [found] = await store.nodes.query_all(story.at.shard, command)
    return bool(as_int(found))


async def test_segments_are_merged_per_shard_and_the_old_ones_deleted_a_week_later(
    store: Store, server: Server, tmp_path: Path
) -> None:
    stories = await append_stories(store)
    reported = await read_each(store, stories)
    done = await merge(store)
    assert (done.made, done.merged, done.damaged) == (1, COUNT, [])
    [one], [same] = [await store.archive.list_segments(shard) for shard in (HOME, OTHER)]
    assert one.name == same.name
    assert one.name.bytes == done.bytes
    assert len(await store.archive.list_archived(HOME, one)) == COUNT
    assert len(await store.archive.list_archived(OTHER, same)) == COUNT
    assert len(list_objects(tmp_path)) == COUNT + 1
    await check(store, server, tmp_path, stories, reported)
    assert await merge(store) == MergedSegments()
    assert await clean(store, 6.9) == 0
    assert await clean(store, 7.1) == COUNT
    assert [path.name for path in list_objects(tmp_path)] == [one.name.sha256]
    [left] = await store.nodes.query_all(HOME, pack("HGETALL", keys.segment_copies(HOME)))
    assert as_hash(left) == {}
    # The reader of the old segments no longer knows them.
    assert await read_each(store, stories) == reported
    await check(store, server, tmp_path, stories, reported)


async def test_reader_unaware_of_a_merge_continues_when_the_old_objects_are_deleted(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await append_stories(store)
    reported = await read_each(store, stories)
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as other:
        assert await read_each(other, stories[:2]) == reported[:2]
        await merge(store)
        await clean(store, 8)
        # As if ten seconds had passed.
        monkeypatch.setattr("passerelle.store.archive.reader.FRESH_S", 0.0)
        assert await read_each(other, stories) == reported


async def test_merged_segment_is_merged_again_and_deleted_with_its_last_session(
    store: Store, server: Server, tmp_path: Path
) -> None:
    stories = await append_stories(store)
    await merge(store)
    stories += await append_stories(store)
    assert (await merge(store)).merged == COUNT + 1
    reported = await read_each(store, stories)
    for days in (8, 16, 24):
        done = await merge(store, days)
        await clean(store, days)
        await check(store, server, tmp_path, stories, reported)
        assert not done.damaged
    for story in stories:
        assert await store.log.restore(story.at.shard, story.at.task)
    await clean(store, 25)
    await clean(store, 33)
    assert list_objects(tmp_path) == []
    for shard in (HOME, OTHER):
        asked = (name(shard) for name in (keys.segments, keys.merged_numbers, keys.segment_copies))
        left = await store.nodes.query_all(shard, *(pack("EXISTS", one) for one in asked))
        assert [*map(as_int, left)] == [0, 0, 0]
    assert await read_each(store, stories) == reported


async def test_a_merge_touches_no_row_and_asks_each_shard_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append_stories(store)
    asked, run = list[bytes](), list[tuple[str, int]]()
    query = store.nodes.query_in_background
    call = cast("Callable[..., Awaitable[object]]", store.nodes.run)

    async def ask(shard: Shard, *commands: bytes) -> object:
        asked.extend(commands)
        return await query(shard, *commands)

    async def note(
        script: Script[object], shard: Shard, names: list[str], *words: object
    ) -> object:
        run.append((script.name, shard.number))
        assert not [name for name in names if ":al:" in name]
        return await call(script, shard, names, *words)

    monkeypatch.setattr(store.nodes, "query_in_background", ask)
    monkeypatch.setattr(store.nodes, "run", note)
    assert (await merge(store)).made == 1
    assert not [command for command in asked if b":al:" in command]
    assert run == [
        ("begin_merge", HOME.number),
        ("merge_segments", OTHER.number),
        ("merge_segments", HOME.number),
    ]
    # Each shard is asked for each of the old segments, plus a few calls.
    assert len(asked) <= len(ALL_SHARDS) * COUNT + 16


def kill_at(store: Store, patch: pytest.MonkeyPatch, step: int, *, is_done: bool) -> None:
    """Makes the ``step``-th change of a merge the last one, or the first one that is not made."""
    places = ((store.nodes, ("run",)), (store.segment_merge.segments, ("put_pieces",)))
    kill_change(patch, places, step, is_done=is_done)


@pytest.mark.parametrize("is_done", [True, False])
async def test_merge_killed_at_any_step_is_completed_by_the_next(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    stories = await append_stories(store)
    reported = await read_each(store, stories)
    for step in range(1, 20):
        fresh = {one for one in await list_names(store) if one.bytes < MOST_OF_TWO}
        with monkeypatch.context() as patch:
            kill_at(store, patch, step, is_done=is_done)
            try:
                await merge(store)
            except Killed:
                pass
            else:
                break
        await check(store, server, tmp_path, stories, reported)
        done = await merge(store)
        assert not done.damaged
        for shard in (HOME, OTHER):
            assert not fresh.intersection(await list_names(store, shard))
        await check(store, server, tmp_path, stories, reported)
        [meta] = await store.nodes.query_all(HOME, pack("HEXISTS", keys.meta(HOME), "merge"))
        assert as_int(meta) == 0
        stories += await append_stories(store)
        reported = await read_each(store, stories)
    else:
        pytest.fail("a merge has more steps than this test knows")
    assert step >= 4
    await clean(store, 8)
    await clean(store, 16)
    await check(store, server, tmp_path, stories, reported)
    assert {path.name for path in list_objects(tmp_path)} == {
        one.sha256 for shard in (HOME, OTHER) for one in await list_names(store, shard)
    }


async def test_old_unfinished_merge_is_abandoned(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await append_stories(store)
    reported = await read_each(store, stories)
    with monkeypatch.context() as patch:
        kill_at(store, patch, 2, is_done=True)
        with pytest.raises(Killed):
            await merge(store)
    assert len(list_objects(tmp_path)) == COUNT + 1
    done = await merge(store, 2)
    assert (done.made, done.merged) == (1, COUNT)
    assert len(list_objects(tmp_path)) == COUNT + 2
    await clean(store, 10)
    await check(store, server, tmp_path, stories, reported)
    assert len(list_objects(tmp_path)) == 1


@pytest.mark.parametrize("fault", ["gone", "cut", "changed", "other"])
async def test_damaged_segment_is_reported_and_skipped_and_the_others_are_merged(
    store: Store, server: Server, tmp_path: Path, fault: str
) -> None:
    stories = await append_stories(store, COUNT + 1)
    reported = await read_each(store, stories)
    names = await list_names(store)
    [path] = [one for one in list_objects(tmp_path) if one.name == names[0].sha256]
    [other] = [one for one in list_objects(tmp_path) if one.name == names[1].sha256]
    content = path.read_bytes()
    match fault:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(content[:-40])
        case "changed":
            path.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
        case _:
            path.write_bytes(other.read_bytes())
    done = await merge(store)
    assert (done.made, done.merged) == (1, COUNT)
    [reason] = done.damaged
    assert "segment" in reason
    assert names[0] in await list_names(store)
    path.write_bytes(content)
    await check(store, server, tmp_path, stories, reported)


@pytest.mark.parametrize("fault", ["gone", "cut", "other bytes", "refused"])
async def test_failed_or_corrupt_write_leaves_everything_unchanged(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    stories = await append_stories(store)
    reported = await read_each(store, stories)
    before = await list_names(store), await list_names(store, OTHER)
    put = store.segment_merge.segments.put_pieces

    async def put_wrongly(shard: Shard, sha256: str, pieces: tuple[bytes]) -> None:
        if fault == "refused":
            raise StoreUnavailable("blob directory: No space left on device", "no")
        [content] = pieces
        wrong = {"cut": content[:-1], "other bytes": b"\0" + content[1:-99] + bytes(99)}
        if fault != "gone":
            await put(shard, sha256, (wrong[fault],))

    with monkeypatch.context() as patch:
        patch.setattr(store.segment_merge.segments, "put_pieces", put_wrongly)
        try:
            assert (await merge(store)).made == 0
        except StoreUnavailable:
            assert fault == "refused"
    assert (await list_names(store), await list_names(store, OTHER)) == before
    await check(store, server, tmp_path, stories, reported)
    assert (await merge(store)).made == 1
    await check(store, server, tmp_path, stories, reported)


async def test_late_commit_of_another_shard_keeps_its_object_after_a_merge(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await append_stories(store, COUNT - 1)
    pair = [await begin(store, 1, Story(make_place(shard))) for shard in (HOME, OTHER)]
    reported = await read_each(store, [*stories, *pair])
    run = cast("Callable[..., Awaitable[object]]", store.nodes.run)
    merged = list[MergedSegments]()

    async def merge_before(script: Script[object], shard: Shard, *words: object) -> object:
        if script.name == "archive_commit" and shard == OTHER and not merged:
            merged.append(await merge(store))
        return await run(script, shard, *words)

    with monkeypatch.context() as patch:
        patch.setattr(store.nodes, "run", merge_before)
        parts = {story.at.shard: [story.at.session] for story in pair}
        await store.archiver.archive_together(parts)
    stories += pair
    assert merged
    for days in (0, 8, 16):
        await clean(store, days)
        await check(store, server, tmp_path, stories, reported)


@pytest.mark.parametrize("seed", range(3))
async def test_random_archive_operations_keep_every_session_readable(
    store: Store, server: Server, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  a plan that can be played again
    stories = [
        await begin(store, 1, Story(make_place(chance.choice((HOME, OTHER))))) for _ in range(20)
    ]
    days = 0.0
    for _ in range(60):
        story = chance.choice(stories)
        match chance.randrange(6):
            case 0 | 1 | 2:
                await leave_some(store, [story, chance.choice(stories)])
            case 3:
                await store.log.restore(story.at.shard, story.at.task)
                assert isinstance(await store.log.append(story.tell("again")), Appended)
            case 4:
                for shard in (HOME, OTHER):
                    done = await store.segment_merge.merge(shard, read_ms(store, days))
                    assert not done.damaged
            case _:
                days += chance.choice((0.1, 4, 8))
                await clean(store, days)
    reported = await read_each(store, stories)
    await check(store, server, tmp_path, stories, reported)
    await leave_some(store, stories)
    assert await read_each(store, stories) == reported


async def leave_some(store: Store, stories: list[Story]) -> None:
    """The sessions that are in the engine."""
    parts = dict[Shard, list[str]]()
    for story in stories:
        own = parts.setdefault(story.at.shard, [])
        if story.at.session not in own and await is_live(store, story):
            own.append(story.at.session)
    await store.archiver.archive_together(parts)


async def test_segment_number_without_a_segment_is_reported_as_damage(store: Store) -> None:
    [story, _, *_] = await append_stories(store)
    await merge(store)
    await store.nodes.update(HOME, pack("UNLINK", keys.merged_numbers(HOME)))
    with pytest.raises(ArchiveDamaged, match=f"archive of shard {HOME.tag} has no segment"):
        await store.archive.find(HOME, story.at.session)
