"""When an exchange begins, and what travels in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from passerelle.store.batcher import Batcher
from passerelle.store.connection import pack, read_url
from tests.support.engine import Server

pytestmark = pytest.mark.anyio
PING = pack("PING")


@asynccontextmanager
async def warm(server: Server) -> AsyncGenerator[tuple[Batcher, list[int]]]:
    """A batcher whose connection is open, and how many calls each exchange carries from then on."""
    exchanges: list[int] = []
    batcher = Batcher(read_url(server.url), (), on_batch=exchanges.append)
    await batcher.call(PING)
    exchanges.clear()
    try:
        yield batcher, exchanges
    finally:
        await batcher.close()


async def test_a_call_waits_for_those_that_come_in_the_same_turn(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        first = batcher.call(PING)
        assert exchanges == []
        await asyncio.gather(first, batcher.call(PING))
        assert exchanges == [2]


async def test_a_call_alone_is_written_at_once(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        asked = batcher.call(PING, alone=True)
        assert exchanges == [1]
        assert await asked == [b"PONG"]


async def test_a_call_alone_takes_those_with_it_that_wait_already(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        first = batcher.call(pack("ECHO", "first"))
        second = batcher.call(pack("ECHO", "second"), alone=True)
        assert exchanges == [2]
        assert [await first, await second] == [[b"first"], [b"second"]]


async def test_a_call_alone_goes_as_soon_as_a_connection_is_free(engine_server: Server) -> None:
    async with warm(engine_server) as (batcher, exchanges):
        under_way = asyncio.ensure_future(batcher.call(PING, alone=True))
        begun: list[list[int]] = []
        under_way.add_done_callback(lambda _: begun.append([*exchanges]))
        last = batcher.call(PING, alone=True)
        assert exchanges == [1]
        await last
        assert begun == [[1, 1]], "the second one had begun when the first was told"
        later = batcher.call(PING)
        assert exchanges == [1, 1], "who waits for others does so again"
        await later
