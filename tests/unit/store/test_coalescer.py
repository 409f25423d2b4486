"""Concurrent calls are sent as one, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from passerelle.core.errors import StoreUnavailable
from passerelle.store import coalescer as module
from passerelle.store.coalescer import MOST, Coalescer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Scripts:
    """Doubles numbers, and remembers what was asked together."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    async def execute_batch(self, key: str, items: list[int]) -> list[int]:
        self.calls.append((key, items))
        await asyncio.sleep(0)
        if key == "away":
            raise StoreUnavailable("away", "no")
        return [2 * item for item in items]


async def test_calls_of_one_turn_are_one_for_each_key() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    asked = [("a", 1), ("b", 5), ("a", 2), ("a", 3)]
    answers = await asyncio.gather(*(coalescer.call(key, item) for key, item in asked))
    assert answers == [2, 10, 4, 6]
    assert scripts.calls == [("a", [1, 2, 3]), ("b", [5])]


async def test_a_later_call_starts_a_batch_of_its_own() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    first = coalescer.call("a", 1)
    while not scripts.calls:
        await asyncio.sleep(0)
    assert not first.done()
    assert await coalescer.call("a", 2) == 4
    assert await first == 2
    assert scripts.calls == [("a", [1]), ("a", [2])]


async def test_calls_after_the_first_wait_and_share_a_batch() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    first = coalescer.call("a", 1)
    while not scripts.calls:
        await asyncio.sleep(0)
    later = [coalescer.call("a", number) for number in range(2, 5)]
    assert await asyncio.gather(first, *later) == [2, 4, 6, 8]
    assert scripts.calls == [("a", [1]), ("a", [2, 3, 4])]


class Held:
    """Answers when the test allows it."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def execute_batch(self, _key: str, items: list[int]) -> list[int]:
        self.asked.append(items)
        await self.may_answer.wait()
        return items

    async def begin(self) -> tuple[Coalescer[str, int, int], asyncio.Future[int]]:
        """With a first call under way."""
        calls = Coalescer(self.execute_batch)
        first = calls.call("a", 1)
        await wait_until(lambda: self.asked == [[1]], 10, "the first is under way")
        return calls, first


async def test_next_batch_starts_when_the_first_has_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 3600.0)
    held = Held()
    calls, first = await held.begin()
    later = [calls.call("a", 2), calls.call("a", 3)]
    held.may_answer.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(first, *later) == [1, 2, 3]
        assert held.asked == [[1], [2, 3]]
        assert await calls.call("a", 4) == 4


async def test_later_calls_run_concurrently_with_a_slow_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 0.01)
    held = Held()
    calls, first = await held.begin()
    asked = [first, calls.call("a", 2), calls.call("a", 3)]
    await wait_until(lambda: held.asked == [[1], [2, 3]], 10, "the others are under way, too")
    held.may_answer.set()
    assert await asyncio.gather(*asked) == [1, 2, 3]


async def test_late_result_does_not_start_calls_that_wait_for_another_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 0.01)
    answers: list[asyncio.Future[None]] = []

    async def execute_batch(_key: str, items: list[int]) -> list[int]:
        answers.append(asyncio.get_running_loop().create_future())
        await answers[-1]
        return items

    calls = Coalescer(execute_batch)
    late = calls.call("a", 1)
    await wait_until(lambda: len(answers) == 1, 10, "the first is under way")
    monkeypatch.setattr(module, "WINDOW_S", 3600.0)
    second = calls.call("a", 2)
    await wait_until(lambda: len(answers) == 2, 10, "the second is under way beside it")
    third = calls.call("a", 3)
    answers[0].set_result(None)
    await late
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(answers) == 2
    answers[1].set_result(None)
    await wait_until(lambda: len(answers) == 3, 10, "the third is under way")
    answers[2].set_result(None)
    assert [await second, await third] == [2, 3]


async def test_a_batch_that_cannot_start_fails_every_caller() -> None:
    def refuse(_key: str, _items: list[int]) -> Awaitable[list[int]]:
        raise StoreUnavailable("away", "no")

    calls = Coalescer(refuse)
    answers = await asyncio.gather(
        *(calls.call("a", number) for number in range(MOST + 1)), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {StoreUnavailable}


async def test_a_failed_batch_fails_only_its_callers() -> None:
    coalescer = Coalescer(Scripts().execute_batch)
    keys = ("away", "away", "here")
    answers = await asyncio.gather(
        *(coalescer.call(key, 4) for key in keys), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable, int]


async def test_a_cancelled_call_is_left_out_of_the_batch() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    calls = [coalescer.call("a", number) for number in range(3)]
    calls[1].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert (answers[0], answers[2]) == (0, 4)
    assert calls[1].cancelled()
    assert scripts.calls == [("a", [0, 2])]


async def test_a_cancelled_caller_does_not_cancel_the_running_batch() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    calls = [coalescer.call("a", number) for number in range(2)]
    while not scripts.calls:
        await asyncio.sleep(0)
    calls[0].cancel()
    assert await calls[1] == 2


async def test_a_batch_has_at_most_as_many_calls_as_allowed() -> None:
    scripts = Scripts()
    coalescer = Coalescer(scripts.execute_batch)
    count = 2 * MOST + 1
    answers = await asyncio.gather(*(coalescer.call("a", number) for number in range(count)))
    assert answers == [2 * number for number in range(count)]
    assert [len(items) for _, items in scripts.calls] == [MOST, MOST, 1]
