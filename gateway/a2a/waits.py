"""Callers that wait for something: how long they may, and how they are let go.

A caller that goes away ends its own waiting and nothing else; a shutdown ends everybody's in good order. Commands
themselves are never cut: half of one could be stored and not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.errors import CallerError, Draining
from passerelle.gateway.a2a.incoming import CallerLeftError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.errors import PasserelleError
    from passerelle.gateway.a2a.leaving import Watch

Judge: TypeAlias = Callable[[], Awaitable[CallerError | None]]

RECHECK_S: Final = 5.0
"""How long a caller that is told to go may still be served what it waits for."""


class _Wait:
    __slots__ = ("cause", "judge", "limit")

    def __init__(self, limit: asyncio.Timeout, judge: Judge | None) -> None:
        self.limit = limit
        self.judge = judge
        self.cause: CallerLeftError | PasserelleError | None = None

    def leave(self) -> None:
        self.end(CallerLeftError())

    def end(self, cause: CallerLeftError | PasserelleError) -> None:
        if self.cause is None:
            self.cause = cause
            self.limit.reschedule(asyncio.get_running_loop().time())


class Waits:
    """All that wait now."""

    def __init__(self, recheck_s: float = RECHECK_S) -> None:
        self._recheck_s = recheck_s
        self._context = copy_context()
        """Of nobody's request: the timer would keep that alive."""
        self._timer: asyncio.TimerHandle | None = None
        self._rechecks: asyncio.Task[None] | None = None
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
    async def hold(self, watch: Watch, judge: Judge | None = None) -> AsyncGenerator[None]:
        """Lets the body wait as long as the caller is there, may be here, and this instance goes on.

        ``judge`` is asked now and then whether the caller still has the right to what it waits for.

        Raises:
            CallerLeftError: the caller closed its connection.
            Draining: this instance shuts down.
            Unauthenticated, Forbidden, NotFound: what ``judge`` said.
        """
        wait: _Wait | None = None
        try:
            async with asyncio.timeout(None) as limit:
                wait = _Wait(limit, judge)
                if self._draining:
                    wait.end(_say_draining())
                self._open.add(wait)
                self._arm()
                unwatch = watch(wait.leave)
                try:
                    yield
                finally:
                    self._open.discard(wait)
                    unwatch()
        except TimeoutError:
            if wait is None or wait.cause is None:
                raise
            raise wait.cause from None

    async def drain(self) -> None:
        """Ends every wait, now and later, and returns when every request has its answer."""
        self._draining = True
        for wait in list(self._open):
            wait.end(_say_draining())
        for recheck in (self._timer, self._rechecks):
            if recheck is not None:
                recheck.cancel()
        while self._requests:
            self._idle.clear()
            await self._idle.wait()

    def _arm(self) -> None:
        """One look in a while at everybody who waits: a timer for each of them would cost more than the looks do."""
        if self._timer is None and not self._draining:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                self._recheck_s, self._begin_recheck, context=self._context
            )

    def _begin_recheck(self) -> None:
        self._timer = None
        if self._open:
            self._rechecks = asyncio.create_task(self._recheck())

    async def _recheck(self) -> None:
        try:
            for wait in list(self._open):
                # A judge takes its time, and who has left meanwhile has nothing any more that could be judged.
                if wait.judge is None or wait not in self._open:
                    continue
                if (refusal := await wait.judge()) is not None:
                    wait.end(refusal)
        finally:
            self._arm()


def _say_draining() -> Draining:
    return Draining("this instance is shutting down", retry_after_s=1)
