"""A fair lock, a gather that waits for all calls even if one fails, and tasks that run on their own."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable


class FairLock:
    """Held by one caller at a time, from ``acquire`` to ``release``, in the order of the calls.

    Uncontended use is nearly free: every run has one, and most runs end before two callers want to write at once.
    ``asyncio.Lock`` takes six calls for each of these.
    """

    __slots__ = ("_is_held", "_line")

    def __init__(self) -> None:
        self._is_held = False
        self._line: deque[asyncio.Future[None]] | None = None
        """Waiting callers; created for the first one."""

    async def acquire(self) -> None:
        """Returns once the caller holds the lock. A caller that is cancelled while waiting does not hold it."""
        if not self._is_held:
            self._is_held = True
            return
        if self._line is None:
            self._line = deque()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                # The lock was handed over just before the cancellation.
                self.release()
            raise

    def release(self) -> None:
        """Passes the lock to the next waiter, if there is one."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._is_held = False


T = TypeVar("T")


async def join_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the results in order once every call has ended; then raises the first failure, if any."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks, and returns when all have ended; what they raise is dropped."""
    ending = [*tasks]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def keep_until_done(task: asyncio.Task[T], among: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Adds a task to a set that it leaves when it ends: the event loop alone does not keep it."""
    among.add(task)
    task.add_done_callback(among.discard)
    return task
