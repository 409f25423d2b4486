"""Segments are merged while sessions in them are erased: nothing of these is left in any object, old or new."""

from __future__ import annotations

import random  # noqa: TID251  seeded
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from passerelle.core.ids import ALL_SHARDS
from passerelle.store.archive.segment_merge import MergedSegments
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story, begin
from tests.contract.test_forgetting import ADA, BOB, NOW_MS
from tests.contract.test_segment_cleanup import list_objects
from tests.contract.test_segment_merge import (
    HOME,
    OTHER,
    clean,
    leave_together,
    read_each,
    read_ms,
)
from tests.contract.test_segment_merge import kill_at as kill_merge_at
from tests.contract.test_session_forgetting import forget, is_gone, list_files
from tests.contract.test_session_forgetting import kill_at as kill_forgetting_at
from tests.support.batches import make_place
from tests.support.killing import Killed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.engine import Server

pytestmark = pytest.mark.anyio
COUNT = 3


@dataclass
class MergeCase:
    """``COUNT`` segments of three sessions: one to be erased, of either shard, and two of others that stay."""

    mine: list[Story] = field(default_factory=list[Story])
    stay: list[Story] = field(default_factory=list[Story])
    sealed: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The frames to be erased, by session."""
    kept: list[list[object]] = field(default_factory=list[list[object]])


async def merge(store: Store, days: float = 0) -> MergedSegments:
    """Merges even if there are few segments."""
    return await replace(store.segment_merge, few=COUNT).merge(HOME, read_ms(store, days))


async def archive_segments(store: Store) -> MergeCase:
    reported = MergeCase()
    for number in range(COUNT):
        mine = Story(make_place((HOME, OTHER)[number % 2]), owner=ADA)
        stay = [Story(make_place(shard), owner=BOB) for shard in (HOME, OTHER)]
        for story in (mine, *stay):
            await begin(store, 1, story)
        # The first session decides where the segment is stored.
        await leave_together(store, stay[0], mine, stay[1])
        reported.mine.append(mine)
        reported.stay += stay
    gone = {story.at.session for story in reported.mine}
    for shard in (HOME, OTHER):
        for segment in await store.archive.list_segments(shard):
            for note in await store.archive.list_frames(shard, segment):
                if note.session in gone:
                    sealed = await store.archive.read_sealed(shard, segment, note)
                    reported.sealed[note.session] = sealed
    assert len(reported.sealed) == COUNT
    reported.kept = await read_each(store, reported.stay)
    return reported


async def check(
    store: Store, server: Server, folder: Path, reported: MergeCase, gone: list[Story]
) -> None:
    """No object contains a byte of erased data, no reader sees it, and everything else is read as before."""
    assert is_gone(server, folder, *gone)
    files = list_files(folder)
    names = {story.at.session for story in gone}
    left = {
        session
        for session, sealed in reported.sealed.items()
        if any(sealed in content for content in files)
    }
    assert left == reported.sealed.keys() - names
    async with await Store.open(StoreSettings(server.url, folder / "blobs")) as fresh:
        for one in (store, fresh):
            assert await read_each(one, reported.stay) == reported.kept
            for story in gone:
                assert await one.log.read_head(story.at.stream) is None
        listed = await fresh.archive.list_sessions(ALL_SHARDS)
        assert len(listed) == len(set(listed))
        assert left.union(story.at.session for story in reported.stay) <= set(listed)
        assert names.isdisjoint(listed)


def do_at(
    store: Store,
    patch: pytest.MonkeyPatch,
    step: int,
    act: Callable[[], Awaitable[object]],
) -> list[int]:
    """Runs an action before the ``step``-th change of a store; returns the number of changes."""
    count = [0]

    def guard(change: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def change_and_act(*arguments: object) -> object:
            count[0] += 1
            if count[0] == step:
                await act()
            return await change(*arguments)

        return change_and_act

    places = (
        (store.nodes, ("run", "update")),
        (store.segment_merge.segments, ("put_pieces", "replace", "read")),
        (store.session_forgetting.tombstones.objects, ("put",)),
    )
    for owner, names in places:
        for name in names:
            patch.setattr(owner, name, guard(getattr(owner, name)))
    return count


async def test_data_erased_at_any_step_of_a_merge_does_not_return(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 1
            reported = await archive_segments(store)
            with monkeypatch.context() as patch:
                gone = reported.mine[:2]
                act = partial(forget, other, *gone)
                count = do_at(store, patch, step, act)
                assert (await merge(store)).made == 1
            if count[0] < step:
                break
            await check(store, server, tmp_path, reported, gone)
    assert step > COUNT + 5


async def test_segments_merged_at_any_step_of_an_erasure_are_erased_too(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 1
            reported = await archive_segments(store)
            with monkeypatch.context() as patch:
                count = do_at(store, patch, step, lambda: merge(other))
                assert (await forget(store, *reported.mine[:2])).count == 2
            if count[0] < step:
                break
            await check(store, server, tmp_path, reported, reported.mine[:2])
    assert step > 10


async def test_merge_killed_at_any_step_before_an_erasure_continues_without_the_erased_data(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        step += 1
        reported = await archive_segments(store)
        with monkeypatch.context() as patch:
            kill_merge_at(store, patch, step, is_done=True)
            try:
                await merge(store)
                break
            except Killed:
                pass
        await forget(store, *reported.mine[:2])
        await check(store, server, tmp_path, reported, reported.mine[:2])
        assert not (await merge(store)).damaged
        await check(store, server, tmp_path, reported, reported.mine[:2])
    assert step > 4


async def test_erasure_killed_at_any_step_before_a_merge_completes_in_every_object(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    while True:
        step += 1
        reported = await archive_segments(store)
        with monkeypatch.context() as patch:
            kill_forgetting_at(store, patch, step, is_done=True)
            try:
                await forget(store, *reported.mine[:2])
                break
            except Killed:
                pass
        async with await Store.open(settings) as other:
            assert (await merge(other)).made == 1
            # Merged objects stay while an erasure runs: they may contain its frames.
            await clean(other, 8)
            await other.session_forgetting.resume(ALL_SHARDS, NOW_MS)
            await forget(other, *reported.mine[:2])
            await check(other, server, tmp_path, reported, reported.mine[:2])
    assert step > 10


async def test_data_of_merged_segments_is_erased_in_the_old_objects_too(
    store: Store, server: Server, tmp_path: Path
) -> None:
    reported = await archive_segments(store)
    assert (await merge(store)).made == 1
    assert len(list_objects(tmp_path)) == COUNT + 1
    assert (await forget(store, *reported.mine[:2])).count == 2
    assert len(list_objects(tmp_path)) == COUNT + 1
    await check(store, server, tmp_path, reported, reported.mine[:2])


async def test_nothing_is_deleted_during_an_erasure(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = await archive_segments(store)
    with monkeypatch.context() as patch:
        kill_forgetting_at(store, patch, 5, is_done=True)
        with pytest.raises(Killed):
            await forget(store, *reported.mine[:2])
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as other:
        assert (await merge(other)).made == 1
        assert await clean(other, 8) == 0
        assert len(list_objects(tmp_path)) == COUNT + 1
        await other.session_forgetting.resume(ALL_SHARDS, NOW_MS)
        assert await clean(other, 8) == COUNT
        await check(other, server, tmp_path, reported, reported.mine[:2])


@pytest.mark.parametrize("looks", range(4))
async def test_archive_walk_during_a_merge_visits_each_session_once(
    store: Store, server: Server, tmp_path: Path, looks: int
) -> None:
    """Counting, and erasing in parts of two; merged after ``looks`` scans."""
    reported = await archive_segments(store)
    choice = SessionChoice(NOW_MS)
    every = {story.at.session for story in (*reported.mine, *reported.stay)}
    walk, found, number = await store.session_forgetting.begin(choice), list[str](), 0
    while not walk.is_over:
        if number == looks:
            assert (await merge(store)).made == 1
        number += 1
        found += [one.session for one in (await walk.look(2)).chosen]
    assert sorted(found) == sorted(every)
    reported = await archive_segments(store)
    walk, count, number = await store.session_forgetting.begin(choice), 0, 0
    while not walk.is_over:
        if number == looks:
            assert (await merge(store)).made == 1
        number += 1
        count += (await store.session_forgetting.forget_part(walk, "operator", 2)).count
    assert count == len(every) * 2
    every_story = [*reported.mine, *reported.stay]
    assert is_gone(server, tmp_path, *every_story)
    assert not any(
        sealed in content for sealed in reported.sealed.values() for content in list_files(tmp_path)
    )


async def test_owner_is_erased_while_its_segments_are_merged(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 3
            reported = await archive_segments(store)
            with monkeypatch.context() as patch:
                count = do_at(store, patch, step, lambda: merge(other))
                await store.forgetting.forget(ADA, "operator", NOW_MS)
            assert await read_each(store, reported.stay) == reported.kept
            for story in reported.mine:
                assert await store.log.read_head(story.at.stream) is None
                assert await store.archive.find_forgotten(story.at.shard, story.at.session) is None
            if count[0] < step:
                break


@pytest.mark.parametrize("seed", range(2))
async def test_random_archive_operations_erase_or_keep_each_session_whole(
    store: Store, server: Server, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  a plan that can be played again
    reported, days = await archive_segments(store), 0.0
    left = [*reported.mine]
    for _ in range(40):
        match chance.randrange(5):
            case 0:
                story = chance.choice(reported.stay)
                await store.log.restore(story.at.shard, story.at.task)
            case 1:
                shard = chance.choice((HOME, OTHER))
                names = [
                    story.at.session
                    for story in (*reported.stay, *left)
                    if story.at.shard == shard
                    and await store.archive.find(shard, story.at.session) is None
                ]
                await store.archiver.archive(shard, names)
            case 2:
                assert not (await merge(store, days)).damaged
            case 3 if left and chance.random() < 0.5:
                assert (await forget(store, left.pop())).count == 1
            case _:
                days += chance.choice((0.1, 4))
                await clean(store, days)
        gone = [story for story in reported.mine if story not in left]
        assert is_gone(server, tmp_path, *gone)
        assert await read_each(store, reported.stay) == reported.kept
    check_sealed(tmp_path, reported, left)


def check_sealed(folder: Path, reported: MergeCase, left: list[Story]) -> None:
    """No object has a frame that is not in ``left``."""
    names = {story.at.session for story in left}
    files = list_files(folder)
    for session, sealed in reported.sealed.items():
        if session not in names:
            assert not any(sealed in content for content in files)
