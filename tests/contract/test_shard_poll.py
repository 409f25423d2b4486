"""Heads of shards: they change when there is work, and only then."""

from __future__ import annotations

import pytest

from passerelle.core.batch import Batch, DueChange
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.due import ShardHeads
from passerelle.store.store import Store
from tests.support.batches import EPOCH, event, make_place, operation

pytestmark = pytest.mark.anyio

SHARD = Shard(23)
FAR_MS = 4_000_000_000_000


async def read(store: Store) -> dict[Shard, ShardHeads]:
    found = await store.shard_poll.read_heads(ALL_SHARDS)
    heads = [one for one in found if isinstance(one, ShardHeads)]
    assert len(heads) == len(ALL_SHARDS)
    return dict(zip(ALL_SHARDS, heads, strict=True))


async def put(store: Store, shard: Shard, *rows: DueChange, feed: bool = False) -> ShardHeads:
    at = make_place(shard)
    batch = Batch(at.session, operation(), 0, EPOCH, (at.write(),), (event(),), due=rows, feed=feed)
    await store.log.append(batch)
    return (await read(store))[shard]


@pytest.mark.requirement("I9")
async def test_only_the_shard_that_was_written_has_new_heads(store: Store) -> None:
    before = await read(store)
    await put(store, SHARD, DueChange("k:new", 1))
    after = await read(store)
    assert [shard for shard in ALL_SHARDS if after[shard] != before[shard]] == [SHARD]
    assert after == await read(store)


@pytest.mark.requirement("I9")
async def test_earliest_due_row_is_a_new_head_and_a_later_one_is_not(store: Store) -> None:
    first = await put(store, SHARD, DueChange("k:first", 3))
    assert first.due[0] == b"k:first"
    assert (await put(store, SHARD, DueChange("k:later", FAR_MS))).due == first.due
    assert (await put(store, SHARD, DueChange("k:sooner", 2))).due[0] == b"k:sooner"
    moved = await put(store, SHARD, DueChange("k:sooner", 1))
    assert moved.due[0] == b"k:sooner"
    assert moved.due != (await put(store, SHARD, DueChange("k:sooner", None))).due == first.due


@pytest.mark.requirement("I10")
async def test_row_of_the_feed_is_a_new_head(store: Store) -> None:
    before = await put(store, SHARD)
    after = await put(store, SHARD, feed=True)
    assert after.feed != before.feed
    assert after == await put(store, SHARD), "what no projection needs is no news"
