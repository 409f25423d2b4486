"""Callers that wait for something: how long they may, and how they are let go.

A caller that goes away ends its own waiting and nothing else; a shutdown ends everybody's in good order. Commands
themselves are never cut: half of one could be stored and not begun.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from passerelle.core.errors import Draining
from passerelle.gateway.a2a.incoming import CallerLeftError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive


class _Wait:
    __slots__ = ("cause", "limit")

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.limit = limit
        self.cause: CallerLeftError | Draining | None = None

    def end(self, cause: CallerLeftError | Draining) -> None:
        if self.cause is None:
            self.cause = cause
            self.limit.reschedule(asyncio.get_running_loop().time())


class Waits:
    """All that wait now."""

    def __init__(self) -> None:
        self._open: set[_Wait] = set()
        self._requests = 0
        self._idle = asyncio.Event()
        self._draining = False

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[None]:
        """Counts a request, so that a drain waits for its answer."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if self._requests == 0:
                self._idle.set()

    @asynccontextmanager
    async def hold(self, receive: Receive) -> AsyncGenerator[None]:
        """Lets the body wait as long as the caller is there and this instance goes on.

        Raises:
            CallerLeftError: the caller closed its connection.
            Draining: this instance shuts down.
        """
        wait: _Wait | None = None
        try:
            async with asyncio.timeout(None) as limit:
                wait = _Wait(limit)
                if self._draining:
                    wait.end(_say_draining())
                self._open.add(wait)
                watcher = asyncio.create_task(_watch(receive, wait))
                try:
                    yield
                finally:
                    self._open.discard(wait)
                    watcher.cancel()
        except TimeoutError:
            if wait is None or wait.cause is None:
                raise
            raise wait.cause from None

    async def drain(self) -> None:
        """Ends every wait, now and later, and returns when every request has its answer."""
        self._draining = True
        for wait in list(self._open):
            wait.end(_say_draining())
        while self._requests:
            self._idle.clear()
            await self._idle.wait()


async def _watch(receive: Receive, wait: _Wait) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wait.end(CallerLeftError())


def _say_draining() -> Draining:
    return Draining("this instance is shutting down", retry_after_s=1)
