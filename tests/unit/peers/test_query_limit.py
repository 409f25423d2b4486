"""Queries to an agent are limited, and no stream blocks the others."""

from __future__ import annotations

import asyncio

import pytest

from passerelle.peers.limits import QueryLimit
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_concurrent_queries_are_limited_and_the_others_follow() -> None:
    queries, answered = QueryLimit(2), asyncio.Event()
    under_way: set[int] = set()
    most = 0

    async def ask(number: int) -> None:
        nonlocal most
        async with queries.ask():
            under_way.add(number)
            most = max(most, len(under_way))
            await answered.wait()
            under_way.discard(number)

    asked = [asyncio.create_task(ask(number)) for number in range(7)]
    await wait_until(lambda: len(under_way) == 2, 10, "two ask")
    answered.set()
    await asyncio.gather(*asked)
    assert most == 2


async def test_open_stream_is_no_question_any_more_once_it_has_spoken() -> None:
    queries = QueryLimit(1)
    async with queries.open() as place:
        place.leave()
        async with asyncio.timeout(10), queries.ask():
            pass
    # It was given back once: two at a time would be one too many.
    async with queries.ask():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), queries.ask():
                pass


async def test_silent_stream_blocks_other_queries_only_briefly() -> None:
    queries = QueryLimit(1, opening_s=0.01)
    async with queries.open(), asyncio.timeout(10), queries.ask():
        pass


async def test_place_of_a_question_that_was_given_up_is_free() -> None:
    queries = QueryLimit(1)
    async with queries.ask():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), queries.open():
                pass
    async with asyncio.timeout(10), queries.ask():
        pass
