"""What wakes the duties of a shard: new events, and a store that does not answer."""

from __future__ import annotations

import math
from asyncio import Event, create_task
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.due import ShardHeads
from passerelle.delegation.duties import shard_watch
from passerelle.delegation.duties.shard_watch import ShardWatch

pytestmark = pytest.mark.anyio

ONE, TWO = Shard(1), Shard(2)
NOTHING = ShardHeads((), b"")


@dataclass
class Shards:
    heads: dict[Shard, ShardHeads | StoreUnavailable] = field(
        default_factory=lambda: {ONE: NOTHING, TWO: NOTHING}
    )
    mine: frozenset[Shard] = frozenset({ONE, TWO})

    async def read_heads(self, shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        return [self.heads[shard] for shard in shards]


@dataclass
class Duties:
    shards: Shards
    due: dict[Shard, float] = field(default_factory=dict[Shard, float])
    feed: set[Shard] = field(default_factory=set[Shard])
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.watch = ShardWatch(
            self.shards,
            lambda: self.shards.mine,
            self.due.__setitem__,
            self.feed.add,
            lambda _shard: self.now_ms,
        )

    async def look(self) -> tuple[set[Shard], set[Shard]]:
        self.due.clear()
        self.feed.clear()
        await self.watch.look()
        return set(self.due), set(self.feed)


async def test_a_lone_instance_polls_seldom_and_at_once_when_another_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = Shards()
    duties = Duties(shards)
    watch, now_s, looked_s, end = duties.watch, 100.0, list[float](), Event()

    async def pass_time() -> None:
        nonlocal now_s
        now_s += 1
        if now_s == 112:
            watch.is_alone = lambda: False
        if now_s > 115:
            end.set()
            await Event().wait()

    async def read_heads(shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        looked_s.append(now_s)
        return [NOTHING for _ in shards]

    monkeypatch.setattr(shard_watch, "sleep_until_beat", pass_time)
    monkeypatch.setattr(shard_watch, "monotonic", lambda: now_s)
    monkeypatch.setattr(shards, "read_heads", read_heads)
    watch.is_alone = lambda: True
    looking = create_task(watch.run())
    await end.wait()
    looking.cancel()
    assert looked_s == [101, 106, 111, 112, 113, 114, 115]


async def test_shard_is_woken_once_for_what_is_new() -> None:
    shards = Shards()
    duties = Duties(shards)
    assert await duties.look() == ({ONE, TWO}, {ONE, TWO}), "nothing was known of them"
    assert await duties.look() == (set(), set())
    shards.heads[ONE] = ShardHeads((b"k:x", b"7"), b"")
    assert await duties.look() == ({ONE}, set())
    shards.heads[TWO] = ShardHeads((), b"5-0")
    assert await duties.look() == (set(), {TWO})
    assert await duties.look() == (set(), set())


async def test_store_that_does_not_answer_wakes_both_until_it_does_and_once_more() -> None:
    shards = Shards()
    duties = Duties(shards)
    await duties.look()
    shards.heads[ONE] = StoreUnavailable("no answer", "unknown")
    assert await duties.look() == ({ONE}, {ONE})
    assert await duties.look() == ({ONE}, {ONE})
    shards.heads[ONE] = NOTHING
    assert await duties.look() == ({ONE}, {ONE})
    assert await duties.look() == (set(), set())


async def test_shard_that_returns_to_this_instance_is_looked_at_again() -> None:
    shards = Shards()
    duties = Duties(shards)
    await duties.look()
    shards.mine = frozenset({TWO})
    assert await duties.look() == (set(), set())
    shards.mine = frozenset({ONE, TWO})
    assert await duties.look() == ({ONE}, {ONE})


async def test_shard_is_visited_when_its_first_row_is_due_and_not_before() -> None:
    shards = Shards()
    duties = Duties(shards)
    await duties.look()
    shards.heads[ONE] = ShardHeads((b"lease:in_1", b"5000"), b"")
    assert await duties.look() == ({ONE}, set())
    assert duties.due == {ONE: 5.0}
    duties.now_ms = 1_000
    shards.heads[ONE] = ShardHeads((b"lease:in_1", b"5600"), b"")
    await duties.look()
    assert duties.due == {ONE: 4.6}, "moved on: no sooner than that"
    shards.heads[ONE] = ShardHeads((b"k:x", b"1250"), b"")
    await duties.look()
    assert duties.due == {ONE: 0.25}
    duties.now_ms = 2_000
    await duties.look()
    assert duties.due == {ONE: 0.0}
    shards.heads[ONE] = NOTHING
    await duties.look()
    assert duties.due == {ONE: math.inf}, "no row, no visit"


async def test_row_that_a_jump_of_the_clock_makes_due_wakes_its_shard() -> None:
    shards = Shards()
    shards.heads[ONE] = ShardHeads((b"k:x", b"600000"), b"")
    duties = Duties(shards)
    await duties.look()
    assert await duties.look() == (set(), set())
    duties.now_ms = 600_000
    assert await duties.look() == ({ONE}, set())
