"""Waiting callers: which leave, which are released, and which a shutdown waits for."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from starlette.types import Message

from passerelle.core.errors import Draining
from passerelle.gateway.a2a.http_request import CallerLeftError, OnCallerLeft, watch_disconnect
from passerelle.gateway.a2a.waits import Judge, Waits
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Caller:
    """One that stays until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def wait_long(waits: Waits, caller: Caller, woken: list[str]) -> None:
    with waits.present:
        try:
            with waits.hold(watch_disconnect(caller.receive)):
                await asyncio.Event().wait()
        finally:
            woken.append("woken")


async def test_caller_that_leaves_ends_its_own_wait_alone() -> None:
    waits, leaver, stayer = Waits(), Caller(), Caller()
    woken: list[str] = []
    leaving = asyncio.create_task(wait_long(waits, leaver, woken))
    staying = asyncio.create_task(wait_long(waits, stayer, []))
    leaver.left.set()
    with pytest.raises(CallerLeftError):
        await leaving
    assert woken == ["woken"]
    assert not staying.done()
    staying.cancel()
    await asyncio.gather(staying, return_exceptions=True)


async def test_drain_ends_every_wait_and_returns_when_all_have_answered() -> None:
    waits, answered = Waits(), asyncio.Event()

    async def answer_late() -> None:
        with waits.present:
            await answered.wait()

    waiting = asyncio.create_task(wait_long(waits, Caller(), []))
    late = asyncio.create_task(answer_late())
    await asyncio.sleep(0)
    draining = asyncio.create_task(waits.drain())
    with pytest.raises(Draining):
        await waiting
    assert not draining.done()
    answered.set()
    await wait_until(draining.done, 15, "nobody is waited for any more")
    await late


async def test_no_wait_begins_during_a_drain() -> None:
    waits = Waits()
    await waits.drain()
    with pytest.raises(Draining):
        await wait_long(waits, Caller(), [])


async def test_exception_of_the_body_is_raised_unchanged() -> None:
    waits = Waits()
    for error in (TimeoutError, KeyError):
        with pytest.raises(error), waits.hold(watch_disconnect(Caller().receive)):
            raise error
    with waits.hold(watch_disconnect(Caller().receive)):
        pass


async def test_end_of_a_wait_is_taken_back_and_one_from_outside_is_not() -> None:
    waits = Waits()

    async def wait_and_go_on() -> int:
        with pytest.raises(CallerLeftError), waits.hold(_leave_at_once):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return cast("asyncio.Task[int]", asyncio.current_task()).cancelling()

    assert await asyncio.create_task(wait_and_go_on()) == 0
    cancelled = asyncio.create_task(wait_and_go_on())
    cancelled.get_loop().call_soon(cancelled.cancel)
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_body_that_ends_at_once_is_not_ended_by_what_comes_after() -> None:
    waits = Waits()
    with waits.hold(_leave_at_once):
        pass
    await asyncio.sleep(0)


def _leave_at_once(left: OnCallerLeft) -> Callable[[], object]:
    left()
    return lambda: None


async def test_a_caller_that_left_during_a_recheck_is_not_checked_again() -> None:
    waits, tasks, judged = Waits(recheck_s=0.01), dict[str, asyncio.Task[None]](), list[str]()

    def make_judge(name: str) -> Judge:
        async def judge() -> None:
            if not judged:  # the first check waits until the other caller has left
                other = tasks["two" if name == "one" else "one"]
                other.cancel()
                await asyncio.wait([other])
            judged.append(name)
            if tasks[name].done():
                raise LookupError(name)

        return judge

    async def wait(name: str) -> None:
        with waits.hold(watch_disconnect(Caller().receive), make_judge(name)):
            await asyncio.Event().wait()

    for name in ("one", "two"):
        tasks[name] = asyncio.create_task(wait(name))
    await wait_until(lambda: len(judged) > 2, 10, "the looks go on")
    assert len(set(judged)) == 1
    tasks[judged[0]].cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


async def test_a_finished_wait_is_freed_without_the_collector() -> None:
    class Judging:
        async def judge(self) -> None:
            return None

    watchers = set[OnCallerLeft]()

    def watch(left: OnCallerLeft) -> Callable[[], object]:
        watchers.add(left)
        return partial(watchers.discard, left)

    judging = Judging()
    known = weakref.ref(judging)
    gc.disable()
    try:
        with Waits().hold(watch, judging.judge):
            del judging
            assert watchers
        assert not watchers
        assert known() is None
    finally:
        gc.enable()
