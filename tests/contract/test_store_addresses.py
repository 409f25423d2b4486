"""Several addresses of one store: a dead one is skipped, the primary is found, nodes are remembered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from passerelle.core.batch import Again, Appended, Batch
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.store import nodes as store_nodes
from passerelle.store.connection import Endpoint, pack
from passerelle.store.store import Store, StoreSettings
from passerelle.store.topology import Servers
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server, ask, empty, end_process
from tests.support.failover import run_pair
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def cluster(started_legs: dict[str, Server]) -> Server:
    running = started_legs["cluster"]
    empty(running)
    return running


async def write(store: Store, at: TaskPlace) -> None:
    """Appends as callers do, who retry the same operation."""
    batch = Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))
    while True:
        try:
            assert isinstance(await store.log.append(batch), Appended | Again)
        except StoreUnavailable:
            await asyncio.sleep(0.02)
        else:
            return


async def test_dead_first_node_of_a_cluster_is_skipped(cluster: Server, tmp_path: Path) -> None:
    dead = f"redis://127.0.0.1:{find_free_port()}"
    async with await Store.open(StoreSettings(f"{dead},{cluster.url}", tmp_path)) as store:
        assert len(store.nodes.all) == len(cluster.nodes)
        await write(store, make_place())


async def test_discovered_nodes_are_asked_when_every_seed_is_dead(
    cluster: Server, tmp_path: Path
) -> None:
    async with await Store.open(StoreSettings(cluster.url, tmp_path)) as store:
        topology = getattr(store.nodes, "_topology")  # noqa: B009  private to its class
        known = getattr(topology, "_known")  # noqa: B009  the same
        getattr(known, "_seeds").clear()  # noqa: B009  the same
        seen = store.nodes.generation
        await store.nodes.refresh_now()
        assert store.nodes.generation == seen + 1


@pytest.mark.parametrize("first", ["primary", "replica", "dead"])
async def test_primary_among_several_servers_is_found_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(store_nodes, "FORGET_S", 0.05)
    async with run_pair() as pair:
        dead = f"unix://{tmp_path}/nobody.sock"
        order = {
            "primary": (pair.primary.url, pair.replica.url),
            "replica": (pair.replica.url, pair.primary.url),
            "dead": (dead, pair.replica.url, pair.primary.url),
        }
        urls = ",".join(order[first])
        async with await Store.open(StoreSettings(urls, tmp_path)) as store:
            [former] = store.nodes.all
            assert former.endpoint.name == pair.primary.url.removeprefix("unix://")
            await write(store, make_place())
            await pair.await_replicated()
            for process in pair.primary.processes:
                end_process(process)
            ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
            await write(store, make_place())
            [serving] = store.nodes.all
            assert serving.endpoint.name == pair.replica.url.removeprefix("unix://")
            kept = getattr(store.nodes, "_by_name")  # noqa: B009  private to its class
            await wait_until(lambda: former not in kept.values(), 15, "the former is forgotten")


async def test_replicas_without_a_primary_are_an_unavailable_store(tmp_path: Path) -> None:
    async with run_pair() as pair:
        ask(pair.primary.url, "REPLICAOF", "127.0.0.1", 1)
        urls = f"{pair.primary.url},{pair.replica.url}"
        with pytest.raises(StoreUnavailable, match="no primary"):
            await Store.open(StoreSettings(urls, tmp_path))


async def test_demoted_server_is_left_though_it_keeps_connections(
    tmp_path: Path,
) -> None:
    """As behind the DNS name of a managed store: it resolves to another server, and old connections stay open."""
    async with run_pair() as pair, await Store.open(StoreSettings(pair.url, tmp_path)) as store:
        await write(store, make_place())
        await pair.await_replicated()
        ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
        ask(pair.primary.url, "REPLICAOF", "127.0.0.1", 1)
        pair.address.upstream = pair.replica.url.removeprefix("unix://")
        at = make_place()
        async with asyncio.timeout(15):
            await write(store, at)
        assert ask(pair.replica.url, "EXISTS", f"{{{at.shard.tag}}}:e:{at.session}") == 1


async def test_unavailable_store_is_asked_once_for_all_failing_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of the table takes a while and fails, too: a hundred in a row would outlast the outage."""
    async with run_pair() as pair:
        urls = f"{pair.primary.url},{pair.replica.url}"
        async with await Store.open(StoreSettings(urls, tmp_path)) as store:
            reads: list[float] = []
            read = Servers.read_table

            async def count(self: Servers) -> list[Endpoint]:
                reads.append(monotonic())
                return await read(self)

            monkeypatch.setattr(Servers, "read_table", count)
            for process in pair.primary.processes:
                end_process(process)
            failed = await asyncio.gather(
                *(store.nodes.write(Shard(n % 64), pack("PING")) for n in range(200)),
                return_exceptions=True,
            )
            assert all(isinstance(one, StoreUnavailable) for one in failed)
            assert len(reads) < 20
