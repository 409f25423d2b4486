"""Pushes to a person are counted across instances, and held pushes have a row for their bundle (I9)."""

from __future__ import annotations

from typing import Final

import pytest

from passerelle.core.ids import Shard
from passerelle.core.ports.due import DueRow
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.pushes import AT_ONCE, WINDOW_MS, HeldPush, name_bundle
from passerelle.store.store import Store
from tests.support.batches import make_place, mint

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CHN-6")]

LATE: Final = 10**15
MOST: Final = 2


def make_owner() -> tuple[Shard, str]:
    shard = make_place().shard
    return shard, mint("pr", shard)


def push(number: int, attempt: str = "1") -> HeldPush:
    return HeldPush(f"act_{number}", attempt)


async def find_row(store: Store, shard: Shard, owner: str) -> DueRow | None:
    [score] = await store.nodes.read(shard, pack("ZSCORE", keys.due(shard), name_bundle(owner)))
    return DueRow(name_bundle(owner), score.decode()) if isinstance(score, bytes) else None


async def test_pushes_beyond_the_limit_wait_for_one_pending_bundle(store: Store) -> None:
    shard, owner = make_owner()
    for number in (1, 2):
        assert await store.bundles.defer(owner, push(number), 2, LATE) is None
    assert await find_row(store, shard, owner) is None, "nothing is owed yet"
    at = await store.bundles.defer(owner, push(3), 2, LATE)
    later = await store.bundles.defer(owner, push(4), 2, LATE)
    assert at == later, "later pushes join the same bundle"
    row = await find_row(store, shard, owner)
    assert row is not None
    assert int(row.token) == at
    assert await store.bundles.list_held(owner) == [push(3), push(4)]
    _, other = make_owner()
    assert await store.bundles.defer(other, push(5), 2, LATE) is None, "another person gets it"


async def test_repeated_push_of_an_approval_is_counted_once_with_the_same_result(
    store: Store,
) -> None:
    _, owner = make_owner()
    for attempt in ("1", "2"):
        assert await store.bundles.defer(owner, push(1, attempt), 1, LATE) is None
    first = await store.bundles.defer(owner, push(2), 1, LATE)
    assert first is not None
    assert await store.bundles.defer(owner, push(2), 1, LATE) == first
    assert await store.bundles.list_held(owner) == [push(2)]


async def test_approval_that_expires_before_its_bundle_does_not_wait(store: Store) -> None:
    shard, owner = make_owner()
    ends_ms = await read_now_ms(store, shard) + WINDOW_MS // 2
    for number in range(3):
        assert await store.bundles.defer(owner, push(number), 2, ends_ms) is None
    assert await store.bundles.defer(owner, push(9), 2, LATE) is not None


async def test_approval_that_expires_soon_has_twice_the_limit(store: Store) -> None:
    shard, owner = make_owner()
    ends_ms = await read_now_ms(store, shard) + WINDOW_MS // 2
    # A held push does not use up the limit of sent ones.
    numbers = range(8)
    ends = [LATE if number == MOST else ends_ms for number in numbers]
    waits = [
        await store.bundles.defer(owner, push(number), MOST, end_ms) is not None
        for number, end_ms in zip(numbers, ends, strict=True)
    ]
    assert waits.count(False) == 2 * MOST
    held = [number for number in numbers if waits[number]]
    assert held == [MOST, 5, 6, 7]
    assert await store.bundles.list_held(owner) == [push(number) for number in held]
    row = await find_row(store, shard, owner)
    assert row is not None, "what is held has a row"
    await store.bundles.settle(row, [push(number) for number in held], last=True)
    assert await store.bundles.defer(owner, push(9), MOST, ends_ms) is not None, "no room yet"


async def read_now_ms(store: Store, shard: Shard) -> int:
    [reply] = await store.nodes.read(shard, pack("TIME"))
    assert isinstance(reply, list)
    seconds, rest = (int(part) for part in reply if isinstance(part, bytes))
    return seconds * 1000 + rest // 1000


async def test_pushes_are_sent_singly_again_after_a_quiet_period(store: Store) -> None:
    shard, owner = make_owner()
    assert await store.bundles.defer(owner, push(1), 1, LATE) is None
    a_while_ago = (await read_now_ms(store, shard)) - WINDOW_MS
    counted = keys.pushes(shard, owner)
    await store.nodes.write(shard, pack("ZADD", counted, "XX", a_while_ago, push(1).action_id))
    assert await store.bundles.defer(owner, push(2), 1, LATE) is None


async def test_row_ends_with_its_bundle_and_stays_for_later_pushes(store: Store) -> None:
    shard, owner = make_owner()
    await store.bundles.defer(owner, push(0), 1, LATE)
    for number in (1, 2):
        await store.bundles.defer(owner, push(number), 1, LATE)
    row = await find_row(store, shard, owner)
    assert row is not None
    reported = await store.bundles.list_held(owner)
    await store.bundles.defer(owner, push(3), 1, LATE)
    await store.bundles.settle(row, reported[:1], last=False)
    assert await find_row(store, shard, owner) == row, "a bundle that is not done keeps its row"
    await store.bundles.settle(row, reported, last=True)
    assert await store.bundles.list_held(owner) == [push(3)]
    rest = await find_row(store, shard, owner)
    assert rest is not None, "what is held has a row"
    await store.bundles.settle(rest, [push(3)], last=True)
    assert await find_row(store, shard, owner) is None


async def test_bundle_larger_than_one_read_keeps_its_row(store: Store) -> None:
    shard, owner = make_owner()
    await store.bundles.defer(owner, push(0), 1, LATE)
    at = await store.bundles.defer(owner, push(1), 1, LATE)
    assert at is not None
    pairs = [part for number in range(2, AT_ONCE + 3) for part in (at, str(push(number)))]
    await store.nodes.write(shard, pack("ZADD", keys.held(shard, owner), *pairs))
    row = await find_row(store, shard, owner)
    assert row is not None
    first = await store.bundles.list_held(owner)
    assert len(first) == AT_ONCE
    await store.bundles.settle(row, first, last=True)
    rest = await store.bundles.list_held(owner)
    assert len({*first, *rest}) == AT_ONCE + 2
    row = await find_row(store, shard, owner)
    assert row is not None, "what was not read is owed still"
    await store.bundles.settle(row, rest, last=True)
    assert await find_row(store, shard, owner) is None


async def test_row_claimed_by_another_instance_is_not_settled(store: Store) -> None:
    shard, owner = make_owner()
    await store.bundles.defer(owner, push(0), 1, LATE)
    await store.bundles.defer(owner, push(1), 1, LATE)
    row = await find_row(store, shard, owner)
    assert row is not None
    await store.bundles.settle(DueRow(row.member, "1"), [push(1)], last=True)
    assert await find_row(store, shard, owner) == row
