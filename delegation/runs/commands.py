"""Commands on their way: each goes on to its end, also when whoever waits for it goes: half of one is never done (I6).

A message that opens a run is driven in the task of its command, once its caller has been told: a task for each of them
would cost every message one more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.runs import Runs

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Begun: TypeAlias = "tuple[Driver, Coroutine[Any, Any, None]]"
"""The driver of a run that was just opened, and all that it will do."""
_LAST_S: Final = 1.0
"""How long commands may take to their end at shutdown."""


class Told(Protocol[T_contra]):
    """Whoever hears of one command, once: what came of it, or how it failed. It may have gone by then."""

    def succeed(self, result: T_contra, /) -> None:
        """It was carried out."""
        ...

    def fail(self, failure: BaseException, /) -> None:
        """It was not; ``asyncio.CancelledError`` where this instance has ended it."""
        ...


class Commands:
    """Those that this instance carries out now."""

    __slots__ = ("_rested", "_runs", "_under_way")

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._under_way: dict[Told[Any], tuple[asyncio.Task[None], Coroutine[Any, Any, Any]]] = {}
        """By who is told of them: the task, and the work that it carries out."""
        self._rested: asyncio.Future[None] | None = None
        """Whoever waits until there are none."""

    def see_through(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Carries ``work`` to its end; what is returned is its outcome."""
        return self.open_run(_begin_nothing(work))

    def open_run(self, work: Coroutine[Any, Any, tuple[T, Begun | None]]) -> asyncio.Future[T]:
        """The same for work that may open a run, which is driven from there on."""
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(work, _Waiting(waiting))
        return waiting

    def begin(self, work: Coroutine[Any, Any, tuple[T, Begun | None]], told: Told[T]) -> None:
        """The same for somebody who does not wait and is told; what it is told of a run comes before all of that."""
        task = asyncio.get_running_loop().create_task(self._carry_out(work, told))
        self._under_way[told] = task, work

    async def _carry_out(
        self, work: Coroutine[Any, Any, tuple[T, Begun | None]], told: Told[T]
    ) -> None:
        try:
            result, begun = await work
            driving = None if begun is None else self._runs.stay(*begun, self._under_way[told][0])
        except BaseException as failure:
            self._leave(told)
            told.fail(failure)
            # The failure knows this call, which would keep it alive.
            del told
            if not isinstance(failure, Exception):
                raise
            return
        self._leave(told)
        try:
            told.succeed(result)
        except Exception:
            # The run goes on, whoever was to hear of it.
            self._runs.log.exception("command.untold")
        if driving is not None:
            # A run may last for months.
            del work, told, result, begun
            await driving

    def _leave(self, told: Told[Any]) -> None:
        del self._under_way[told]
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
        for told, (_, work) in left.items():
            # One that was cancelled before its first step has told nobody.
            if self._under_way.pop(told, None) is not None:
                work.close()
                told.fail(asyncio.CancelledError())


class _Waiting:
    """Told, and passes it on to whoever waits, unless that one has gone."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: asyncio.Future[Any]) -> None:
        self._waiting = waiting

    def succeed(self, result: object) -> None:
        if not self._waiting.done():
            self._waiting.set_result(result)

    def fail(self, failure: BaseException) -> None:
        if self._waiting.done():
            return
        if isinstance(failure, asyncio.CancelledError):
            self._waiting.cancel()
        else:
            self._waiting.set_exception(failure)


async def _begin_nothing(work: Coroutine[Any, Any, T]) -> tuple[T, None]:
    return await work, None
