"""A lease without runs rests: it costs no writes, and whatever enters it wakes it in the same call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from passerelle.core.batch import Appended, Batch, Incarnation, RunMove
from passerelle.core.ids import Shard
from passerelle.core.ports.leases import Lease, LeaseLost, LeaseRequest, TakenOver
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event, make_place, mint, operation
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LEASE_MS = 5_000
SHORT_MS = 40
RESTS_MS = 200
"""Duration of a lease whose row is due in half a minute while it rests, and soon once it was woken."""


async def rest(
    store: Store,
    at: TaskPlace,
    *,
    opens: bool = False,
    may_rest: bool = True,
    lease_ms: int = LEASE_MS,
    seen: int = 0,
) -> Lease:
    request = LeaseRequest(
        at.shard, at.driver, opens, wants_duty=False, seen=seen, may_rest=may_rest
    )
    lease = await store.leases.extend(request, lease_ms)
    assert isinstance(lease, Lease)
    return lease


async def read_row(store: Store, at: TaskPlace) -> int:
    """When the set's row is due, in ms from now; 0 if it has none."""
    row = f"own:{at.driver.instance}"
    score, time = await store.nodes.read(
        at.shard, pack("ZSCORE", keys.due(at.shard), row), pack("TIME")
    )
    seconds, micros = (int(part) for part in cast("list[bytes]", time))
    return int(float(cast("bytes", score))) - seconds * 1000 - micros // 1000 if score else 0


async def move_run(store: Store, at: TaskPlace, *, enters: bool) -> None:
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write((await store.log.load([at.task_ref]))[0].stamp),),
        events=(event(),),
        runs=(RunMove("run_1", at.task, at.driver, enters=enters),),
    )
    assert isinstance(await store.log.append(batch), Appended)


async def enter_run(store: Store, at: TaskPlace) -> None:
    await move_run(store, at, enters=True)


async def open_link(store: Store, at: TaskPlace) -> None:
    await store.channels.record_hello(
        mint("pr", at.shard), mint("ch", at.shard), b"device", at.driver
    )


async def keep_link(store: Store, at: TaskPlace) -> None:
    channel = mint("ch", at.shard)
    greeted = await store.channels.record_hello(mint("pr", at.shard), channel, b"device", None)
    await store.channels.keep(channel, greeted.generation, at.driver)


@pytest.mark.requirement("I9")
@pytest.mark.parametrize("enter", [enter_run, open_link, keep_link])
async def test_run_that_enters_a_resting_lease_is_taken_over_when_it_is_not_extended(
    store: Store, enter: Callable[[Store, TaskPlace], Awaitable[None]]
) -> None:
    at = make_place()
    await rest(store, at, opens=True, lease_ms=RESTS_MS)
    assert await read_row(store, at) > 50 * RESTS_MS
    await enter(store, at)
    assert await read_row(store, at) <= RESTS_MS

    async def is_claimed() -> bool:
        claimed = await store.due.claim(at.shard, 10, 1)
        return [row.entity for row in claimed.rows] == [at.driver.instance]

    await wait_until(is_claimed, 10, "its row is due")
    taken = await store.leases.take_over(at.shard, at.driver.instance)
    assert isinstance(taken, TakenOver)
    assert len(taken.runs) + len(taken.channels) == 1


@pytest.mark.parametrize("enter", [enter_run, open_link, keep_link])
async def test_end_of_a_resting_lease_that_is_woken_does_not_move_back_with_the_clock(
    store: Store, enter: Callable[[Store, TaskPlace], Awaitable[None]]
) -> None:
    """An end before the acknowledged one reads as a lost write: the shard would get a new epoch, and readers a gap."""
    at = make_place()
    opened = await rest(store, at, opens=True)
    before_step_ms = opened.until_ms + 7_200_000  # extended two hours ahead of the present clock
    own = keys.own(at.shard, at.driver.instance)
    await store.nodes.write(at.shard, pack("HSET", own, "until", before_step_ms))
    await enter(store, at)
    woken = await rest(store, at, may_rest=False)
    assert woken.found_ms == before_step_ms
    again = await rest(store, at, may_rest=False)
    assert again.found_ms == woken.until_ms < before_step_ms


async def test_resting_lease_writes_nothing_and_returns_its_stored_end(
    store: Store, server: Server
) -> None:
    places = [
        TaskPlace(Shard(number), "", "", Incarnation("inst_0123456789", 1)) for number in range(64)
    ]
    first = [await rest(store, at, opens=True) for at in places]
    before = count_written(server)
    for _ in range(4):
        for at, opened in zip(places, first, strict=True):
            again = await rest(store, at)
            assert (again.until_ms, again.found_ms) == (opened.until_ms, opened.until_ms)
    await rest(store, places[0], may_rest=False)
    await wait_until(lambda: count_written(server) > before, 10, "one that does not rest writes")
    assert count_written(server) - before < 500


async def test_lease_does_not_rest_while_something_is_driven_and_rests_again_after_it(
    store: Store,
) -> None:
    at = make_place()
    ends = [(await rest(store, at, opens=True)).until_ms]
    await enter_run(store, at)
    for _ in range(2):
        lease = await rest(store, at)
        assert await read_row(store, at) <= LEASE_MS
        assert lease.until_ms > lease.now_ms
        assert lease.found_ms is not None
        assert lease.found_ms >= ends[-1], "nothing that was acknowledged looks lost"
        ends.append(lease.until_ms)
    await move_run(store, at, enters=False)
    lease = await rest(store, at)
    assert lease.found_ms == ends[-1]
    assert await read_row(store, at) > 50 * LEASE_MS
    await rest(store, at, may_rest=False)
    assert await read_row(store, at) <= LEASE_MS, "its instance has something to remember"
    await enter_run(store, at)
    assert await read_row(store, at) <= LEASE_MS


async def test_lost_extension_shows_while_the_lease_rests(store: Store) -> None:
    at = make_place()
    first = await rest(store, at, opens=True)
    older = str(first.until_ms - 700)
    await store.nodes.write(
        at.shard, pack("HSET", keys.own(at.shard, at.driver.instance), "until", older)
    )
    assert (await rest(store, at)).found_ms == int(older)


async def test_resting_lease_returns_the_epoch_of_its_comparison(store: Store) -> None:
    at = make_place()
    await rest(store, at, opens=True)
    await rest(store, at, seen=3)
    found = await store.inspection.read_driver_set(at.shard, at.driver.instance)
    assert found is not None
    assert found.seen == 3


async def test_resting_lease_of_a_dead_instance_expires(store: Store) -> None:
    at = make_place()
    await rest(store, at, opens=True, lease_ms=SHORT_MS)

    async def is_claimed() -> bool:
        claimed = await store.due.claim(at.shard, 10, 1)
        return [row.entity for row in claimed.rows] == [at.driver.instance]

    await wait_until(is_claimed, 15, "its row is due")
    assert await store.leases.take_over(at.shard, at.driver.instance) == TakenOver(1, (), ())
    assert await read_row(store, at) == 0
    request = LeaseRequest(at.shard, at.driver, opens=False, wants_duty=False, may_rest=True)
    assert await store.leases.extend(request, LEASE_MS) == LeaseLost()


def count_written(server: Server) -> int:
    """Bytes in the logs of all nodes."""
    reported = [cast("dict[str, int]", ask(url, "INFO", "persistence")) for url in server.nodes]
    return sum(one["aof_current_size"] for one in reported)
