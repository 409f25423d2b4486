"""Coalesces concurrent calls with the same key into one batch, like a data loader.

Hundreds of devices that reconnect together request the same few things for the same principal and stream. One script
for all of them costs little more than one for a single device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from passerelle.core.chunks import in_chunks
from passerelle.protocol.concurrency import keep_until_done

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")

MOST: Final = 64
"""Calls of one batch: a script blocks the server for as long as it runs."""
WINDOW_S: Final = 0.01

ExecuteBatch: TypeAlias = Callable[[Key, list[Item]], Awaitable[Sequence[Result]]]


class Coalescer(Generic[Key, Item, Result]):
    """``execute_batch(key, items)`` returns one result for each item, in order; what it raises fails all calls.

    The first call is executed at the end of its tick; further ones are executed together once it has its result, or
    after ``WINDOW_S``. Cancelled callers are skipped. No call joins a batch that has begun, so a read is as fresh as a
    read of its own.
    """

    __slots__ = ("_execute_batch", "_tasks", "_waiting", "_windows")

    def __init__(self, execute_batch: ExecuteBatch[Key, Item, Result]) -> None:
        self._execute_batch = execute_batch
        self._waiting: dict[Key, list[tuple[Item, asyncio.Future[Result]]]] = {}
        """Calls of an open tick or window; without an entry, the next call opens one."""
        self._windows: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, key: Key, item: Item) -> asyncio.Future[Result]:
        """Requests the result for one item; the future fails with what ``execute_batch`` raises."""
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
        for part in in_chunks(waiting, MOST):
            try:
                asked = self._execute_batch(key, [item for item, _ in part])
            except Exception as error:  # noqa: BLE001  every caller gets it, and judges it
                _fail(part, error)
                continue
            work = self._distribute(key, window, part, asked)
            keep_until_done(loop.create_task(work), self._tasks)

    async def _distribute(
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
        except Exception as error:  # noqa: BLE001  every caller gets it, and judges it
            _fail(waiting, error)
        if self._windows.get(key) is window:  # a later window ends with its own batch
            self._start(key)


def _fail(waiting: Sequence[tuple[Item, asyncio.Future[Result]]], error: Exception) -> None:
    for _, done in waiting:
        if not done.done():
            done.set_exception(error)
