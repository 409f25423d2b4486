"""Segments are merged while sessions in them are forgotten: of these nothing is left in any object, old or new."""

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
    Killed,
    clean,
    leave_together,
    read_each,
    read_ms,
)
from tests.contract.test_segment_merge import kill_at as kill_merge_at
from tests.contract.test_session_forgetting import Killed as ForgettingKilled
from tests.contract.test_session_forgetting import forget, is_gone, list_files
from tests.contract.test_session_forgetting import kill_at as kill_forgetting_at
from tests.support.batches import make_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.engine import Server

pytestmark = pytest.mark.anyio
COUNT = 3


@dataclass
class Told:
    """``COUNT`` segments of three sessions: one to be forgotten, of either shard, and two of others that stay."""

    mine: list[Story] = field(default_factory=list[Story])
    stay: list[Story] = field(default_factory=list[Story])
    sealed: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """What the frames are that are forgotten, by their sessions."""
    kept: list[list[object]] = field(default_factory=list[list[object]])


async def merge(store: Store, days: float = 0) -> MergedSegments:
    """Merges where there are a few segments only."""
    return await replace(store.segment_merge, few=COUNT).merge(HOME, read_ms(store, days))


async def tell(store: Store) -> Told:
    told = Told()
    for number in range(COUNT):
        mine = Story(make_place((HOME, OTHER)[number % 2]), owner=ADA)
        stay = [Story(make_place(shard), owner=BOB) for shard in (HOME, OTHER)]
        for story in (mine, *stay):
            await begin(store, 1, story)
        # The first says where the segment stands.
        await leave_together(store, stay[0], mine, stay[1])
        told.mine.append(mine)
        told.stay += stay
    gone = {story.at.session for story in told.mine}
    for shard in (HOME, OTHER):
        for segment in await store.archive.list_segments(shard):
            for note in await store.archive.list_frames(shard, segment):
                if note.session in gone:
                    sealed = await store.archive.read_sealed(shard, segment, note)
                    told.sealed[note.session] = sealed
    assert len(told.sealed) == COUNT
    told.kept = await read_each(store, told.stay)
    return told


async def check(store: Store, server: Server, folder: Path, told: Told, gone: list[Story]) -> None:
    """No object has a byte of what is forgotten, nobody reads it, and all else is read as before."""
    assert is_gone(server, folder, *gone)
    files = list_files(folder)
    names = {story.at.session for story in gone}
    left = {
        session
        for session, sealed in told.sealed.items()
        if any(sealed in content for content in files)
    }
    assert left == told.sealed.keys() - names
    async with await Store.open(StoreSettings(server.url, folder / "blobs")) as fresh:
        for one in (store, fresh):
            assert await read_each(one, told.stay) == told.kept
            for story in gone:
                assert await one.log.read_head(story.at.stream) is None
        listed = await fresh.archive.list_sessions(ALL_SHARDS)
        assert len(listed) == len(set(listed))
        assert left.union(story.at.session for story in told.stay) <= set(listed)
        assert names.isdisjoint(listed)


def do_at(
    store: Store,
    patch: pytest.MonkeyPatch,
    step: int,
    act: Callable[[], Awaitable[object]],
) -> list[int]:
    """Has something be done before the ``step``-th thing that a store does; how many there were."""
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


async def test_what_is_forgotten_at_any_step_of_a_merge_does_not_come_back_by_it(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 1
            told = await tell(store)
            with monkeypatch.context() as patch:
                gone = told.mine[:2]
                act = partial(forget, other, *gone)
                count = do_at(store, patch, step, act)
                assert (await merge(store)).made == 1
            if count[0] < step:
                break
            await check(store, server, tmp_path, told, gone)
    assert step > COUNT + 5


async def test_what_is_merged_at_any_step_of_forgetting_is_forgotten_too(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 1
            told = await tell(store)
            with monkeypatch.context() as patch:
                count = do_at(store, patch, step, lambda: merge(other))
                assert (await forget(store, *told.mine[:2])).count == 2
            if count[0] < step:
                break
            await check(store, server, tmp_path, told, told.mine[:2])
    assert step > 10


async def test_a_merge_that_is_killed_at_any_step_before_something_is_forgotten_goes_on_without_it(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        step += 1
        told = await tell(store)
        with monkeypatch.context() as patch:
            kill_merge_at(store, patch, step, is_done=True)
            try:
                await merge(store)
                break
            except Killed:
                pass
        await forget(store, *told.mine[:2])
        await check(store, server, tmp_path, told, told.mine[:2])
        assert not (await merge(store)).damaged
        await check(store, server, tmp_path, told, told.mine[:2])
    assert step > 4


async def test_forgetting_that_is_killed_at_any_step_before_a_merge_ends_in_every_object(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    while True:
        step += 1
        told = await tell(store)
        with monkeypatch.context() as patch:
            kill_forgetting_at(store, patch, step, is_done=True)
            try:
                await forget(store, *told.mine[:2])
                break
            except ForgettingKilled:
                pass
        async with await Store.open(settings) as other:
            assert (await merge(other)).made == 1
            # What is merged stays while somebody forgets: it may have frames of that.
            await clean(other, 8)
            await other.session_forgetting.resume(ALL_SHARDS, NOW_MS)
            await forget(other, *told.mine[:2])
            await check(other, server, tmp_path, told, told.mine[:2])
    assert step > 10


async def test_what_was_merged_before_is_forgotten_in_the_old_objects_too(
    store: Store, server: Server, tmp_path: Path
) -> None:
    told = await tell(store)
    assert (await merge(store)).made == 1
    assert len(list_objects(tmp_path)) == COUNT + 1
    assert (await forget(store, *told.mine[:2])).count == 2
    assert len(list_objects(tmp_path)) == COUNT + 1
    await check(store, server, tmp_path, told, told.mine[:2])


async def test_nothing_is_deleted_while_somebody_forgets(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await tell(store)
    with monkeypatch.context() as patch:
        kill_forgetting_at(store, patch, 5, is_done=True)
        with pytest.raises(ForgettingKilled):
            await forget(store, *told.mine[:2])
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as other:
        assert (await merge(other)).made == 1
        assert await clean(other, 8) == 0
        assert len(list_objects(tmp_path)) == COUNT + 1
        await other.session_forgetting.resume(ALL_SHARDS, NOW_MS)
        assert await clean(other, 8) == COUNT
        await check(other, server, tmp_path, told, told.mine[:2])


@pytest.mark.parametrize("looks", range(4))
async def test_whoever_walks_along_the_archive_while_it_is_merged_comes_to_each_session_once(
    store: Store, server: Server, tmp_path: Path, looks: int
) -> None:
    """Counting, and forgetting in parts of two; merged behind so many looks."""
    told = await tell(store)
    choice = SessionChoice(NOW_MS)
    every = {story.at.session for story in (*told.mine, *told.stay)}
    walk, found, number = await store.session_forgetting.begin(choice), list[str](), 0
    while not walk.is_over:
        if number == looks:
            assert (await merge(store)).made == 1
        number += 1
        found += [one.session for one in (await walk.look(2)).chosen]
    assert sorted(found) == sorted(every)
    told = await tell(store)
    walk, count, number = await store.session_forgetting.begin(choice), 0, 0
    while not walk.is_over:
        if number == looks:
            assert (await merge(store)).made == 1
        number += 1
        count += (await store.session_forgetting.forget_part(walk, "operator", 2)).count
    assert count == len(every) * 2
    every_story = [*told.mine, *told.stay]
    assert is_gone(server, tmp_path, *every_story)
    assert not any(
        sealed in content for sealed in told.sealed.values() for content in list_files(tmp_path)
    )


async def test_an_owner_is_forgotten_while_its_segments_are_merged(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, step = StoreSettings(server.url, tmp_path / "blobs"), 0
    async with await Store.open(settings) as other:
        while True:
            step += 3
            told = await tell(store)
            with monkeypatch.context() as patch:
                count = do_at(store, patch, step, lambda: merge(other))
                await store.forgetting.forget(ADA, "operator", NOW_MS)
            assert await read_each(store, told.stay) == told.kept
            for story in told.mine:
                assert await store.log.read_head(story.at.stream) is None
                assert await store.archive.find_forgotten(story.at.shard, story.at.session) is None
            if count[0] < step:
                break


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_archived_revived_merged_forgotten_and_cleaned_up_goes_or_stays_whole(
    store: Store, server: Server, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  a plan that can be played again
    told, days = await tell(store), 0.0
    left = [*told.mine]
    for _ in range(40):
        match chance.randrange(5):
            case 0:
                story = chance.choice(told.stay)
                await store.log.restore(story.at.shard, story.at.task)
            case 1:
                shard = chance.choice((HOME, OTHER))
                names = [
                    story.at.session
                    for story in (*told.stay, *left)
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
        gone = [story for story in told.mine if story not in left]
        assert is_gone(server, tmp_path, *gone)
        assert await read_each(store, told.stay) == told.kept
    check_sealed(tmp_path, told, left)


def check_sealed(folder: Path, told: Told, left: list[Story]) -> None:
    """No object has a frame of what is not ``left``."""
    names = {story.at.session for story in left}
    files = list_files(folder)
    for session, sealed in told.sealed.items():
        if session not in names:
            assert not any(sealed in content for content in files)
