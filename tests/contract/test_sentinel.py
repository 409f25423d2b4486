"""Sentinels: the primary that they name is found, and a switch to another one is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

from passerelle.core.batch import Again, Appended, Batch
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.log import StreamRef
from passerelle.store import nodes as store_nodes
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event, make_place, mint, operation
from tests.support.ports import find_free_port
from tests.support.sentinel import SentinelGroup, ask_port, run_sentinel_group
from tests.support.waiting import block_until, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

LAG_S = 1.0
"""What a failover may lose of the acknowledged writes: those that no replica had."""


@pytest.fixture
def watched() -> Generator[SentinelGroup]:
    with run_sentinel_group() as running:
        yield running


def batch_of(at: TaskPlace) -> Batch:
    return Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))


async def write(store: Store, batch: Batch) -> None:
    """Appends as callers do, who retry the same operation."""
    while True:
        try:
            assert isinstance(await store.log.append(batch), Appended | Again)
        except StoreUnavailable:
            await asyncio.sleep(0.02)
        else:
            return


async def keep_writing(store: Store, stored: list[tuple[float, float, StreamRef]]) -> None:
    """Records when each write began and when it was acknowledged."""
    while True:
        at, began_s = make_place(), monotonic()
        await write(store, batch_of(at))
        stored.append((began_s, monotonic(), at.stream))


def find_ports(store: Store) -> set[int]:
    return {node.endpoint.kwargs["port"] for node in store.nodes.all}


async def is_stored(store: Store, stream: StreamRef) -> bool:
    return bool(await store.log.read_page(stream, 0))


@pytest.mark.parametrize("how", ["killed", "planned"])
async def test_switch_under_load_is_followed_and_loses_no_more_than_replicas_lacked(
    watched: SentinelGroup, tmp_path: Path, how: str
) -> None:
    before = watched.find_primary()
    stored: list[tuple[float, float, StreamRef]] = []
    received: list[bytes] = []
    async with await Store.open(StoreSettings(watched.url, tmp_path)) as store:
        followed = make_place()
        await store.hints.subscribe(followed.stream, received.append)
        writers = [asyncio.create_task(keep_writing(store, stored)) for _ in range(8)]
        await wait_until(lambda: len(stored) > 200, 30, "there is load")
        ended_s = monotonic()
        if how == "killed":
            watched.kill(before)
        else:
            watched.ask_sentinel("SENTINEL", "FAILOVER", "store")
        others = [port for port in watched.servers if port != before]
        await wait_until(
            lambda: any(map(watched.is_primary, others)), 60, "the Sentinels have switched"
        )
        at_new = {watched.find_primary()}
        await wait_until(lambda: find_ports(store) == at_new, 15, "the store has followed")
        followed_s, switched = monotonic(), len(stored)
        await wait_until(lambda: len(stored) > switched + 200, 30, "writes go on")
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        lost = [one for one in stored if not await is_stored(store, one[2])]
        # A planned switch: the former primary accepts writes until it, or this store, learns of the switch.
        for began_s, told_s, _ in lost:
            assert began_s <= followed_s
            assert told_s >= ended_s - LAG_S
        if how == "killed":
            assert all(told_s <= ended_s + LAG_S for _, told_s, _ in lost), lost

        async def receive() -> list[bytes]:
            # A hint may be lost if it is published while the store subscribes again.
            another = TaskPlace(followed.shard, followed.session, mint("task", followed.shard))
            await write(store, batch_of(another))
            return received

        await wait_until(receive, 15, "hints come from the new primary")


async def test_dead_sentinels_are_skipped_and_others_are_remembered(
    watched: SentinelGroup, tmp_path: Path
) -> None:
    dead = [find_free_port(), find_free_port()]
    url = watched.url_of(*dead, watched.sentinels[0])
    async with await Store.open(StoreSettings(url, tmp_path)) as store:
        known = getattr(store.nodes, "_topology")._known  # noqa: B009  private to its class
        ports = [endpoint.kwargs["port"] for endpoint in known.in_order()]
        assert set(watched.sentinels) < set(ports)
        assert ports[0] == watched.sentinels[0], "who answered is asked first"
        await write(store, batch_of(make_place()))


async def test_replaced_primary_gets_no_writes_even_if_it_does_not_know(
    watched: SentinelGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off from Sentinels and replicas and accepts every write, all of which will be lost."""
    monkeypatch.setattr(store_nodes, "FORGET_S", 0.05)
    before = watched.find_primary()
    async with await Store.open(StoreSettings(watched.url, tmp_path)) as store:
        await write(store, batch_of(make_place()))
        [former] = store.nodes.all
        other = next(port for port in watched.servers if port != before)
        # As after an election that the former primary did not see.
        ask_port(other, "REPLICAOF", "NO", "ONE")
        for sentinel in watched.sentinels:
            ask_port(sentinel, "SENTINEL", "REMOVE", "store")
            ask_port(sentinel, "SENTINEL", "MONITOR", "store", "127.0.0.1", str(other), "2")
        block_until(partial(watched.is_primary, other), 20, "the Sentinels name another one")
        await wait_until(lambda: former not in store.nodes.all, 15, "the switch is seen")
        at = make_place()
        await write(store, batch_of(at))
        assert await is_stored(store, at.stream)
        assert ask_port(other, "EXISTS", f"{{{at.shard.tag}}}:e:{at.session}") == 1
        kept = getattr(store.nodes, "_by_name")  # noqa: B009  private to its class
        await wait_until(lambda: former not in kept.values(), 15, "the former one is forgotten")


async def test_service_unknown_to_all_sentinels_is_unavailable(
    watched: SentinelGroup, tmp_path: Path
) -> None:
    url = watched.url.replace("/store", "/other")
    with pytest.raises(StoreUnavailable, match="knows no 'other'"):
        await Store.open(StoreSettings(url, tmp_path))
