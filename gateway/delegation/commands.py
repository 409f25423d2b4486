"""Commands on their way: each goes on to its end, also when whoever waits for it goes: half of one is never done (I6).

A message that opens a run is driven in the task of its command, once its caller has been told: a task for each of them
would cost every message one more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.gateway.delegation.driver import Driver
    from passerelle.gateway.delegation.runs import Runs

T = TypeVar("T")
Begun: TypeAlias = "tuple[Driver, Coroutine[Any, Any, None]]"
"""The driver of a run that was just opened, and all that it will do."""
_LAST_S: Final = 1.0
"""How long commands may take to their end at shutdown."""


class Commands:
    """Those that this instance carries out now."""

    __slots__ = ("_rested", "_runs", "_under_way")

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._under_way: dict[
            asyncio.Future[Any], tuple[asyncio.Task[None], Coroutine[Any, Any, Any]]
        ] = {}
        """By what their callers wait for: the task, and the work that it carries out."""
        self._rested: asyncio.Future[None] | None = None
        """Whoever waits until there are none."""

    def see_through(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Carries ``work`` to its end; what is returned is its outcome."""
        return self.open_run(_begin_nothing(work))

    def open_run(self, work: Coroutine[Any, Any, tuple[T, Begun | None]]) -> asyncio.Future[T]:
        """The same for work that may open a run, which is driven from there on."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        self._under_way[waiting] = loop.create_task(self._carry_out(work, waiting)), work
        return waiting

    async def _carry_out(
        self,
        work: Coroutine[Any, Any, tuple[T, Begun | None]],
        waiting: asyncio.Future[T],
    ) -> None:
        try:
            result, begun = await work
            driving = (
                None if begun is None else self._runs.stay(*begun, self._under_way[waiting][0])
            )
        except BaseException as failure:
            self._leave(waiting)
            _fail(waiting, failure)
            # The failure knows this call, which would keep it alive.
            del waiting
            if not isinstance(failure, Exception):
                raise
            return
        self._leave(waiting)
        if not waiting.done():
            waiting.set_result(result)
        if driving is not None:
            # A run may last for months.
            del work, waiting, result, begun
            await driving

    def _leave(self, waiting: asyncio.Future[Any]) -> None:
        del self._under_way[waiting]
        if self._rested is not None and not self._under_way and not self._rested.done():
            self._rested.set_result(None)

    async def drain(self) -> None:
        """Waits a moment for those under way, and ends what is left; new runs are refused from then on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while self._under_way:
                    self._rested = asyncio.get_running_loop().create_future()
                    await self._rested
        self._runs.refuse()
        left = dict(self._under_way)
        for task, _ in left.values():
            task.cancel()
        await asyncio.gather(*(task for task, _ in left.values()), return_exceptions=True)
        for waiting, (_, work) in left.items():
            # One that was cancelled before its first step has told nobody.
            if self._under_way.pop(waiting, None) is not None:
                work.close()
                waiting.cancel()


async def _begin_nothing(work: Coroutine[Any, Any, T]) -> tuple[T, None]:
    return await work, None


def _fail(waiting: asyncio.Future[Any], failure: BaseException) -> None:
    """Tells whoever waits, unless it has gone."""
    if waiting.done():
        return
    if isinstance(failure, asyncio.CancelledError):
        waiting.cancel()
    else:
        waiting.set_exception(failure)
