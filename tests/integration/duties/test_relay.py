"""The relay on a real engine: owner index and inbox follow the streams, whatever fails in between."""

from __future__ import annotations

import asyncio
from typing import cast

import orjson
import pytest

from passerelle.core.batch import EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.events import decode_event
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.log import Entry, StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.integration.duties.story import OWNER, Story, make_writes
from tests.support.engine import ask
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOURCE = Shard(21)
INBOX = StreamRef(StreamKind.INBOX, OWNER.key)
BOB = Principal("bob", kind="person")


async def begin(store: Store, owner: Principal = OWNER, shard: Shard = SOURCE) -> Story:
    story = Story(make_writes(store), shard, owner=owner)
    await story.begin()
    return story


async def read_inbox(store: Store) -> list[Entry]:
    return await store.log.read_page(INBOX, 0)


async def read_open(store: Store) -> dict[str, bytes]:
    return dict(await store.projections.read_inbox(OWNER.key))


async def relay_all(instance: Instance) -> None:
    """Relays every shard until none has rows left."""
    relay = instance.duties.relay
    for shard in ALL_SHARDS:
        async with asyncio.timeout(10):
            while await relay.pass_on(shard) < 1.0:
                continue


async def test_shown_task_is_listed_for_its_owner_with_the_time_of_its_status(
    instances: Instances, store: Store
) -> None:
    await instances.start("in_one")
    await begin(store)  # a task that callers never see
    story, other = await begin(store), await begin(store, BOB)
    await story.show()
    await other.show()

    async def listed() -> bool:
        found = await store.projections.read_index(OWNER.key, "echo", None, 10)
        return found == [(story.task.id, parse_ms((await story.read()).status_at))]

    await wait_until(listed, 15, "the task is listed")
    await story.fail()
    await wait_until(listed, 15, "its end has moved it")
    found = await store.projections.read_index(BOB.key, "echo", None, 10)
    assert [facade for facade, _ in found] == [other.task.id]


async def test_list_row_is_relayed_without_reading_the_task(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await instances.start("in_one", runs=False)
    story = await begin(store)
    await story.show()

    async def refuse(*_args: object) -> None:
        raise AssertionError("the feed row is complete")

    with monkeypatch.context() as patch:
        patch.setattr(one.store.relay_facts, "read_page", refuse)
        patch.setattr(one.store.relay_facts, "load", refuse)
        await one.duties.relay.pass_on(SOURCE)
    found = await store.projections.read_index(OWNER.key, "echo", None, 10)
    assert [facade for facade, _ in found] == [story.task.id]


async def test_approval_is_in_the_inbox_until_it_is_answered(
    instances: Instances, store: Store
) -> None:
    await instances.start("in_one")
    story = await begin(store)
    action = await story.ask("may I pay")
    open_now = await wait_until(lambda: read_open(store), 15, "the question is there")
    assert open_now is not None
    view = orjson.loads(open_now[action.id])
    assert (view["actionId"], view["state"], view["title"]) == (action.id, "pending", "may I pay")
    await story.answer(action)

    async def closed() -> bool:
        return not await read_open(store)

    await wait_until(closed, 15, "the question is gone")


@pytest.mark.requirement("I1", "I3")
async def test_inbox_holds_the_same_events_as_the_session_but_its_own_sequence(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", runs=False)
    stories = [await begin(store), await begin(store, shard=Shard(40))]
    for story in stories:
        await story.answer(await story.ask())
    await relay_all(one)
    copies = await read_inbox(store)
    assert [entry.sequence for entry in copies] == list(range(1, len(copies) + 1))
    originals = {
        entry.event_id: entry
        for story in stories
        for entry in await store.log.read_page(StreamRef(StreamKind.SESSION, story.session.id), 0)
    }
    assert {entry.type for entry in copies} == {
        "action.required",
        "permission.requested",
        "action.resolved",
        "permission.resolved",
        "channel.permission_returned",
    }
    for copy in copies:
        original = originals[copy.event_id]
        assert copy.data.partition(b",")[2] == original.data.partition(b",")[2]
        assert decode_event(copy.data).fact == decode_event(original.data).fact


@pytest.mark.requirement("I10")
async def test_relay_that_dies_between_delivery_and_mark_repeats_nothing(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await instances.start("in_one", runs=False)
    story = await begin(store)
    for number in range(5):
        action = await story.ask(f"may I {number}")
        if number % 2:
            await story.answer(action)

    async def die(*_args: object) -> None:
        raise StoreUnavailable("test", "no")

    with monkeypatch.context() as patch:
        patch.setattr(one.store.relay_projections, "move_mark", die)
        with pytest.raises(StoreUnavailable):
            await one.duties.relay.pass_on(SOURCE)
    delivered = await read_inbox(store)
    assert delivered, "it died after the delivery"
    late = await story.ask("one more")
    two = await instances.start("in_two", runs=False)
    await relay_all(two)
    everything = await read_inbox(store)
    assert everything[: len(delivered)] == delivered
    assert len({entry.event_id for entry in everything}) == len(everything)
    assert late.id in await read_open(store)


@pytest.mark.requirement("I10")
async def test_two_relays_of_one_shard_deliver_each_event_once_and_in_order(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", runs=False)
    two = await instances.start("in_two", runs=False)
    story = await begin(store)

    async def work() -> None:
        for number in range(30):
            action = await story.ask(f"may I {number}")
            await story.answer(action)

    async def relay(instance: Instance, done: asyncio.Event) -> None:
        while not done.is_set():
            await instance.duties.relay.pass_on(SOURCE)

    done = asyncio.Event()
    relays = [asyncio.create_task(relay(instance, done)) for instance in (one, two)]
    await work()
    done.set()
    await asyncio.gather(*relays)
    await relay_all(two)
    stream = await store.log.read_page(StreamRef(StreamKind.SESSION, story.session.id), 0, 1_000)
    prefixes = ("action.", "permission.", "channel.permission_")
    expected = [entry.event_id for entry in stream if entry.type.startswith(prefixes)]
    copied = [entry.event_id for entry in await store.log.read_page(INBOX, 0, 1_000)]
    assert copied == expected


@pytest.mark.requirement("I10")
async def test_deleted_projections_are_rebuilt_equal(instances: Instances, store: Store) -> None:
    one = await instances.start("in_one", runs=False)
    actions: list[EntityRef] = []
    for number in range(6):
        story = await begin(store, shard=Shard(number))
        await story.show()
        actions.append(await story.ask(f"may I {number}"))
        if number % 3 == 0:
            await story.answer(actions[-1])
        if number % 2:
            await story.fail()
    await relay_all(one)
    index = await store.projections.read_index(OWNER.key, "echo", None, 100)
    pending = await read_open(store)
    head = await store.log.read_head(INBOX)
    assert head is not None
    assert len(index) == 6
    assert set(pending) == {actions[number].id for number in (1, 2, 4, 5)}

    home = OWNER.home
    for name in (
        keys.owner_index(home, OWNER.key, "echo", "open"),
        keys.owner_index(home, OWNER.key, "echo", "failed"),
        keys.inbox_open(home, OWNER.key),
        keys.inbox_order(home, OWNER.key),
        keys.head(INBOX),
        keys.entries(INBOX),
        keys.marks(home),
    ):
        assert cast("int", ask(instances.url, "DEL", name)) == 1
    for shard in ALL_SHARDS:
        ask(instances.url, "HDEL", keys.meta(shard), "mark:relay")
    assert await store.projections.read_index(OWNER.key, "echo", None, 100) == []

    two = await instances.start("in_two", runs=False)
    await relay_all(two)
    assert await store.projections.read_index(OWNER.key, "echo", None, 100) == index
    assert await read_open(store) == pending
    rebuilt = await store.log.read_head(INBOX)
    assert rebuilt is not None
    assert rebuilt.epoch != head.epoch, "readers of the old inbox get a gap"


async def test_new_epoch_of_a_shard_sends_its_feed_again_without_doubling(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", runs=False)
    story = await begin(store)
    first = await story.ask("before")
    await relay_all(one)
    before = await read_inbox(store)
    await store.log.bump_epoch(SOURCE, 0)
    second = await story.ask("after")
    await relay_all(one)
    after = await read_inbox(store)
    assert after[: len(before)] == before
    assert len({entry.event_id for entry in after}) == len(after)
    assert set(await read_open(store)) == {first.id, second.id}


async def test_feed_longer_than_a_page_is_relayed_whole(instances: Instances, store: Store) -> None:
    stories = [Story(make_writes(store), SOURCE) for _ in range(150)]
    await asyncio.gather(*(story.begin() for story in stories))
    await asyncio.gather(*(story.show() for story in stories))
    await instances.start("in_one")

    async def listed() -> bool:
        found = await store.projections.read_index(OWNER.key, "echo", None, 1_000)
        return {facade for facade, _ in found} == {story.task.id for story in stories}

    await wait_until(listed, 10, "all are listed")
