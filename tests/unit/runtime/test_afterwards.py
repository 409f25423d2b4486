"""Work deferred until the end of a burst runs in order, in batches."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from passerelle.runtime.common.deferred_queue import DeferredQueue
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_deferred_calls_run_in_order_after_their_delay() -> None:
    loop = asyncio.get_running_loop()
    afterwards, done = DeferredQueue(0.05), list[tuple[int, float]]()

    def note(number: int) -> None:
        done.append((number, loop.time()))

    began_s = loop.time()
    for number in range(200):
        afterwards.add(partial(note, number))
    await wait_until(lambda: len(done) == 200, 10, "all of it is done")
    assert [number for number, _ in done] == [*range(200)]
    assert done[0][1] >= began_s + 0.05


async def test_others_have_their_turn_between_two_portions() -> None:
    loop = asyncio.get_running_loop()
    afterwards, done, seen = DeferredQueue(0.0), list[int](), list[int]()

    def look() -> None:
        seen.append(len(done))
        if len(done) < 200:
            loop.call_soon(look)

    for number in range(200):
        afterwards.add(partial(done.append, number))
    loop.call_soon(look)
    await wait_until(lambda: len(done) == 200, 10, "all of it is done")
    assert any(0 < count < 200 for count in seen)


async def test_later_deferred_call_waits_for_its_own_delay() -> None:
    afterwards, done = DeferredQueue(0.01), list[str]()
    afterwards.add(lambda: done.append("first"))
    await wait_until(lambda: done == ["first"], 10, "the first is done")
    afterwards.add(lambda: done.append("second"))
    assert done == ["first"]
    await wait_until(lambda: done == ["first", "second"], 10, "the second is done")


async def test_a_piece_that_raises_holds_nothing_else_up() -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, fault: faults.append(fault["exception"])
    )
    afterwards, done = DeferredQueue(0.0), list[str]()

    def fail() -> None:
        raise IndexError

    afterwards.add(lambda: done.append("before"))
    afterwards.add(fail)
    afterwards.add(lambda: done.append("behind"))
    await wait_until(lambda: done == ["before", "behind"], 10, "the others are done")
    afterwards.add(lambda: done.append("later"))
    await wait_until(lambda: done[-1] == "later", 10, "what comes later is done")
    assert [type(fault) for fault in faults] == [IndexError]
