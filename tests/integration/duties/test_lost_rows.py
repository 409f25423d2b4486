"""A target shard that loses the tail of its list rows is sent them again (I10), also by a new owner of the duty."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.core.batch import EntityRef
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.integration.duties.story import OWNER, Story, make_writes
from tests.support.engine import ask
from tests.support.lost_tail import take_snapshot

pytestmark = pytest.mark.anyio

SOURCE = Shard(21)
HOME = OWNER.home
assert HOME != SOURCE


async def begin(store: Store) -> Story:
    story = Story(make_writes(store), SOURCE)
    await story.begin()
    await story.show()
    return story


async def relay_all(instance: Instance) -> None:
    for shard in ALL_SHARDS:
        async with asyncio.timeout(10):
            while await instance.duties.relay.pass_on(shard) < 1.0:
                continue


async def list_tasks(store: Store) -> set[str]:
    rows = await store.projections.read_index(OWNER.key, "echo", None, 1_000)
    return {facade for facade, _ in rows}


async def list_questions(store: Store) -> set[str]:
    named = {name for name, _ in await store.projections.list_inbox(OWNER.key)}
    assert named == {name for name, _ in await store.projections.read_inbox(OWNER.key)}
    return named


async def lose(store: Store, instances: Instances, relaying: Instance) -> list[EntityRef]:
    """Relays two tasks with an approval each, then takes the second of each back out of the owner's shard."""
    first = await begin(store)
    one = await first.ask("one")
    await relay_all(relaying)
    before = take_snapshot(instances.url, HOME)
    second = await begin(store)
    two = await second.ask("two")
    await relay_all(relaying)
    assert await list_tasks(store) == {first.task.id, second.task.id}
    assert await list_questions(store) == {one.id, two.id}
    before.restore()
    assert await list_tasks(store) == {first.task.id}
    assert await list_questions(store) == {one.id}
    return [first.task, second.task, one, two]


@pytest.mark.requirement("I10")
async def test_rows_that_a_target_has_lost_are_resent_with_the_next_row(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    *tasks, one, two = await lose(store, instances, relaying)
    third = await begin(store)
    three = await third.ask("three")
    await relay_all(relaying)
    assert await list_tasks(store) == {task.id for task in (*tasks, third.task)}
    assert await list_questions(store) == {one.id, two.id, three.id}
    assert await find_epoch(store, HOME) > 0, "every reader of the shard is verified again"
    assert await find_epoch(store, SOURCE) == 0, "nothing was lost there"


@pytest.mark.requirement("I10")
async def test_lost_rows_are_resent_without_a_further_row(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    *tasks, one, two = await lose(store, instances, relaying)
    relaying.duties.relay.audit_s = 0.0
    await relay_all(relaying)
    assert await list_tasks(store) == {task.id for task in tasks}
    assert await list_questions(store) == {one.id, two.id}


@pytest.mark.requirement("I10")
async def test_lost_rows_are_resent_by_a_new_owner_of_the_duty(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    *tasks, one, two = await lose(store, instances, relaying)
    successor = await instances.start("in_two", runs=False)
    await relay_all(successor)
    assert await list_tasks(store) == {task.id for task in tasks}
    assert await list_questions(store) == {one.id, two.id}


async def test_target_that_has_lost_everything_is_resent_the_whole_window(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    before = take_snapshot(instances.url, HOME)
    stories = [await begin(store) for _ in range(150)]
    questions = [await story.ask() for story in stories[::10]]
    await relay_all(relaying)
    before.restore()
    stories.append(await begin(store))
    await relay_all(relaying)
    assert await list_tasks(store) == {story.task.id for story in stories}
    assert await list_questions(store) == {action.id for action in questions}


async def test_ordinary_relaying_changes_no_epoch(instances: Instances, store: Store) -> None:
    one = await instances.start("in_one", runs=False)
    two = await instances.start("in_two", runs=False)
    for number in range(20):
        await begin(store)
        await relay_all(one if number % 3 else two)
    for relaying in (one, two):
        relaying.duties.relay.audit_s = 0.0
        await relay_all(relaying)
    assert [await find_epoch(store, shard) for shard in (HOME, SOURCE)] == [0, 0]
    sent = ask(instances.url, "HGET", keys.meta(SOURCE), f"taken:{HOME.tag}")
    assert sent is not None


async def find_epoch(store: Store, shard: Shard) -> int:
    await store.log.read_epochs()
    return store.log.shard_epoch(shard)
