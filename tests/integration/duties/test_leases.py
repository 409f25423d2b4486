"""The lease keeper on a real engine: it opens, extends, loses and releases leases, and never overestimates one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from passerelle.core.batch import Incarnation
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.leases import Lease, LeaseLost, LeaseRequest, TakenOver
from passerelle.delegation.duties.leases import choose_duties
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instances
from tests.integration.duties.story import Story, make_writes
from tests.support.engine import ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHARD = Shard(7)
ALL = frozenset(ALL_SHARDS)


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class UnavailableStore:
    """A store that does not respond."""

    async def announce(self, *_: object) -> dict[str, int]:
        raise StoreUnavailable("test", "no")

    async def extend(self, *_: object, **_options: object) -> None:
        raise StoreUnavailable("test", "unknown")

    async def extend_each(
        self, requests: Sequence[LeaseRequest], _lease_ms: int
    ) -> list[StoreUnavailable]:
        return [StoreUnavailable("test", "unknown") for _ in requests]


async def await_taken(store: Store) -> None:
    """Returns once another instance has found the lease of ``in_one`` expired."""

    async def taken() -> bool:
        return isinstance(await store.leases.take_over(SHARD, "in_one"), TakenOver)

    await wait_until(taken, 15, "the lease is found expired")


async def test_single_instance_holds_every_lease_and_every_duty(instances: Instances) -> None:
    one = await instances.start("in_one", runs=False)
    with pytest.raises(StoreUnavailable):
        one.duties.keeper.drives(SHARD)
    await one.duties.keeper.start()
    assert one.duties.keeper.duties == ALL
    assert {str(one.duties.keeper.drives(shard)) for shard in ALL_SHARDS} == {"in_one.1"}
    await one.duties.stop()


async def test_duties_are_spread_over_the_live_instances(instances: Instances) -> None:
    one = await instances.start("in_one")
    two = await instances.start("in_two")

    def is_spread() -> bool:
        mine, theirs = one.duties.keeper.duties, two.duties.keeper.duties
        return not mine & theirs and mine | theirs == ALL and len(theirs) > 10

    await wait_until(is_spread, 10, "each shard has one owner")
    await two.duties.stop()
    await wait_until(lambda: one.duties.keeper.duties == ALL, 15, "the duties have come back")


async def test_keeper_polls_more_often_while_another_instance_is_missing(
    instances: Instances,
) -> None:
    one = await instances.start("in_one", runs=False)
    two = await instances.start("in_two", runs=False)
    await one.duties.keeper.start()
    usual_s = one.duties.keeper.pause_s
    await two.duties.keeper.start()
    assert two.duties.keeper.pause_s <= usual_s / 4
    await one.duties.keeper.extend()
    await two.duties.keeper.extend()
    assert one.duties.keeper.pause_s == two.duties.keeper.pause_s == usual_s

    async def one_is_missed() -> bool:
        await two.duties.keeper.extend()
        return two.duties.keeper.pause_s < usual_s

    await wait_until(one_is_missed, 15, "the silent instance is noticed")
    await one.duties.stop()
    await two.duties.stop()


async def test_duties_of_a_silent_instance_are_claimed_as_soon_as_its_lease_expires(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await instances.start("in_one", lease_ms=800, runs=False)
    two = await instances.start("in_two", lease_ms=800, runs=False)
    keeper = two.duties.keeper
    await one.duties.keeper.start()
    await keeper.start()
    await one.duties.keeper.extend()
    await keeper.extend()
    theirs = one.duties.keeper.duties
    assert not theirs & keeper.duties

    async def is_missed() -> bool:
        await keeper.extend()
        return keeper.claim_s < math.inf

    await wait_until(is_missed, 15, "the silent one is noticed")
    assert one.duties.keeper.duties == theirs, "while its lease holds"
    monkeypatch.setattr(keeper.leases, "announce", UnavailableStore().announce)
    while keeper.duties != ALL:
        await asyncio.sleep(keeper.claim_s - time.monotonic())
        await keeper.claim()
    assert not one.duties.keeper.duties
    await two.duties.keeper.release()


def test_every_instance_computes_the_same_ranking() -> None:
    names = ("in_a", "in_b", "in_c")
    parts = [choose_duties(name, names) for name in names]
    assert sum(map(len, parts)) == len(ALL_SHARDS)
    assert frozenset().union(*parts) == set(ALL_SHARDS)
    survivors = choose_duties("in_a", names[:2])
    assert parts[0] <= survivors, "a death moves only the duties of the dead instance"


async def test_lease_ends_by_the_process_clock_and_sending_needs_a_third_of_it(
    instances: Instances,
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    await one.duties.keeper.start()
    clock.now_s += 3.3
    driver = one.duties.keeper.drives(SHARD)
    assert driver == Incarnation("in_one", 1)
    assert one.duties.keeper.find_sender(SHARD) is driver
    clock.now_s += 0.1
    assert one.duties.keeper.find_sender(SHARD) is None
    assert one.duties.keeper.drives(SHARD) is driver, "one object while the lease lasts"
    clock.now_s += 2
    with pytest.raises(StoreUnavailable):
        one.duties.keeper.drives(SHARD)
    assert one.duties.keeper.duties == frozenset()
    await one.duties.keeper.extend()
    assert one.duties.keeper.find_sender(SHARD) is driver
    assert one.duties.keeper.drives(SHARD) == Incarnation("in_one", 1), (
        "no other instance took it meanwhile"
    )
    await one.duties.stop()


@pytest.mark.requirement("I2")
async def test_instance_that_was_frozen_drops_the_runs_it_has_lost(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", lease_ms=300, runs=False)
    await one.duties.keeper.start()
    story = Story(one.writes, SHARD, one.duties.keeper.drives(SHARD))
    await story.begin()
    await await_taken(store)
    await one.duties.keeper.extend()
    assert one.lost == [SHARD]
    with pytest.raises(StoreUnavailable):
        one.duties.keeper.drives(SHARD)
    assert one.duties.keeper.drives(Shard(8)) == Incarnation("in_one", 1), (
        "other shards are not touched"
    )
    await one.duties.keeper.extend()
    with pytest.raises(StoreUnavailable):
        one.duties.keeper.drives(SHARD)
    assert one.lost == [SHARD]
    await story.fail()
    await one.duties.keeper.extend()
    assert one.duties.keeper.drives(SHARD) == Incarnation("in_one", 2)
    await one.duties.stop()


async def test_resting_lease_is_held_until_a_run_needs_it(
    instances: Instances,
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper, other = one.duties.keeper, Shard(8)
    await keeper.start()
    await keeper.extend()
    assert keeper.held == len(ALL_SHARDS)
    clock.now_s += 12
    assert keeper.held == len(ALL_SHARDS), "no instance takes over a resting lease"
    assert keeper.duties == frozenset(), "its heartbeat is overdue for other instances"
    driver = keeper.drives(SHARD)
    clock.now_s += 3
    assert keeper.find_sender(SHARD) is driver
    clock.now_s += 2.1
    assert keeper.find_sender(SHARD) is None
    with pytest.raises(StoreUnavailable):
        keeper.drives(SHARD)
    assert keeper.drives(other) == Incarnation("in_one", 1)
    clock.now_s += 3
    assert keeper.held == 0, "each ends at last"
    await one.duties.stop()


async def test_lease_does_not_rest_while_an_append_of_a_run_may_be_in_flight(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    await keeper.extend()
    extend_each = keeper.leases.extend_each
    requested: list[LeaseRequest] = []
    late = [SHARD]

    async def ask_meanwhile(
        requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        requested[:] = requests
        answers = [*await extend_each(requests, lease_ms)]
        while late:
            keeper.drives(late.pop())
        return answers

    monkeypatch.setattr(keeper.leases, "extend_each", ask_meanwhile)
    clock.now_s += 10
    await keeper.extend()
    assert {request.shard for request in requested} == ALL, "after a pause all are requested"
    clock.now_s += 5.1
    assert keeper.held == len(ALL_SHARDS) - 1, "the extension began before the lease was needed"
    for _ in range(8):
        clock.now_s += 1
        await keeper.extend()
        assert SHARD in {request.shard for request in requested if not request.may_rest}
    monkeypatch.setattr(keeper.leases, "extend_each", extend_each)
    for _ in range(100):
        clock.now_s += 1
        await keeper.extend()
    clock.now_s += 8
    assert keeper.held == len(ALL_SHARDS), "it rests again"
    await one.duties.stop()


async def test_rounds_extend_resting_leases_in_turn_and_active_leases_each_time(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    await keeper.extend()
    asked: list[Shard] = []
    extend_each = keeper.leases.extend_each

    async def note(
        requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        asked.extend(request.shard for request in requests)
        return [*await extend_each(requests, lease_ms)]

    monkeypatch.setattr(keeper.leases, "extend_each", note)
    for _ in range(8):
        clock.now_s += keeper.pause_s
        await keeper.extend()
    assert sorted(asked) == [*ALL_SHARDS]
    assert keeper.pause_s == pytest.approx(1.0)  # pyright: ignore[reportUnknownMemberType]  # not typed there
    keeper.drives(SHARD)
    await keeper.extend()
    assert keeper.pause_s == 0.625, "eight times in a lease"
    await one.duties.stop()


async def test_expired_leases_are_regained_by_one_extension_for_all_waiters(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    calls = 0
    extend_each = keeper.leases.extend_each

    async def count(
        requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        nonlocal calls
        calls += 1
        return [*await extend_each(requests, lease_ms)]

    monkeypatch.setattr(keeper.leases, "extend_each", count)
    await keeper.regain(SHARD)
    assert calls == 0, "it is held"
    clock.now_s += 60
    await asyncio.gather(*(keeper.regain(shard) for shard in ALL_SHARDS))
    assert calls == 1
    assert {keeper.drives(shard) for shard in ALL_SHARDS} == {Incarnation("in_one", 1)}
    await one.duties.stop()


async def test_lease_found_expired_is_regained_as_a_new_incarnation(
    instances: Instances, store: Store
) -> None:
    clock = Clock()
    one = await instances.start("in_one", lease_ms=300, clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    story = Story(one.writes, SHARD, keeper.drives(SHARD))
    await story.begin()
    await await_taken(store)
    clock.now_s += 60
    await keeper.regain(SHARD)
    assert keeper.drives(SHARD) == Incarnation("in_one", 2)
    assert one.lost == [SHARD]
    await one.duties.stop()


async def test_regain_fails_at_once_while_the_store_is_known_to_be_unavailable(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    clock.now_s += 60
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "leases", UnavailableStore())
        await keeper.extend()
        patch.setattr(keeper, "leases", None)
        await keeper.regain(SHARD)
    with pytest.raises(StoreUnavailable):
        keeper.drives(SHARD)
    await keeper.extend()
    assert keeper.drives(SHARD) == Incarnation("in_one", 1)
    await one.duties.stop()


async def test_unresponsive_store_gets_one_request_for_all_waiters(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = await instances.start("in_one", clock=clock, runs=False)
    keeper = one.duties.keeper
    await keeper.start()
    clock.now_s += 60
    asked = 0

    class Silent(UnavailableStore):
        async def extend_each(
            self, requests: Sequence[LeaseRequest], lease_ms: int
        ) -> list[StoreUnavailable]:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            clock.now_s += 2
            return await super().extend_each(requests, lease_ms)

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "leases", Silent())
        await asyncio.gather(*(keeper.regain(shard) for shard in ALL_SHARDS))
        assert asked == 1
        await keeper.regain(SHARD)
        assert asked == 2, "a later caller sends a new request"
    await keeper.regain(SHARD)
    assert keeper.drives(SHARD) == Incarnation("in_one", 1)
    await one.duties.stop()


async def test_store_outage_loses_no_lease_and_the_first_extension_restores_it(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await instances.start("in_one", runs=False)
    await one.duties.keeper.start()

    with monkeypatch.context() as patch:
        patch.setattr(one.duties.keeper, "leases", UnavailableStore())
        await one.duties.keeper.extend()
    assert one.lost == []
    await one.duties.keeper.extend()
    assert one.duties.keeper.drives(SHARD) == Incarnation("in_one", 1)
    await one.duties.stop()


async def test_stopped_instance_releases_its_leases_and_its_run_is_due_at_once(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one")
    story = Story(make_writes(store), SHARD, one.duties.keeper.drives(SHARD))
    await story.begin()
    await one.duties.stop()
    assert list(await store.leases.announce("in_test")) == ["in_test"]
    found = await store.due.claim(SHARD, 10, 60_000)
    assert [row.member for row in found.rows] == ["own:in_one"]
    empty = await store.due.claim(Shard(8), 10, 60_000)
    assert (empty.rows, empty.next_ms) == ((), None)


OWN = keys.own(SHARD, "in_one")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (("HSET", OWN, "until", "x"), "lease.damaged"),
        (("HSET", OWN, "inc", "x", "r:run_x", "task_x"), "lease.held"),
        (("HSET", keys.duty(SHARD), "until", "x"), None),
        (("HSET", keys.meta(SHARD), "epoch", "x"), "lease.damaged"),
        (("ZADD", keys.instances(), 9_999_999_999_999, b"in_\xff"), "lease.view_old"),
        (("ZADD", keys.due(SHARD), "-inf", "none:x"), "due.unknown"),
        (("ZADD", keys.due(SHARD), "+inf", "none:x"), None),
    ],
    ids=("until", "incarnation", "duty", "epoch", "instance", "due long ago", "never due"),
)
async def test_damaged_field_is_reported_and_duties_go_on(
    instances: Instances, damage: tuple[str, ...], said: str | None
) -> None:
    with capture_logs() as lines:
        one = await instances.start("in_one")
        ask(instances.url, *damage)
        for _ in range(3):
            await one.duties.watch.look()
            await one.duties.keeper.extend()
        one.duties.due.wake(SHARD)

        def is_said() -> bool:
            return said is None or said in {line["event"] for line in lines}

        await wait_until(is_said, 10, f"{said} is logged")
        assert one.duties.failed is None
        assert one.duties.keeper.held >= len(ALL) - 1, "the other shards are served"
        await one.duties.stop()
    assert sum(line["event"] == "lease.damaged" for line in lines) <= 1, "not at each extension"
