"""Lost replies: the same operation is sent again, and one event is stored."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest

from passerelle.core.batch import Again, Appended, Batch, IdempotencyRow, Stamp
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation
from tests.support.engine import Server, ask
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def proxy(engine_server: Server, anyio_backend: str) -> AsyncGenerator[FaultProxy]:
    async with fault_proxy(engine_server.url.removeprefix("unix://")) as running:
        yield running


@pytest.fixture
async def proxied(proxy: FaultProxy, tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(StoreSettings(proxy.url, tmp_path)) as opened:
        # The server knows the script from here on: the next reply is that of the append itself.
        await opened.log.append(batch_of(make_place()))
        yield opened


def batch_of(at: TaskPlace, expected: Stamp | None = None) -> Batch:
    write = at.write(expected) if expected else at.write()
    return Batch(at.session, operation(), 0, EPOCH, entities=(write,), events=(event(),))


async def count_events(store: Store, at: TaskPlace) -> int:
    return len(await store.log.read_page(at.stream, 0))


def has_more(proxy: FaultProxy, held: int) -> bool:
    return proxy.held > held


@pytest.mark.requirement("ENV-2", "I2")
async def test_swallowed_reply_leaves_exactly_one_event(proxied: Store, proxy: FaultProxy) -> None:
    at = make_place()
    proxy.swallow = 1
    result = await proxied.log.append(batch_of(at))
    assert proxy.swallowed == 1
    assert result == Again(None)
    assert await count_events(proxied, at) == 1


@pytest.mark.requirement("ENV-2")
async def test_swallowed_reply_of_a_fact_without_entity_leaves_exactly_one_event(
    proxied: Store, proxy: FaultProxy
) -> None:
    at = make_place()
    fact = event()
    row = IdempotencyRow(fact.event_id, "digest", b"kept", 600_000)
    proxy.swallow = 1
    result = await proxied.log.append(
        Batch(at.session, operation(), 0, EPOCH, events=(fact,), idem=row)
    )
    assert result == Again(b"kept")
    assert await count_events(proxied, at) == 1


async def test_lost_reply_is_a_success_despite_a_later_write(
    proxied: Store, proxy: FaultProxy, engine_server: Server, tmp_path: Path
) -> None:
    at = make_place()
    mine = batch_of(at)
    async with await Store.open(StoreSettings(engine_server.url, tmp_path)) as direct:
        proxy.open.clear()
        call = asyncio.create_task(proxied.log.append(mine))
        await asyncio.sleep(0)
        # The call is held back; after it ran, another writer follows before the retry arrives.
        proxy.swallow = 1
        proxy.open.set()
        await wait_until(lambda: count_events(direct, at), 15, "our first try has run")
        theirs = await direct.log.append(batch_of(at, Stamp(1, mine.op)))
        assert isinstance(theirs, Appended)
        assert await call == Again(None)
        assert await count_events(direct, at) == 2


async def test_server_that_never_answers_is_an_unknown_outcome_within_bounds(
    proxied: Store, proxy: FaultProxy
) -> None:
    at = make_place()
    proxy.open.clear()
    with pytest.raises(StoreUnavailable) as caught:
        async with asyncio.timeout(10):
            await proxied.log.append(batch_of(at))
    assert caught.value.wrote == "unknown"
    proxy.open.set()


async def test_refused_connection_wrote_nothing(proxied: Store, proxy: FaultProxy) -> None:
    proxy.upstream = "/nowhere"
    proxy.cut()
    with pytest.raises(StoreUnavailable) as caught:
        await proxied.nodes.write(make_place().shard, b"*1\r\n$4\r\nPING\r\n")
    assert caught.value.wrote in {"no", "unknown"}
    with pytest.raises(StoreUnavailable) as caught:
        await proxied.nodes.write(make_place().shard, b"*1\r\n$4\r\nPING\r\n")
    assert caught.value.wrote == "no"


async def test_cut_connections_are_reopened_under_load(proxied: Store, proxy: FaultProxy) -> None:
    at = make_place()

    async def write(number: int) -> None:
        fact = event(f"ev_cut_{number}")
        row = IdempotencyRow(fact.event_id, "d", b"", 60_000)
        batch = Batch(at.session, operation(), 0, EPOCH, events=(fact,), idem=row)
        assert isinstance(await proxied.log.append(batch), Appended | Again)
        if number % 20 == 0:
            proxy.cut()

    await asyncio.gather(*(write(number) for number in range(200)))
    stored = await proxied.log.read_page(at.stream, 0)
    assert sorted(entry.event_id for entry in stored) == sorted(
        f"ev_cut_{number}" for number in range(200)
    )


async def test_flushed_scripts_are_loaded_again(store: Store, server: Server) -> None:
    for url in server.nodes:
        ask(url, "SCRIPT", "FLUSH")
    places = [make_place() for _ in range(30)]
    results = await asyncio.gather(*(store.log.append(batch_of(at)) for at in places))
    assert all(isinstance(result, Appended) and result.last == 1 for result in results)


async def test_killed_clients_reconnect(store: Store, server: Server) -> None:
    at = make_place()
    for url in server.nodes:
        ask(url, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert isinstance(await store.log.append(batch_of(at)), Appended | Again)
    assert await count_events(store, at) == 1


async def test_frozen_engine_stores_one_event_after_many_retries(
    proxied: Store, proxy: FaultProxy, engine_server: Server
) -> None:
    at = make_place()
    (process,) = engine_server.processes
    seen = proxy.accepted
    process.send_signal(signal.SIGSTOP)
    try:
        call = asyncio.create_task(proxied.log.append(batch_of(at)))
        await wait_until(lambda: proxy.accepted > seen, 15, "a second try is on its way")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert isinstance(await call, Appended | Again)
    assert await count_events(proxied, at) == 1


async def test_cancelled_caller_cancels_a_queued_write_but_not_a_sent_one(
    proxied: Store, proxy: FaultProxy
) -> None:
    under_way, waiting = [make_place(Shard(0)) for _ in range(2)], [make_place() for _ in range(20)]
    proxy.open.clear()
    calls: list[asyncio.Task[object]] = []
    for at in under_way:
        held = proxy.held
        calls.append(asyncio.create_task(proxied.log.append(batch_of(at))))
        await wait_until(partial(has_more, proxy, held), 15, "the call is under way")
    calls += [asyncio.create_task(proxied.log.append(batch_of(at))) for at in waiting]
    writes = proxied.nodes.node(Shard(0)).writes
    await wait_until(lambda: writes.waiting() == len(waiting), 15, "the others wait")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert all(call.cancelled() for call in calls)
    proxy.open.set()
    assert isinstance(await proxied.log.append(batch_of(make_place())), Appended)
    for at in under_way:
        await wait_until(partial(count_events, proxied, at), 15, "what was under way is stored")
    assert [await count_events(proxied, at) for at in waiting] == [0] * len(waiting)


async def test_reply_of_a_cancelled_caller_is_never_given_to_the_next(
    proxied: Store, proxy: FaultProxy
) -> None:
    first, second = make_place(), make_place(Shard(0))
    proxy.open.clear()
    abandoned = asyncio.create_task(proxied.log.append(batch_of(first)))
    await wait_until(lambda: proxy.held > 0, 15, "the first call is under way")
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    events = (event(), event(), event())
    following = asyncio.create_task(
        proxied.log.append(
            Batch(second.session, operation(), 0, EPOCH, entities=(second.write(),), events=events)
        )
    )
    await asyncio.sleep(0)
    proxy.open.set()
    result = await following
    assert isinstance(result, Appended)
    assert (result.first, result.last) == (1, 3)
    assert await count_events(proxied, first) == 1
