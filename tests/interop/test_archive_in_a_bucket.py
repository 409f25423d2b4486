"""Sessions are archived in a faulty bucket: each is in the engine or in the archive, and is read unchanged."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final

import pytest

from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story, begin, read_all
from tests.interop.test_blobs import bucket, server
from tests.support.batches import make_place
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.faulty_bucket import BucketFault, FaultyBucket

__all__ = ["bucket", "engine_server", "server", "started_legs"]
pytestmark = pytest.mark.anyio

HOME: Final = Shard(9)
SEEDS: Final = range(3)
STEPS: Final = 60
STORIES: Final = 6
FAULTS: Final[tuple[BucketFault, ...]] = (
    "500",
    "404",
    "slow",
    "cut",
    "other bytes",
    "lost answer",
)
PLACE: Final = "s3://blobs/passerelle"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def faulty(
    server: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[FaultyBucket]:
    """The connection to the bucket, with short timeouts."""
    async with FaultyBucket(server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setattr("passerelle.store.buckets._ANSWER_S", 0.4)
        monkeypatch.setattr("passerelle.store.buckets._RETRY_S", 1)
        yield proxy


@pytest.fixture
async def store(engine_server: Server, faulty: FaultyBucket) -> AsyncGenerator[Store]:
    ask(engine_server.url, "FLUSHALL")
    async with await Store.open(StoreSettings(engine_server.url, PLACE)) as opened:
        yield opened


async def leave(store: Store, story: Story) -> bool:
    """Archives the session; returns whether it left the engine."""
    archived = await store.archiver.archive(story.at.shard, [story.at.session])
    return archived.sessions == [story.at.session]


@pytest.mark.parametrize("methods", [("PUT", "POST"), ("POST",), ("PUT",)], ids="+".join)
@pytest.mark.parametrize("fault", ["500", "404", "slow", "lost answer"])
async def test_session_stays_if_its_segment_cannot_be_written(
    store: Store,
    faulty: FaultyBucket,
    engine_server: Server,
    fault: BucketFault,
    methods: tuple[str, ...],
) -> None:
    """Content is written as multipart uploads: begun and ended by POST, each part by PUT."""
    story = await begin(store)
    reported = await read_all(store, story)
    faulty.fault, faulty.methods = fault, methods
    with pytest.raises(StoreUnavailable, match="bucket"):
        await leave(store, story)
    assert faulty.faulted[fault]
    assert not await store.archive.list_sessions([story.at.shard])
    assert await read_all(store, story) == reported
    faulty.fault = None
    assert await leave(store, story)
    async with await Store.open(StoreSettings(engine_server.url, PLACE)) as other:
        for one in (store, other):
            assert await read_all(one, story) == reported


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("500", StoreUnavailable, "bucket"),
        ("slow", StoreUnavailable, "bucket"),
        ("cut", StoreUnavailable, "bucket"),
        ("404", ArchiveDamaged, "is gone"),
        ("other bytes", ArchiveDamaged, "is damaged"),
    ],
)
async def test_unreadable_segment_is_a_named_error(
    store: Store,
    faulty: FaultyBucket,
    fault: BucketFault,
    error: type[Exception],
    words: str,
) -> None:
    story = await begin(store)
    reported = await read_all(store, story)
    assert await leave(store, story)
    faulty.fault, faulty.methods = fault, ("GET", "HEAD")
    with pytest.raises(error, match=words):
        await store.log.load(story.refs)
    assert faulty.faulted[fault]
    faulty.fault = None
    assert await read_all(store, story) == reported


async def test_a_read_of_the_archive_asks_the_bucket_once(
    store: Store, faulty: FaultyBucket
) -> None:
    story = await begin(store)
    assert await leave(store, story)
    faulty.passed.clear()
    await store.log.load(story.refs)
    assert faulty.passed == {"GET": 1}


@pytest.mark.parametrize("fault", [None, "500", "404", "slow", "lost answer"])
async def test_a_session_is_forgotten_in_a_bucket_and_its_neighbours_stay(
    store: Store, faulty: FaultyBucket, engine_server: Server, fault: BucketFault | None
) -> None:
    """All of them are in one object, which is rewritten without the erased one."""
    gone, *stay = [await begin(store) for _ in range(STORIES)]
    reported = [await read_all(store, story) for story in stay]
    sessions = {story.at.shard: list[str]() for story in (gone, *stay)}
    for story in (gone, *stay):
        sessions[story.at.shard].append(story.at.session)
    assert len((await store.archiver.archive_together(sessions)).sessions) == STORIES
    choice = SessionChoice(store.clock.now_ms(), frozenset({gone.at.session}))
    faulty.fault, faulty.methods = fault, ("PUT", "POST")
    if fault is None:
        assert (await store.session_forgetting.forget(choice, "carl")).count == 1
    else:
        with pytest.raises(StoreUnavailable, match="bucket"):
            await store.session_forgetting.forget(choice, "carl")
        assert faulty.faulted[fault]
        faulty.fault = None
        assert len(await store.session_forgetting.finish(ALL_SHARDS)) == 1
    async with await Store.open(StoreSettings(engine_server.url, PLACE)) as other:
        for one in (store, other):
            assert [await read_all(one, story) for story in stay] == reported
            assert [loaded.snapshot for loaded in await one.log.load(gone.refs)] == [b""] * 4
            assert gone.at.session not in await one.archive.list_sessions(ALL_SHARDS)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_bucket_fault_loses_a_session(
    store: Store, faulty: FaultyBucket, engine_server: Server, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  a plan that can be played again
    stories = [await begin(store) for _ in range(STORIES)]
    reported = {id(story): await read_all(store, story) for story in stories}
    for step in range(STEPS):
        faulty.fault = chance.choice((None, *FAULTS))
        story = chance.choice(stories)
        try:
            match chance.randrange(3):
                case 0:
                    await leave(store, story)
                case 1:
                    assert await read_all(store, story) == reported[id(story)]
                case _:
                    await store.log.restore(story.at.shard, story.at.session)
                    faulty.fault = None
                    await begin(store, 1, story)
                    reported[id(story)] = await read_all(store, story)
        except (StoreUnavailable, ArchiveDamaged):
            assert faulty.fault is not None, f"step {step}"
    faulty.fault = None
    async with await Store.open(StoreSettings(engine_server.url, PLACE)) as other:
        for story in stories:
            for one in (store, other):
                assert await read_all(one, story) == reported[id(story)]
    assert len(faulty.faulted) >= 4


@pytest.mark.parametrize("fault", [None, *FAULTS])
async def test_segments_are_merged_in_a_bucket_or_stay_as_they_were(
    store: Store, faulty: FaultyBucket, engine_server: Server, fault: BucketFault | None
) -> None:
    stories = [await begin(store, 1, Story(make_place(HOME))) for _ in range(STORIES)]
    reported = [await read_all(store, story) for story in stories]
    for story in stories:
        assert await leave(store, story)
    merge = replace(store.segment_merge, few=STORIES)
    before = await store.archive.list_segments(HOME)
    if fault is not None:
        faulty.fault = fault
        try:
            done = await merge.merge(HOME, store.clock.read_ms(HOME))
            assert done.made == 0
            assert done.damaged
        except StoreUnavailable:
            pass
        assert faulty.faulted[fault]
        faulty.fault = None
        assert await store.archive.list_segments(HOME) == before
        assert [await read_all(store, story) for story in stories] == reported
    done = await merge.merge(HOME, store.clock.read_ms(HOME))
    assert (done.made, done.merged, done.damaged) == (1, STORIES, [])
    [segment] = await store.archive.list_segments(HOME)
    choice = SessionChoice(store.clock.now_ms(), frozenset({stories[0].at.session}))
    assert (await store.session_forgetting.forget(choice, "carl")).count == 1
    async with await Store.open(StoreSettings(engine_server.url, PLACE)) as other:
        for one in (store, other):
            assert [await read_all(one, story) for story in stories[1:]] == reported[1:]
            assert await one.log.read_head(stories[0].at.stream) is None
        for ref in (segment, *before):
            names = [note.session for note in await other.archive.read_notes(ref.name)]
            assert stories[0].at.session not in names
