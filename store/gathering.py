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

    The first call goes with the turn of the loop in which it came; those that follow within ``WINDOW_S`` go together
    at its end. Who is cancelled before that is left out. Nothing that has begun is joined, so a read is as fresh as it
    would be alone.
    """

    __slots__ = ("_carry_out", "_tasks", "_waiting")

    def __init__(self, carry_out: CarryOut[Key, Item, Result]) -> None:
        self._carry_out = carry_out
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Result]]]] = {}
        """Those of a turn or a window that is open; without an entry, the next call opens one."""
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
        asked = self._waiting.pop(key)
        if not asked:
            return
        loop = asyncio.get_running_loop()
        self._waiting[key] = []
        loop.call_later(WINDOW_S, self._start, key)
        waiting = [one for one in asked if not one[1].done()]
        for first in range(0, len(waiting), MOST):
            work = self._carry_out_for(key, waiting[first : first + MOST])
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out_for(
        self, key: Key, waiting: list[tuple[Item, asyncio.Future[Result]]]
    ) -> None:
        try:
            results = await self._carry_out(key, [item for item, _ in waiting])
        except Exception as error:  # noqa: BLE001  each of those who asked is told, and judges it
            for _, done in waiting:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), result in zip(waiting, results, strict=True):
            if not done.done():
                done.set_result(result)
