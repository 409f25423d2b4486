"""Output and checks of the demo: one line per step, with the ids involved, and a count of passed checks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload

T = TypeVar("T")

PATIENCE_S: Final = 15.0
_LOOK_EVERY_S: Final = 0.01
_COLUMN: Final = 72


class CheckFailed(Exception):
    """A check of the demo failed; the text has the expectation and the observed value."""


class Checks:
    """Counts the checks of one run, and prints them as they pass."""

    def __init__(self) -> None:
        self.passed = 0

    def print_heading(self, letter: str, words: str) -> None:
        """Prints the heading of a part."""
        print(f"\n({letter}) {words}", flush=True)

    def note(self, words: str, **ids: object) -> None:
        """Prints a step without a check."""
        print(_lay_out("    ", words, ids), flush=True)

    def check(self, words: str, holds: object, seen: object = None, **ids: object) -> None:
        """Checks one condition.

        Raises:
            CheckFailed: it does not hold; the message includes ``seen``.
        """
        if not holds:
            observed = "" if seen is None else f"; seen: {seen!r}"
            raise CheckFailed(f"{words}{observed}")
        self.passed += 1
        print(_lay_out(" ok ", words, ids), flush=True)

    def equal(self, words: str, seen: object, wanted: object, **ids: object) -> None:
        """Checks one value for equality."""
        self.check(words, seen == wanted, f"{seen!r}, wanted {wanted!r}", **ids)


@overload
async def wait_for(
    words: str, look: Callable[[], Awaitable[T | None]], within_s: float = ...
) -> T: ...
@overload
async def wait_for(words: str, look: Callable[[], T | None], within_s: float = ...) -> T: ...
async def wait_for(words: str, look: Callable[[], object], within_s: float = PATIENCE_S) -> object:
    """Returns the first true value of ``look``, which may be a coroutine function.

    Raises:
        CheckFailed: no true value in time.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        looked = look()
        seen = await looked if inspect.isawaitable(looked) else looked
        if seen:
            return seen
        if asyncio.get_running_loop().time() >= deadline:
            raise CheckFailed(f"{words}: not within {within_s:.0f} s; last seen: {seen!r}")
        await asyncio.sleep(_LOOK_EVERY_S)


def _lay_out(mark: str, words: str, ids: dict[str, object]) -> str:
    details = " ".join(f"{name}={value}" for name, value in ids.items())
    return f"{mark} {words:<{_COLUMN}} {details}".rstrip()
