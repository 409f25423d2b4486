"""Unrelated calls that run in the background: repeated without pause, each must be answered."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

ANSWERED_WITHIN_S: Final = 5.0
_BETWEEN_CALLS_S: Final = 0.05


@dataclass(slots=True)
class BackgroundCalls:
    """The outcome: number of answered calls, the slowest one, and the faults."""

    answered: int = 0
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list[str])

    @asynccontextmanager
    async def calling(self, *asks: Callable[[], Awaitable[str]]) -> AsyncGenerator[None]:
        """Repeats each of ``asks`` while the block runs; a call returns its fault, or nothing."""
        calling = [asyncio.create_task(self._repeat(ask)) for ask in asks]
        try:
            yield
        finally:
            for one in calling:
                one.cancel()
            await asyncio.gather(*calling, return_exceptions=True)

    async def _repeat(self, ask: Callable[[], Awaitable[str]]) -> None:
        while True:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    fault = await ask()
            except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
                self.faults.append(f"another caller was not answered: {error!r}")
            else:
                self.answered += 1
                if fault:
                    self.faults.append(f"another caller was answered wrongly: {fault}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            await asyncio.sleep(_BETWEEN_CALLS_S)
