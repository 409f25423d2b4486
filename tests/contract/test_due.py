"""The due set: a row is claimed by one instance, becomes due again, and is removed with the fact that settles it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest

from passerelle.core.batch import Batch, DueChange, Incarnation
from passerelle.core.ids import Shard
from passerelle.core.ports.due import ClaimedRows
from passerelle.core.ports.leases import LeaseRequest, TakenOver
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.due import LEASE_ROWS
from passerelle.store.store import Store
from tests.support.batches import EPOCH, make_place, operation
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

FAR_MS = 4_000_000_000_000


async def put(store: Store, *rows: tuple[str, int]) -> Shard:
    at = make_place()
    due = tuple(DueChange(member, at_ms) for member, at_ms in rows)
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), due=due)
    )
    return at.shard


@pytest.mark.requirement("I9")
async def test_rows_are_claimed_in_order_of_their_time_and_hidden(store: Store) -> None:
    shard = await put(store, ("c:x", 3), ("a:x", 1), ("b:x:7", 2), ("later:x", FAR_MS))
    claimed = await store.due.claim(shard, 10, 60_000)
    assert [(row.member, row.kind, row.entity) for row in claimed.rows] == [
        ("a:x", "a", "x"),
        ("b:x:7", "b", "x"),
        ("c:x", "c", "x"),
    ]
    assert {row.token for row in claimed.rows} == {str(claimed.now_ms + 60_000)}
    assert claimed.next_ms == claimed.now_ms + 60_000
    assert (await store.due.claim(shard, 10, 60_000)).rows == ()


async def test_rows_are_only_moved_earlier_and_none_is_created(store: Store) -> None:
    shard = await put(store, ("near:x", 5), ("far:x", FAR_MS), ("farther:x", FAR_MS))
    wanted = {"near:x": 60_000, "far:x": 5_000, "farther:x": 90_000, "gone:x": 0}
    assert await store.due.hasten(shard, wanted) == 2
    assert await store.due.hasten(shard, wanted) in {0, 1, 2}, "again, a moment later"
    claimed = await store.due.claim(shard, 10, 60_000)
    assert [row.member for row in claimed.rows] == ["near:x"]
    assert claimed.next_ms is not None
    assert 0 < claimed.next_ms - claimed.now_ms <= 5_000
    (flat,) = await store.nodes.read(shard, pack("ZRANGE", keys.due(shard), 0, -1, "WITHSCORES"))
    parts = [part.decode() for part in cast("list[bytes]", flat)]
    scores = dict(zip(parts[::2], map(int, parts[1::2]), strict=True))
    assert scores.keys() == {"near:x", "far:x", "farther:x"}
    assert 80_000 < scores["farther:x"] - claimed.now_ms <= 90_000


async def test_limit_leaves_the_rest_due_now(store: Store) -> None:
    shard = await put(store, *((f"k:{number:02}", 1 + number) for number in range(10)))
    first = await store.due.claim(shard, 4, 60_000)
    assert len(first.rows) == 4
    assert first.next_ms == 5
    second = await store.due.claim(shard, 20, 60_000)
    assert len(second.rows) == 6


async def test_one_row_goes_to_one_of_many_claimants(store: Store) -> None:
    shard = await put(store, *((f"k:{number:02}", 1) for number in range(30)))
    claims = await asyncio.gather(*(store.due.claim(shard, 5, 60_000) for _ in range(10)))
    members = [row.member for claim in claims for row in claim.rows]
    assert sorted(members) == [f"k:{number:02}" for number in range(30)]


@pytest.mark.requirement("I9")
async def test_row_of_a_dead_claimant_is_due_again_with_another_token(store: Store) -> None:
    shard = await put(store, ("k:x", 1))
    (first,) = (await store.due.claim(shard, 1, 20)).rows

    async def again() -> ClaimedRows | None:
        claimed = await store.due.claim(shard, 1, 60_000)
        return claimed if claimed.rows else None

    claimed = await wait_until(again, 15, "the row is due again")
    assert claimed is not None
    assert claimed.rows[0].member == first.member
    assert claimed.rows[0].token != first.token


@pytest.mark.parametrize("older", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("room", [0, 7])
async def test_lease_that_has_run_out_is_claimed_before_all_other_rows(
    store: Store, older: int, room: int
) -> None:
    shard = await put(store, *((f"k:{number:03}", 1 + number) for number in range(older)))
    dead, alive = Incarnation("in_dead", 1), Incarnation("in_alive", 1)
    await store.leases.extend(LeaseRequest(shard, alive, opens=True, wants_duty=False), 60_000)
    await store.leases.extend(LeaseRequest(shard, dead, opens=True, wants_duty=False), 1)
    for _ in range(2):  # a claimed lease is due again soon, and comes first again

        async def claim() -> list[str]:
            claimed = await store.due.claim(shard, room, 60_000)
            members = [row.member for row in claimed.rows]
            return members if "own:in_dead" in members else []

        members = await wait_until(claim, 15, "the lease has run out and is claimed")
        assert members is not None
        assert members[0] == "own:in_dead"
        assert "own:in_alive" not in members
        assert len(members) <= 1 + room
    assert isinstance(await store.leases.take_over(shard, "in_dead"), TakenOver)
    await store.leases.release(shard, alive)
    [kept] = await store.nodes.read(shard, pack("SMEMBERS", keys.lessees(shard)))
    assert kept == []


async def test_held_rows_stay_while_others_are_claimed(store: Store) -> None:
    shard = await put(store, *((f"own:{number}", 1) for number in range(5)), ("k:x", 2))
    lessee = Incarnation("0", 1)
    await store.leases.extend(LeaseRequest(shard, lessee, opens=True, wants_duty=False), 0)
    claimed = await store.due.claim(shard, 2, 60_000, skip_prefix=LEASE_ROWS)
    assert [row.member for row in claimed.rows] == ["k:x"]
    free = partial(store.due.claim, shard, 10, 60_000)
    assert len((await free()).rows) == 5


async def test_empty_shard_has_nothing_due_and_nothing_next(store: Store) -> None:
    claimed = await store.due.claim(make_place().shard, 10, 1000)
    assert (claimed.rows, claimed.next_ms) == ((), None)
