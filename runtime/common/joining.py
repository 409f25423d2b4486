"""Several calls at once, none of them left behind when one fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

T = TypeVar("T")


async def join_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, once every call has ended; raises the first failure then."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
