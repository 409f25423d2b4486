"""Idle shards: a lease without runs rests, and a run that appears there is taken over like any other."""

from __future__ import annotations

import pytest

from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.delegation.duties.leases import choose_duties
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.integration.duties.story import Story, make_writes
from tests.support.engine import ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LEASE_MS = 800
NAMES = ("in_one", "in_two")


def rests(instances: Instances, instance: Instance, shard: Shard) -> bool:
    return ask(instances.url, "HEXISTS", keys.own(shard, instance.name), "rest") == 1


@pytest.mark.requirement("I6", "I9")
@pytest.mark.parametrize("owner", NAMES)
async def test_run_appended_to_an_idle_shard_as_its_driver_dies_is_taken_over(
    instances: Instances, store: Store, owner: str
) -> None:
    one, two = [await instances.start(name, lease_ms=LEASE_MS) for name in NAMES]
    mine = choose_duties(owner, NAMES)
    by_name = {instance.name: instance.duties.keeper for instance in (one, two)}
    await wait_until(lambda: by_name[owner].duties == mine, 15, "the duties are spread")
    shard = min(mine, key=lambda one: one.number)
    assert rests(instances, one, shard)
    story = Story(make_writes(store), shard, one.duties.keeper.drives(shard))
    await one.die()
    # The dead instance's last append arrives late: nothing extends its lease any more.
    await story.begin()
    assert not rests(instances, one, shard)
    await wait_until(lambda: two.adopted == [story.task.id], 15, "the run is driven again")
    assert await story.read_driver() == "in_two.1"


@pytest.mark.requirement("I6", "I9")
async def test_instance_started_after_all_died_gets_every_duty_and_their_runs(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", lease_ms=LEASE_MS)
    shard = Shard(11)
    story = Story(make_writes(store), shard, one.duties.keeper.drives(shard))
    await story.begin()
    await one.die()
    two = await instances.start("in_two", lease_ms=LEASE_MS)
    await wait_until(
        lambda: two.duties.keeper.duties == frozenset(ALL_SHARDS), 15, "it has all duties"
    )
    await wait_until(lambda: two.adopted == [story.task.id], 15, "the run is driven again")


async def test_duties_move_to_a_new_instance_however_long_they_were_held(
    instances: Instances,
) -> None:
    one = await instances.start("in_one", lease_ms=LEASE_MS)
    assert one.duties.keeper.duties == frozenset(ALL_SHARDS)
    two = await instances.start("in_two", lease_ms=LEASE_MS)

    def is_spread() -> bool:
        mine, theirs = one.duties.keeper.duties, two.duties.keeper.duties
        return mine == choose_duties("in_one", NAMES) and theirs == choose_duties("in_two", NAMES)

    await wait_until(is_spread, 10, "each shard has the owner that it should have")


async def test_lease_rests_until_its_instance_writes_in_the_shard(instances: Instances) -> None:
    one = await instances.start("in_one", runs=False)
    keeper, shard = one.duties.keeper, Shard(3)
    await keeper.start()
    story = Story(one.writes, shard, keeper.drives(shard))
    assert all(rests(instances, one, each) for each in ALL_SHARDS)
    await story.begin()
    await story.fail()
    await keeper.extend()
    assert {each for each in ALL_SHARDS if not rests(instances, one, each)} == {shard}
    await one.duties.stop()
