"""A cluster: shards are found on their nodes, and a moved slot is followed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from passerelle.core.batch import Appended, Batch, Incarnation
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.ports.leases import Lease, LeaseRequest
from passerelle.core.ports.projections import IndexRow
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.info import parse_info
from passerelle.store.store import Store, StoreSettings
from passerelle.store.topology import slot_of
from tests.support.batches import EPOCH, TaskPlace, event, make_place, mint, operation
from tests.support.engine import Server, ask, empty
from tests.support.waiting import block_until, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def cluster(started_legs: dict[str, Server]) -> Server:
    running = started_legs["cluster"]
    empty(running)
    return running


def batch_of(at: TaskPlace) -> Batch:
    return Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))


def move_slot(cluster: Server, shard: Shard, target: str) -> None:
    """Assigns a slot to another node and notifies every node; a node does not give up a slot that has keys.

    A late gossip message of the old owner must not take the slot back, so the new owner gets the highest epoch first.
    """
    empty(cluster)
    identity = ask(target, "CLUSTER", "MYID")
    assert isinstance(identity, bytes)
    others = [url for url in cluster.nodes if url != target]

    def is_first() -> bool:
        ask(target, "CLUSTER", "BUMPEPOCH")
        return read_epoch(target) > max(map(read_epoch, others))

    block_until(is_first, 20, "the new owner has the highest epoch")
    for url in (target, *others):
        ask(url, "CLUSTER", "SETSLOT", slot_of(shard), "NODE", identity.decode())


def read_epoch(url: str) -> int:
    reported = ask(url, "CLUSTER", "INFO")
    assert isinstance(reported, bytes)
    return int(parse_info(reported)["cluster_my_epoch"])


async def test_every_shard_writes_and_reads_on_its_own_node(
    cluster: Server, tmp_path: Path
) -> None:
    places = [make_place(shard) for shard in ALL_SHARDS]
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        assert len(store.nodes.all) == 3
        results = await asyncio.gather(*(store.log.append(batch_of(at)) for at in places))
        assert all(isinstance(result, Appended) for result in results)
        loaded = await store.log.load([at.task_ref for at in places])
        assert all(one.stamp.version == 1 for one in loaded)
        await store.probe()
        assert len(await store.read_facts()) == 3


async def test_moved_slot_is_followed_by_writes_reads_and_hints(
    cluster: Server, tmp_path: Path
) -> None:
    at = make_place()
    received: list[bytes] = []
    losses: list[bool] = []
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(at.shard).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        await store.hints.subscribe(at.stream, received.append)
        store.hints.on_loss(lambda: losses.append(True))
        move_slot(cluster, at.shard, target)
        try:
            assert isinstance(await store.log.append(batch_of(at)), Appended)
            assert f"redis://{store.nodes.node(at.shard).endpoint.name}" == target
            assert len(await store.log.read_page(at.stream, 0)) == 1
            await wait_until(lambda: losses, 10, "the moved subscription is announced")
            follower = TaskPlace(at.shard, at.session, make_place(at.shard).task)
            assert isinstance(await store.log.append(batch_of(follower)), Appended)
            await wait_until(
                lambda: any(hint.startswith(b"e 2-2.") for hint in received), 10, "the next hint"
            )
        finally:
            move_slot(cluster, at.shard, home)


async def test_call_to_a_moved_slot_is_resent_to_the_right_node(
    cluster: Server, tmp_path: Path
) -> None:
    at = make_place()
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(at.shard).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        move_slot(cluster, at.shard, target)
        try:
            result = await store.log.append(batch_of(at))
            assert isinstance(result, Appended)
            assert result.last == 1
            (task,) = await store.log.load([at.task_ref])
            assert task.stamp.version == 1
        finally:
            move_slot(cluster, at.shard, home)


async def test_leases_of_all_shards_are_opened_together_after_a_slot_move(
    cluster: Server, tmp_path: Path
) -> None:
    moved = Shard(17)
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(moved).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        move_slot(cluster, moved, target)
        try:
            requests = [
                LeaseRequest(shard, Incarnation("in_x", 1), opens=True, wants_duty=True)
                for shard in ALL_SHARDS
            ]
            answers = await store.leases.extend_each(requests, 60_000)
            assert all(isinstance(answer, Lease) and answer.duty for answer in answers)
        finally:
            move_slot(cluster, moved, home)


async def test_replies_keep_their_order_after_a_slot_move(cluster: Server, tmp_path: Path) -> None:
    moved = Shard(17)
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(moved).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        move_slot(cluster, moved, target)
        try:
            async with await Store.open(StoreSettings(cluster.url, tmp_path)) as fresh:
                for shard in ALL_SHARDS:
                    await fresh.nodes.update(
                        shard, pack("HSET", keys.holds(shard), "owner", shard.tag)
                    )
            shards = (*ALL_SHARDS, *reversed(ALL_SHARDS))
            asked = [(shard, pack("HGET", keys.holds(shard), "owner")) for shard in shards]
            reported = await store.nodes.query_each_in_background(asked)
            assert reported == [shard.tag.encode() for shard in shards]
        finally:
            move_slot(cluster, moved, home)


async def test_row_of_an_owner_is_written_after_a_slot_move(
    cluster: Server, tmp_path: Path
) -> None:
    owner = make_place().session
    shard = shard_of(owner)
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(shard).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        move_slot(cluster, shard, target)
        try:
            row = IndexRow(owner, "echo", "task_a", 200)
            assert not await store.projections.post_index(row, 0.0), "its node is not resolved yet"
            await store.projections.index_now(row)
            found = await store.projections.read_index(owner, "echo", None, 10)
            assert found == [("task_a", 200)]
            assert await store.projections.post_index(IndexRow(owner, "echo", "task_b", 300), 0.0)
            found = await store.projections.read_index(owner, "echo", None, 10)
            assert found == [("task_b", 300), ("task_a", 200)]
        finally:
            move_slot(cluster, shard, home)


async def test_batch_is_resent_after_a_slot_move(cluster: Server, tmp_path: Path) -> None:
    at = make_place()
    owner, channels = mint("pr", at.shard), [mint("ch", at.shard) for _ in range(3)]
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        home = f"redis://{store.nodes.node(at.shard).endpoint.name}"
        target = next(url for url in cluster.nodes if url != home)
        move_slot(cluster, at.shard, target)
        try:
            said = [store.channels.record_hello(owner, one, one.encode(), None) for one in channels]
            assert all(greeted.generation for greeted in await asyncio.gather(*said))
            for one in channels:
                assert await store.channels.read_record(one) == one.encode()
        finally:
            move_slot(cluster, at.shard, home)


async def test_any_node_can_be_the_seed(cluster: Server, tmp_path: Path) -> None:
    runtimes: set[str] = set()
    for url in cluster.nodes:
        async with await Store.open(StoreSettings(url, tmp_path)) as store:
            runtimes.add(store.runtime_id)
    assert len(runtimes) == 1
