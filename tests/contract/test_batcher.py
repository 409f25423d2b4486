"""When a flush begins, and which calls it contains."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from passerelle.store.batcher import QUEUE_LIMIT, Batcher
from passerelle.store.connection import pack, read_url
from tests.support.engine import Server, ask

pytestmark = pytest.mark.anyio
PING = pack("PING")
WITHIN_S = 15.0
LONG_S = 60.0
"""Longer than any test may take."""


@asynccontextmanager
async def warm(server: Server) -> AsyncGenerator[tuple[Batcher, Counter[int]]]:
    """A batcher with an open connection, and its flushes from then on by number of calls."""
    exchanges = Counter[int]()
    batcher = Batcher(read_url(server.url), (), batches=exchanges)
    await batcher.call(PING)
    exchanges.clear()
    try:
        yield batcher, exchanges
    finally:
        await batcher.close()


async def test_call_waits_for_others_of_the_same_loop_iteration(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        first = batcher.call(PING)
        assert not exchanges
        await asyncio.gather(first, batcher.call(PING))
        assert exchanges == {2: 1}


async def test_unbatched_call_is_written_at_once(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        asked = batcher.call(PING, no_linger=True)
        assert exchanges == {1: 1}
        assert await asked == [b"PONG"]


async def test_unbatched_call_takes_waiting_calls_along(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        first = batcher.call(pack("ECHO", "first"))
        second = batcher.call(pack("ECHO", "second"), no_linger=True)
        assert exchanges == {2: 1}
        assert [await first, await second] == [[b"first"], [b"second"]]


async def test_unbatched_call_is_sent_as_soon_as_a_connection_is_free(
    engine_server: Server,
) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        under_way = asyncio.ensure_future(batcher.call(PING, no_linger=True))
        begun: list[Counter[int]] = []
        under_way.add_done_callback(lambda _: begun.append(exchanges.copy()))
        last = batcher.call(PING, no_linger=True)
        assert exchanges == {1: 1}
        await last
        assert begun == [{1: 2}], "the second one had begun when the first was answered"
        later = batcher.call(PING)
        assert exchanges == {1: 2}, "who waits for others does so again"
        await later


@pytest.mark.parametrize("others", [0, 2])
async def test_call_of_a_cancelled_caller_is_not_written(
    engine_server: Server, others: int
) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        under_way = asyncio.ensure_future(batcher.call(PING, no_linger=True))
        kept = [batcher.call(pack("ECHO", str(number))) for number in range(others)]

        async def write() -> None:
            await batcher.call(pack("SET", "left", "out"))

        waits = asyncio.create_task(write())
        await asyncio.sleep(0)
        assert batcher.waiting() == others + 1
        waits.cancel()
        await asyncio.gather(waits, under_way, return_exceptions=True)
        assert [await one for one in kept] == [[str(number).encode()] for number in range(others)]
        assert await batcher.call(pack("GET", "left")) == [None]
        assert sum(size * count for size, count in exchanges.items()) == 2 + others
        room = getattr(batcher, "_free_slots")  # noqa: B009  private to its class
        assert room == QUEUE_LIMIT, "its place is free again"


async def test_idle_connection_is_probed_before_it_carries_a_call(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, _):
        [connection] = getattr(batcher, "_all")  # noqa: B009  private to its class
        for idle, pings in ((False, 0), (True, 1)):
            if idle:
                connection._used_s -= 100
            ask(engine_server.url, "CONFIG", "RESETSTAT")
            assert await batcher.call(pack("ECHO", "x")) == [b"x"]
            [reported] = await batcher.call(pack("INFO", "commandstats"))
            assert isinstance(reported, bytes)
            assert reported.count(b"cmdstat_ping:calls=1,") == pings


async def turn(times: int = 8) -> None:
    """Lets pending callbacks run."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_call_with_a_linger_budget_waits_for_others(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        calls = [asyncio.ensure_future(batcher.call(PING, linger_s=LONG_S)) for _ in range(5)]
        row = asyncio.ensure_future(batcher.send_unacknowledged(PING, LONG_S))
        await turn()
        assert not exchanges, "unacknowledged calls do not end lingering"
        calls.append(asyncio.ensure_future(batcher.call(PING, linger_s=LONG_S)))
        await asyncio.wait_for(asyncio.gather(*calls), WITHIN_S)
        assert await row
        assert exchanges == {7: 1}


@pytest.mark.parametrize("no_linger", [False, True])
async def test_call_without_a_linger_budget_takes_lingering_calls_along(
    engine_server: Server, *, no_linger: bool
) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        patient = asyncio.ensure_future(batcher.call(PING, linger_s=LONG_S))
        await turn()
        assert not exchanges
        await asyncio.wait_for(
            asyncio.gather(patient, batcher.call(PING, no_linger=no_linger)), WITHIN_S
        )
        assert exchanges == {2: 1}


async def test_no_call_waits_longer_than_its_linger_budget(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        patient = asyncio.ensure_future(batcher.call(PING, linger_s=LONG_S))
        await asyncio.wait_for(batcher.call(PING, linger_s=0.002), WITHIN_S)
        assert exchanges == {2: 1}
        await patient


async def test_calls_of_other_kinds_do_not_resume_lingering(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        for _ in range(3):
            await asyncio.wait_for(batcher.call(PING, linger_s=0.002), WITHIN_S)
        await asyncio.gather(batcher.call(PING), batcher.call(PING))
        await asyncio.wait_for(batcher.call(PING, linger_s=LONG_S), WITHIN_S)
        assert exchanges == {1: 4, 2: 1}


async def test_fruitless_lingering_stops_until_calls_meet(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        for _ in range(3):
            await asyncio.wait_for(batcher.call(PING, linger_s=0.002), WITHIN_S)
        assert exchanges == {1: 3}
        await asyncio.wait_for(batcher.call(PING, linger_s=LONG_S), WITHIN_S)
        assert exchanges == {1: 4}, "no call was sent three times"
        await asyncio.gather(batcher.call(PING), batcher.call(PING, linger_s=LONG_S))
        assert exchanges == {1: 4, 2: 1}
        patient = asyncio.ensure_future(batcher.call(PING, linger_s=LONG_S))
        await turn()
        assert exchanges == {1: 4, 2: 1}, "two have met, so it is worth the while again"
        await batcher.call(PING)
        await patient
