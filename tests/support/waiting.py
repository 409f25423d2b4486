"""Bounded waits with a description, in place of sleeps.

A wait ends as soon as its predicate is true. If it never is, the failure states what was awaited and the last value,
which a bare timeout would hide.
"""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload

import anyio

T = TypeVar("T")

_EVERY_S: Final = 0.005


@overload
async def wait_until(
    predicate: Callable[[], Awaitable[T]], within_s: float, description: str
) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], within_s: float, description: str) -> T: ...
async def wait_until(predicate: Callable[[], object], within_s: float, description: str) -> object:
    """The first true value of ``predicate``, which may be a coroutine function.

    Raises:
        AssertionError: it was not true within ``within_s``.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = predicate()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        _refuse_late(deadline, within_s, description, value)
        await anyio.sleep(_EVERY_S)


def block_until(predicate: Callable[[], T], within_s: float, description: str) -> T:
    """``wait_until`` for tests without an event loop.

    Raises:
        AssertionError: it was not true within ``within_s``.
    """
    deadline = time.monotonic() + within_s
    while not (value := predicate()):
        _refuse_late(deadline, within_s, description, value)
        time.sleep(_EVERY_S)
    return value


def _refuse_late(deadline: float, within_s: float, description: str, value: object) -> None:
    if time.monotonic() >= deadline:
        raise AssertionError(f"{description}: not within {within_s} s, last seen {value!r}")
