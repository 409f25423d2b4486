"""Calls about one thing that come at once, carried out as one.

Hundreds of devices that come back together ask for the same few things of the same principal and the same stream. What
one script can do for all of them costs little more than what it does for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")

MOST: Final = 64
"""Calls carried out as one; a script holds the server for as long as it runs."""
WINDOW_S: Final = 0.01

CarryOut: TypeAlias = Callable[[Key, list[Item]], Awaitable[Sequence[Result]]]


class Gathering(Generic[Key, Item, Result]):
    """``carry_out(key, items)`` gives one result for each item, in order. What it raises, all of them are told.

    The first call goes with the turn of the loop in which it came; those that follow go together when it has its
    result, or after ``WINDOW_S``. Who is cancelled before that is left out. Nothing that has begun is joined, so a read
    is as fresh as it would be alone.
    """

    __slots__ = ("_carry_out", "_tasks", "_waiting", "_windows")

    def __init__(self, carry_out: CarryOut[Key, Item, Result]) -> None:
        self._carry_out = carry_out
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Result]]]] = {}
        """Those of a turn or a window that is open; without an entry, the next call opens one."""
        self._windows: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, key: Key, item: Item) -> asyncio.Future[Result]:
        """Asks for the result for one item; awaiting it raises whatever ``carry_out`` raises."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            loop.call_soon(self._start, key)
        done: asyncio.Future[Result] = loop.create_future()
        waiting.append((item, done))
        return done

    def _start(self, key: Key) -> None:
        window = self._windows.pop(key, None)
        if window is not None:
            window.cancel()
        asked_for = self._waiting.pop(key, None)
        if not asked_for:
            return
        loop = asyncio.get_running_loop()
        self._waiting[key] = []
        window = self._windows[key] = loop.call_later(WINDOW_S, self._start, key)
        waiting = [one for one in asked_for if not one[1].done()]
        for first in range(0, len(waiting), MOST):
            part = waiting[first : first + MOST]
            try:
                asked = self._carry_out(key, [item for item, _ in part])
            except Exception as error:  # noqa: BLE001  each of those who asked is told, and judges it
                _fail(part, error)
                continue
            task = loop.create_task(self._deal(key, window, part, asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deal(
        self,
        key: Key,
        window: asyncio.TimerHandle,
        waiting: list[tuple[Item, asyncio.Future[Result]]],
        asked: Awaitable[Sequence[Result]],
    ) -> None:
        try:
            for (_, done), result in zip(waiting, await asked, strict=True):
                if not done.done():
                    done.set_result(result)
        except Exception as error:  # noqa: BLE001  each of those who asked is told, and judges it
            _fail(waiting, error)
        if self._windows.get(key) is window:  # a later one has its own to wait for
            self._start(key)


def _fail(waiting: Sequence[tuple[Item, asyncio.Future[Result]]], error: Exception) -> None:
    for _, done in waiting:
        if not done.done():
            done.set_exception(error)
