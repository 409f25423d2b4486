"""The runs that this instance drives, and the commands that open them.

A command runs to its end even when its caller leaves: no command stops halfway (I6). A message that opens a run is
driven in the asyncio task of its command, once the caller has its result: one task less per message.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from passerelle.core.errors import Draining, PasserelleError, StoreUnavailable
from passerelle.delegation.runs.run import RunMovedError
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from passerelle.delegation.runs.active_run import ActiveRun


def _ignore_end(_agent: str, _thread_id: str) -> None:
    """Default of ``on_left``: nothing waits for a run to end."""


_LAST_S: Final = 1.0
"""How long commands may take to finish at shutdown."""


@dataclass(slots=True)
class ActiveRuns:
    """The active runs by task. A run that ends removes itself; a broken one is reported."""

    log: FilteringBoundLogger
    on_left: Callable[[str, str], None] = _ignore_end
    """Called with agent and thread of each run that is no longer driven here."""
    _active: dict[str, ActiveRun] = field(default_factory=dict[str, "ActiveRun"])
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _draining: bool = False

    @property
    def is_draining(self) -> bool:
        """Whether new runs are refused."""
        return self._draining

    def find(self, task_id: str) -> ActiveRun | None:
        """The run of a task, if it is driven here; its end is not stored yet, or about to be."""
        return self._active.get(task_id)

    def list_tasks(self) -> list[str]:
        """The tasks that are driven here."""
        return list(self._active)

    def start(self, active: ActiveRun, work: Coroutine[Any, Any, None]) -> None:
        """Starts ``work`` as the driver, detached from its caller.

        Raises:
            Draining: this instance takes no new work.
        """
        guarded = self._admit(active, work)
        task = asyncio.get_running_loop().create_task(guarded)
        self._tasks[active.run.context.task.id] = task
        task.add_done_callback(lambda _task: self._leave_unbegun(active, work))

    def _leave_unbegun(self, active: ActiveRun, work: Coroutine[Any, Any, None]) -> None:
        """Cleans up a task that was cancelled before its first step: its own ``finally`` never runs."""
        if self._active.get(active.run.context.task.id) is active:
            work.close()
            self._remove(active, has_ended=False)

    def start_in_task(
        self, active: ActiveRun, work: Coroutine[Any, Any, None], task: asyncio.Task[None]
    ) -> Coroutine[Any, Any, None]:
        """Starts a driver in an existing asyncio task, which has to await the returned coroutine.

        Raises:
            Draining: this instance takes no new work.
        """
        guarded = self._admit(active, work)
        self._tasks[active.run.context.task.id] = task
        return guarded

    def _admit(
        self, active: ActiveRun, work: Coroutine[Any, Any, None]
    ) -> Coroutine[Any, Any, None]:
        if self._draining:
            work.close()
            raise Draining("this instance is shutting down", retry_after_s=1)
        self._active[active.run.context.task.id] = active
        return self._guard(active, work)

    async def _guard(self, active: ActiveRun, work: Coroutine[Any, Any, None]) -> None:
        run, has_ended, broken = active.run, False, False
        task_id = run.context.task.id
        try:
            await work
            has_ended = run.has_ended()
            broken = not has_ended
        except RunMovedError:
            self.log.info("run.moved", task=task_id)
        except (StoreUnavailable, PasserelleError) as error:
            active.failure, broken = error, True
            self.log.warning("run.broken", task=task_id, code=error.stable_code, reason=str(error))
        except Exception:
            broken = True
            self.log.exception("run.crashed", task=task_id)
        finally:
            has_ended = has_ended or run.has_ended()
            self._remove(active, has_ended=has_ended)
            if broken and not has_ended:
                active.deps.on_broken(active)

    def _remove(self, active: ActiveRun, *, has_ended: bool) -> None:
        run, task_id = active.run, active.run.context.task.id
        run.moved = run.moved or not has_ended
        active.release_content()
        if active.place is not None:
            active.place.give_back()
        active.deps.on_left(run.context.task)
        if self._active.get(task_id) is active:
            del self._active[task_id]
            del self._tasks[task_id]
        run.notify_changed()
        self.on_left(run.context.peer, run.context.thread.id)

    def drop(self, task_id: str) -> None:
        """Stops driving a task at once; its fence refuses writes that are in progress."""
        active, task = self._active.get(task_id), self._tasks.get(task_id)
        if active is not None and task is not None:
            active.run.moved = True
            task.cancel()

    async def end(self, task_id: str) -> None:
        """Stops driving a task, and waits until its driver is done."""
        task = self._tasks.get(task_id)
        self.drop(task_id)
        if task is not None:
            await asyncio.wait((task,))

    def refuse(self) -> None:
        """Refuses new runs from now on."""
        self._draining = True

    async def drain(self) -> None:
        """Stops driving: no run ends by it, and other instances take over through the leases (I6)."""
        self.refuse()
        await cancel_all(self._tasks.values())


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Begun: TypeAlias = "tuple[ActiveRun, Coroutine[Any, Any, None]]"
"""The driver of a new run, and the coroutine that drives it."""


class ResultCallback(Protocol[T_contra]):
    """Called with the result of one command, once. The caller may have left by then."""

    def on_result(self, result: T_contra, /) -> None:
        """The command succeeded."""
        ...

    def on_failure(self, failure: BaseException, /) -> None:
        """The command failed; ``asyncio.CancelledError`` where this instance has cancelled it."""
        ...


class Commands:
    """The commands that this instance executes now."""

    __slots__ = ("_idle", "_runs", "_under_way")

    def __init__(self, runs: ActiveRuns) -> None:
        self._runs = runs
        self._under_way: dict[
            ResultCallback[Any], tuple[asyncio.Task[None], Coroutine[Any, Any, Any]]
        ] = {}
        """By callback: the task, and the work that it carries out."""
        self._idle: asyncio.Future[None] | None = None
        """Set when no command is in progress."""

    def see_through(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs ``work`` to its end, independent of the caller; returns a future of its result."""
        return self.open_run(_begin_nothing(work))

    def open_run(self, work: Coroutine[Any, Any, tuple[T, Begun | None]]) -> asyncio.Future[T]:
        """Runs ``work`` that may open a run, which is driven afterwards; returns a future of its result."""
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.begin(work, _Waiting(waiting))
        return waiting

    def begin(
        self, work: Coroutine[Any, Any, tuple[T, Begun | None]], callback: ResultCallback[T]
    ) -> None:
        """As ``open_run``, with a callback in place of a future; it runs before the opened run is driven."""
        task = asyncio.get_running_loop().create_task(self._carry_out(work, callback))
        self._under_way[callback] = task, work

    async def _carry_out(
        self, work: Coroutine[Any, Any, tuple[T, Begun | None]], callback: ResultCallback[T]
    ) -> None:
        try:
            result, begun = await work
            driving = (
                None
                if begun is None
                else self._runs.start_in_task(*begun, self._under_way[callback][0])
            )
        except BaseException as failure:
            self._remove(callback)
            callback.on_failure(failure)
            # The failure references this frame, which would keep the callback alive.
            del callback
            if not isinstance(failure, Exception):
                raise
            return
        self._remove(callback)
        try:
            callback.on_result(result)
        except Exception:
            # The run continues all the same.
            self._runs.log.exception("command.callback_failed")
        if driving is not None:
            # A run may last for months: release what it does not need.
            del work, callback, result, begun
            await driving

    def _remove(self, callback: ResultCallback[Any]) -> None:
        del self._under_way[callback]
        if self._idle is not None and not self._under_way and not self._idle.done():
            self._idle.set_result(None)

    async def drain(self) -> None:
        """Waits a moment for commands in progress, and cancels the rest; then new runs are refused."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while self._under_way:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
        self._runs.refuse()
        left = dict(self._under_way)
        for task, _ in left.values():
            task.cancel()
        await asyncio.gather(*(task for task, _ in left.values()), return_exceptions=True)
        for callback, (_, work) in left.items():
            # One that was cancelled before its first step has called no callback.
            if self._under_way.pop(callback, None) is not None:
                work.close()
                callback.on_failure(asyncio.CancelledError())


class _Waiting:
    """Passes the result to a future, unless its waiter has left."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: asyncio.Future[Any]) -> None:
        self._waiting = waiting

    def on_result(self, result: object) -> None:
        if not self._waiting.done():
            self._waiting.set_result(result)

    def on_failure(self, failure: BaseException) -> None:
        if self._waiting.done():
            return
        if isinstance(failure, asyncio.CancelledError):
            self._waiting.cancel()
        else:
            self._waiting.set_exception(failure)


async def _begin_nothing(work: Coroutine[Any, Any, T]) -> tuple[T, None]:
    return await work, None
