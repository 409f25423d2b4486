"""Opening a store: a server that loses data, evicts or refuses is not accepted."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import redis

from passerelle.core.batch import Appended, Batch
from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.leases import Lease, LeaseRequest
from passerelle.store.engine_binary import find_engine
from passerelle.store.engine_process import EngineSettings, build_command
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, event, make_place, operation
from tests.support.engine import (
    Server,
    answers,
    ask,
    end_process,
    link,
    redis_on_path,
    run_server,
    start_process,
)
from tests.support.tcp_proxy import Cut, PassThrough, fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_LOGGED = 500
"""Writes in a log that takes ten seconds to load."""


@pytest.fixture(scope="module")
def pliable() -> Generator[Server]:
    """A server whose settings tests change."""
    with run_server(find_engine(None)) as running:
        yield running


@pytest.fixture
def configured(pliable: Server) -> Generator[Server]:
    yield pliable
    for name, value in (
        ("appendonly", "yes"),
        ("maxmemory-policy", "noeviction"),
        ("maxmemory", "0"),
    ):
        ask(pliable.url, "CONFIG", "SET", name, value)
    ask(pliable.url, "REPLICAOF", "NO", "ONE")
    ask(pliable.url, "FLUSHDB")


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_start_tolerates_one_failed_connection(
    configured: Server, tmp_path: Path, number: int
) -> None:
    """Index among the connections that a start opens in turn: on a loaded machine any of them may time out."""
    opened = count(1)

    class CutOne(PassThrough):
        def __init__(self) -> None:
            self.is_cut = next(opened) == number

        async def down(self, data: bytes) -> bytes:
            if self.is_cut:
                raise Cut
            return data

    async with fault_proxy(configured.url.removeprefix("unix://")) as proxy:
        proxy.make_tap = CutOne
        async with await Store.open(StoreSettings(proxy.url, tmp_path)) as store:
            await store.probe()
        assert proxy.accepted > number


def batch() -> Batch:
    at = make_place()
    return Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))


async def test_server_without_an_append_only_log_is_refused_unless_configured(
    configured: Server, tmp_path: Path
) -> None:
    ask(configured.url, "CONFIG", "SET", "appendonly", "no")
    with pytest.raises(ConfigInvalid, match="append-only"):
        await Store.open(StoreSettings(configured.url, tmp_path))
    reported = StoreSettings(configured.url, tmp_path, durability="service")
    async with await Store.open(reported) as store:
        assert isinstance(await store.log.append(batch()), Appended)


async def test_server_that_loads_its_log_is_unavailable_and_not_misconfigured(
    tmp_path: Path,
) -> None:
    engine, path = redis_on_path() or find_engine(None), tmp_path / "engine.sock"
    url = f"unix://{path}"
    first = start_process(build_command(engine, EngineSettings(tmp_path), path))
    await wait_until(lambda: answers(url), 20, "the server answers")
    for number in range(_LOGGED):
        ask(url, "SET", f"key:{number}", "x" * 2_048)
    # The server is unresponsive for a thousand log entries; within an image it responds between keys.
    ask(url, "CONFIG", "SET", "rdbcompression", "no")
    ask(url, "BGREWRITEAOF")
    images = (tmp_path / "appendonlydir").glob
    await wait_until(lambda: [*images("*.2.base.rdb")], 20, "the log begins with an image")
    await wait_until(
        lambda: len([*images("*.base.rdb")]) == 1, 20, "of the log before it nothing is left"
    )
    end_process(first)
    path.unlink(missing_ok=True)
    slow = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
    command = build_command(engine, EngineSettings(tmp_path, extra_options=slow), path)
    second = start_process(command)
    try:
        await wait_until(lambda: is_loading(url), 20, "the server loads its log")
        with pytest.raises(StoreUnavailable, match="loading") as caught:
            await Store.open(StoreSettings(url, tmp_path / "blobs"))
        assert caught.value.wrote == "no"
    finally:
        end_process(second)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl"])
async def test_server_that_evicts_is_refused(
    configured: Server, tmp_path: Path, policy: str
) -> None:
    ask(configured.url, "CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(ConfigInvalid, match=f"{policy}.*noeviction"):
        await Store.open(StoreSettings(configured.url, tmp_path))


async def test_replica_is_refused(configured: Server, tmp_path: Path) -> None:
    ask(configured.url, "REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(ConfigInvalid, match="replica"):
        await Store.open(StoreSettings(configured.url, tmp_path))


async def test_server_that_turns_into_a_replica_is_not_ready_though_it_reads(
    configured: Server, tmp_path: Path
) -> None:
    at = make_place()
    first = Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))
    async with await Store.open(StoreSettings(configured.url, tmp_path)) as store:
        await store.log.append(first)
        await store.probe()
        ask(configured.url, "REPLICAOF", "127.0.0.1", "1")
        for call in (store.probe(), store.log.append(batch())):
            with pytest.raises(StoreUnavailable, match="read-only") as caught:
                await call
            assert caught.value.wrote == "no"
        assert len(await store.log.read_page(at.stream, 0)) == 1
        ask(configured.url, "REPLICAOF", "NO", "ONE")
        await store.probe()


async def test_full_server_refuses_facts_and_keeps_its_leases(
    configured: Server, tmp_path: Path
) -> None:
    at = make_place()
    async with await Store.open(StoreSettings(configured.url, tmp_path)) as store:
        ask(configured.url, "CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="out of memory") as caught:
            await store.log.append(batch())
        assert caught.value.wrote == "no"
        with pytest.raises(StoreUnavailable):
            await store.probe()
        request = LeaseRequest(at.shard, at.driver, opens=True, wants_duty=True)
        lease = await store.leases.extend(request, 1000)
        assert isinstance(lease, Lease)
        await store.leases.release(at.shard, at.driver)
        assert (await store.due.claim(at.shard, 1, 1)).rows == ()
        ask(configured.url, "CONFIG", "SET", "maxmemory", "0")
        assert isinstance(await store.log.append(batch()), Appended)


async def test_store_with_a_newer_schema_is_refused(configured: Server, tmp_path: Path) -> None:
    ask(configured.url, "HSET", "{00}:meta", "schema", "99")
    with pytest.raises(ConfigInvalid, match="schema 99"):
        await Store.open(StoreSettings(configured.url, tmp_path))


async def test_runtime_keeps_its_name(configured: Server, tmp_path: Path) -> None:
    names: set[str] = set()
    for _ in range(2):
        async with await Store.open(StoreSettings(configured.url, tmp_path)) as store:
            names.add(store.runtime_id)
    (name,) = names
    assert name.startswith("rt_")


async def test_unreachable_server_and_unusable_url_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await Store.open(StoreSettings(f"unix://{tmp_path}/nothing.sock", tmp_path))
    assert caught.value.wrote == "no"
    with pytest.raises(ConfigInvalid):
        await Store.open(StoreSettings("http://127.0.0.1", tmp_path))


async def test_unusable_blob_directory_is_refused(configured: Server, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_bytes(b"")
    with pytest.raises(ConfigInvalid, match="blobs"):
        await Store.open(StoreSettings(configured.url, taken))


async def test_nothing_waits_for_replicas_of_a_server_without_any(
    configured: Server, tmp_path: Path
) -> None:
    async with await Store.open(StoreSettings(configured.url, tmp_path)) as store:
        await store.replicas.look()
        assert not store.replicas.are_seen(Shard(0))
        assert not await store.replicas.have_all(Shard(0))


async def test_new_replica_is_detected_and_confirms_until_it_is_cut_off(
    configured: Server, tmp_path: Path
) -> None:
    refusing = StoreSettings(configured.url, tmp_path, replicated_acts=False)
    async with (
        await Store.open(StoreSettings(configured.url, tmp_path)) as store,
        await Store.open(refusing) as careless,
    ):
        replicas = store.replicas
        with run_server(find_engine(None)) as replica:
            link(configured, replica)
            await wait_until(lambda: replicas.have_all(Shard(0)), 10, "the replica confirms")
            await replicas.look()
            await careless.replicas.look()
            assert (replicas.are_seen(Shard(5)), careless.replicas.are_seen(Shard(5))) == (
                True,
                False,
            )
            ask(replica.url, "REPLICAOF", "127.0.0.1", 1)
            assert (await replicas.have_all(Shard(0)), replicas.are_missing) == (False, True)
            await replicas.look()
            assert replicas.are_seen(Shard(0)), "what was seen once is waited for"


def is_loading(url: str) -> bool:
    try:
        return cast("dict[str, int]", ask(url, "INFO", "persistence"))["loading"] == 1
    except redis.ConnectionError:
        return False
