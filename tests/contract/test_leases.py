"""Leases and takeover: the server's time counts, and a lost lease is never silently reopened."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest

from passerelle.core.batch import Appended, Batch, Fence, Fenced, Incarnation, RunMove, Stamp
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.leases import Alive, Lease, LeaseLost, LeaseRequest, TakenOver
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server, ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LONG_MS = 60_000
SHORT_MS = 40


async def take(
    store: Store,
    shard: Shard,
    driver: Incarnation,
    *,
    opens: bool = True,
    duty: bool = False,
    rests: bool = False,
    living: tuple[str, ...] = (),
    lease_ms: int = LONG_MS,
) -> Lease | LeaseLost:
    request = LeaseRequest(shard, driver, opens, duty, may_rest=rests, living=living)
    return await store.leases.extend(request, lease_ms)


async def start_run(store: Store, at: TaskPlace) -> Stamp:
    """Creates a task that the place's driver drives."""
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(fields={"own": str(at.driver).encode()}),),
        events=(event(),),
        runs=(RunMove("run_1", at.task, at.driver, enters=True),),
    )
    assert isinstance(await store.log.append(batch), Appended)
    return Stamp(1, batch.op)


async def expire(store: Store, at: TaskPlace) -> TakenOver:
    async def ended() -> TakenOver | None:
        found = await store.leases.take_over(at.shard, at.driver.instance)
        return None if isinstance(found, Alive) else found

    found = await wait_until(ended, 15, "the lease has run out")
    assert found is not None
    return found


async def test_lease_is_opened_and_extended_by_the_servers_clock(store: Store) -> None:
    at = make_place()
    first = await take(store, at.shard, at.driver, lease_ms=1000)
    assert isinstance(first, Lease)
    assert first.until_ms == first.now_ms + 1000
    second = await take(store, at.shard, at.driver, opens=False, lease_ms=5000)
    assert isinstance(second, Lease)
    assert second.until_ms >= first.until_ms + 3000
    assert not second.duty


async def test_lease_that_was_never_opened_cannot_be_extended(store: Store) -> None:
    at = make_place()
    assert await take(store, at.shard, at.driver, opens=False) == LeaseLost()


async def test_expired_lease_without_a_takeover_can_be_extended(store: Store) -> None:
    at = make_place()
    await take(store, at.shard, at.driver, lease_ms=1)
    rows = partial(store.due.claim, at.shard, 10, 1)
    await wait_until(rows, 15, "the lease's row is due")
    assert isinstance(await take(store, at.shard, at.driver, opens=False), Lease)


async def test_duty_of_a_dead_instance_is_free_whatever_its_remaining_time(
    store: Store,
) -> None:
    shard = make_place().shard
    one, two = Incarnation("in_one", 1), Incarnation("in_two", 1)

    async def asks(driver: Incarnation, *living: str) -> bool:
        lease = await take(store, shard, driver, duty=True, living=living)
        assert isinstance(lease, Lease)
        return lease.duty

    assert await asks(one, "in_one")
    assert not await asks(two, "in_one", "in_two")
    assert await asks(two, "in_two", "in_three")
    assert not await asks(one, "in_one", "in_two"), "who was thought dead does not take it back"


async def test_living_lease_is_not_taken_over(store: Store) -> None:
    at = make_place()
    await take(store, at.shard, at.driver)
    assert await store.leases.take_over(at.shard, at.driver.instance) == Alive()


@pytest.mark.requirement("I9")
async def test_runs_of_a_dead_instance_are_found_and_moved_and_its_set_is_removed(
    store: Store,
) -> None:
    at = make_place()
    heir = Incarnation("in_heir", 1)
    await take(store, at.shard, at.driver, lease_ms=SHORT_MS)
    await take(store, at.shard, heir)
    stamp = await start_run(store, at)
    taken = await expire(store, at)
    assert taken == TakenOver(1, (("run_1", at.task),), ())
    assert await store.leases.take_over(at.shard, at.driver.instance) == taken
    move = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(stamp, fields={"own": str(heir).encode()}),),
        events=(event(),),
        fence=Fence(at.task, at.driver),
        runs=(
            RunMove("run_1", at.task, at.driver, enters=False),
            RunMove("run_1", at.task, heir, enters=True),
        ),
    )
    assert isinstance(await store.log.append(move), Appended)
    assert await store.leases.take_over(at.shard, at.driver.instance) == TakenOver(1, (), ())
    assert await store.leases.take_over(at.shard, at.driver.instance) == TakenOver(0, (), ())
    late = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(Stamp(2, move.op)),),
        fence=Fence(at.task, at.driver),
    )
    assert await store.log.append(late) == Fenced()


async def test_instance_that_resumes_after_a_takeover_has_lost_its_lease(store: Store) -> None:
    at = make_place()
    await take(store, at.shard, at.driver, lease_ms=SHORT_MS)
    await start_run(store, at)
    await expire(store, at)
    next_life = Incarnation(at.driver.instance, 2)
    assert await take(store, at.shard, at.driver, opens=False) == LeaseLost()
    assert await take(store, at.shard, at.driver) == LeaseLost()
    assert await take(store, at.shard, next_life) == LeaseLost()
    await store.log.append(
        Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write((await store.log.load([at.task_ref]))[0].stamp),),
            runs=(RunMove("run_1", at.task, at.driver, enters=False),),
        )
    )
    assert isinstance(await take(store, at.shard, next_life), Lease)


async def test_released_lease_with_a_run_is_due_at_once_and_keeps_its_run(store: Store) -> None:
    at = make_place()
    await take(store, at.shard, at.driver)
    await start_run(store, at)
    await store.leases.release(at.shard, at.driver)
    claimed = await store.due.claim(at.shard, 10, LONG_MS)
    assert [row.member for row in claimed.rows] == [f"own:{at.driver.instance}"]
    assert (claimed.rows[0].kind, claimed.rows[0].entity) == ("own", at.driver.instance)
    found = await store.leases.take_over(at.shard, at.driver.instance)
    assert found == TakenOver(1, (("run_1", at.task),), ())


async def test_released_lease_without_a_run_leaves_no_rows(store: Store) -> None:
    at = make_place()
    await take(store, at.shard, at.driver, duty=True)
    await store.leases.release(at.shard, at.driver)
    assert (await store.due.claim(at.shard, 10, 1)).next_ms is None
    assert await take(store, at.shard, at.driver, opens=False) == LeaseLost()


async def test_duty_has_one_owner_until_it_is_released_or_expires(store: Store) -> None:
    shard = make_place().shard
    one, two = Incarnation("in_one", 1), Incarnation("in_two", 1)

    both = (one.instance, two.instance)

    async def asks(driver: Incarnation, *, duty: bool = True, lease_ms: int = LONG_MS) -> bool:
        lease = await take(store, shard, driver, duty=duty, living=both, lease_ms=lease_ms)
        assert isinstance(lease, Lease)
        return lease.duty

    assert await asks(one, lease_ms=SHORT_MS)
    assert not await asks(two)
    await wait_until(partial(asks, two), 15, "the duty has run out")
    assert not await asks(one)
    assert not await asks(two, duty=False)
    assert await asks(one)
    await store.leases.release(shard, one)
    assert await asks(two)


async def test_lease_lost_in_one_shard_leaves_the_others_alone(store: Store) -> None:
    driver = Incarnation("in_wide", 1)
    lost, kept = make_place(), make_place()
    assert lost.shard != kept.shard
    at = TaskPlace(lost.shard, lost.session, lost.task, driver)
    await take(store, lost.shard, driver, lease_ms=SHORT_MS)
    await take(store, kept.shard, driver)
    await expire(store, at)
    answers = await asyncio.gather(
        *(take(store, place.shard, driver, opens=False) for place in (lost, kept))
    )
    assert isinstance(answers[0], LeaseLost)
    assert isinstance(answers[1], Lease)


async def test_instances_that_announced_themselves_know_each_other(store: Store) -> None:
    assert list(await store.leases.announce("in_a")) == ["in_a"]
    assert sorted(await store.leases.announce("in_b")) == ["in_a", "in_b"]
    await store.leases.withdraw("in_a")
    assert list(await store.leases.announce("in_b")) == ["in_b"]


async def test_leases_of_many_shards_are_extended_together_and_one_that_is_broken_fails_alone(
    store: Store,
) -> None:
    shards = [Shard(number) for number in (3, 9, 40)]
    broken = Incarnation("in_x", 1)
    await store.nodes.write(shards[1], pack("SET", keys.own(shards[1], "in_x"), "no lease"))
    requests = [LeaseRequest(shard, broken, opens=True, wants_duty=True) for shard in shards]
    first, second, third = await store.leases.extend_each(requests, LONG_MS)
    assert isinstance(first, Lease)
    assert first.duty
    assert isinstance(third, Lease)
    assert isinstance(second, StoreUnavailable)
    gone = LeaseRequest(shards[0], Incarnation("in_x", 2), opens=False, wants_duty=True)
    assert await store.leases.extend_each([gone], LONG_MS) == [LeaseLost()]
    assert await store.leases.extend_each([], LONG_MS) == []


async def test_late_release_of_an_earlier_incarnation_ends_nothing_of_the_current_one(
    store: Store,
) -> None:
    at = make_place()
    later = Incarnation(at.driver.instance, at.driver.number + 1)
    await take(store, at.shard, at.driver, duty=True, lease_ms=1)

    async def is_open() -> bool:
        return isinstance(await take(store, at.shard, later, duty=True), Lease)

    await wait_until(is_open, 15, "the later life has the lease")
    await store.leases.release(at.shard, at.driver)
    other = Incarnation("in_other", 1)
    asked = await take(store, at.shard, other, duty=True, living=(later.instance,))
    assert isinstance(asked, Lease)
    assert not asked.duty, "the duty is still held"
    assert isinstance(await take(store, at.shard, later, opens=False), Lease)
    await store.leases.release(at.shard, later)
    asked = await take(store, at.shard, other, duty=True)
    assert isinstance(asked, Lease)
    assert asked.duty
    await store.leases.release(at.shard, other)


EXTENSION_BYTES = 300
"""Of the log, for a lease and a duty in one shard."""


async def test_extension_writes_only_what_changes(store: Store, server: Server) -> None:
    shards = [Shard(number) for number in range(64)]
    driver = Incarnation("inst_0123456789abcdefghijklmn", 1)

    async def extend(*, opens: bool) -> None:
        requests = [LeaseRequest(shard, driver, opens, wants_duty=True) for shard in shards]
        leases = await store.leases.extend_each(requests, LONG_MS)
        assert all(isinstance(one, Lease) and one.duty for one in leases)

    await extend(opens=True)
    before, rounds = count_written(server), 4
    for _ in range(rounds):
        await extend(opens=False)
    await wait_until(lambda: count_written(server) > before, 10, "the log has grown")
    assert count_written(server) - before <= rounds * len(shards) * EXTENSION_BYTES


def count_written(server: Server) -> int:
    """Bytes in the logs of all nodes."""
    reported = [cast("dict[str, int]", ask(url, "INFO", "persistence")) for url in server.nodes]
    return sum(one["aof_current_size"] for one in reported)
