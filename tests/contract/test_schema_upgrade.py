"""A store of an earlier schema is upgraded when it is opened, and nothing else of it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from passerelle.core.batch import Appended
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash
from passerelle.store.schema_upgrade import complete_heads
from tests.contract.test_archive import AT, Story, begin, leave, read_all
from tests.support.batches import make_place

if TYPE_CHECKING:
    from passerelle.store.store import Store

pytestmark = pytest.mark.anyio
SHARDS = (Shard(9), Shard(20), Shard(41))
"""At different primaries of the cluster."""


def find_head(story: Story) -> str:
    return keys.head(StreamRef(StreamKind.SESSION, story.at.session))


async def append_stories(store: Store) -> list[Story]:
    """Sessions whose heads are those of schema 1."""
    stories = [await begin(store, 2, Story(make_place(home))) for home in SHARDS for _ in range(2)]
    for story in stories:
        await store.nodes.update(story.at.shard, pack("HDEL", find_head(story), "at"))
    return stories


async def read_time(store: Store, story: Story) -> bytes | None:
    [at] = await store.nodes.query_all(story.at.shard, pack("HGET", find_head(story), "at"))
    return as_bytes(at)


async def test_sessions_without_a_time_get_that_of_their_last_event_and_can_leave(
    store: Store,
) -> None:
    stories = await append_stories(store)
    assert await complete_heads(store.nodes, 2) == 0
    assert await read_time(store, stories[0]) is None
    assert await complete_heads(store.nodes, 1) == len(stories)
    assert await complete_heads(store.nodes, 1) == 0
    kept = [await read_all(store, story) for story in stories]
    for story in stories:
        entries = await store.log.read_page(story.at.stream, 0)
        at = await read_time(store, story)
        assert at is not None
        assert b'"timestamp":"%b"' % at in entries[-1].data
    now_ms = store.clock.now_ms() + 10_000
    found = await store.ended_sessions.find(frozenset(SHARDS), now_ms)
    assert {one.session for part in found.values() for one in part} == {
        story.at.session for story in stories
    }
    for story in stories:
        await leave(store, story)
    assert [await read_all(store, story) for story in stories] == kept


async def test_killed_upgrade_is_completed_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await append_stories(store)
    run, ran = store.nodes.run, 0

    async def die(*given: object) -> object:
        nonlocal ran
        ran += 1
        if ran > 2:
            raise StoreUnavailable("killed", "no")
        return await run(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(store.nodes, "run", die)
        with pytest.raises(StoreUnavailable, match="killed"):
            await complete_heads(store.nodes, 1)
    left = [one for one in stories if await read_time(store, one) is None]
    assert 0 < len(left) < len(stories)
    assert await complete_heads(store.nodes, 1) == len(left)


async def test_sessions_that_change_or_leave_during_the_upgrade_are_skipped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_on, gone = (await append_stories(store))[:2]
    run, stream = store.nodes.run, gone.at.stream

    async def race(script: object, shard: Shard, names: list[str], *given: object) -> object:
        if names == [find_head(gone)]:
            away = pack("UNLINK", find_head(gone), keys.entries(stream))
            await store.nodes.update(gone.at.shard, away)
        if names == [find_head(gone_on)]:
            assert isinstance(await store.log.append(gone_on.tell("meanwhile")), Appended)
        return await run(script, shard, names, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(store.nodes, "run", race)
        assert await complete_heads(store.nodes, 1) == 4
    assert await read_time(store, gone_on) == AT.encode()
    [head] = await store.nodes.query_all(gone.at.shard, pack("HGETALL", find_head(gone)))
    assert as_hash(head) == {}


async def test_a_damaged_entry_gives_no_time(store: Store) -> None:
    story = (await append_stories(store))[0]
    home, entries = story.at.shard, keys.entries(story.at.stream)
    await store.nodes.update(home, pack("XADD", entries, "99-0", "p", "x", "d", "rubbish"))
    assert await complete_heads(store.nodes, 1) == 5
    assert await read_time(store, story) is None
