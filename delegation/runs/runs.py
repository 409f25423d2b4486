"""The runs that this instance drives, and who waits for their answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from passerelle.core.errors import Draining, PasserelleError, StoreUnavailable
from passerelle.delegation.runs.run import RunMovedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import EntityRef
    from passerelle.delegation.runs.driver import Driver


@dataclass(slots=True)
class Runs:
    """Drivers by task. One that ends takes itself out; one that breaks says so."""

    log: FilteringBoundLogger
    on_broken: Callable[[Driver], None] = lambda _driver: None
    """Told of a driver that left a run which has not ended and is still ours."""
    on_left: Callable[[EntityRef], None] = lambda _task: None
    """Told of the task of every driver that is done with its run, however that came."""
    _drivers: dict[str, Driver] = field(default_factory=dict[str, "Driver"])
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _draining: bool = False

    @property
    def is_draining(self) -> bool:
        """Whether new runs are refused."""
        return self._draining

    def find(self, task_id: str) -> Driver | None:
        """The driver of a task, if it is driven here."""
        return self._drivers.get(task_id)

    def list_tasks(self) -> list[str]:
        """Tasks that are driven here."""
        return list(self._drivers)

    def start(self, driver: Driver, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` for the driver, detached from whoever asked.

        Raises:
            Draining: this instance takes no new work.
        """
        guarded = self._admit(driver, work)
        task = asyncio.get_running_loop().create_task(guarded)
        self._tasks[driver.run.sight.task.id] = task
        task.add_done_callback(lambda _task: self._leave_unbegun(driver, work))

    def _leave_unbegun(self, driver: Driver, work: Coroutine[Any, Any, None]) -> None:
        """A task that is cancelled before its first step enters no ``finally`` of its own."""
        if self._drivers.get(driver.run.sight.task.id) is driver:
            work.close()
            self._leave(driver, has_ended=False)

    def stay(
        self, driver: Driver, work: Coroutine[Any, Any, None], task: asyncio.Task[None]
    ) -> Coroutine[Any, Any, None]:
        """The same in a task that is there already, and nobody's: it has to await what is returned.

        Raises:
            Draining: this instance takes no new work.
        """
        guarded = self._admit(driver, work)
        self._tasks[driver.run.sight.task.id] = task
        return guarded

    def _admit(self, driver: Driver, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        if self._draining:
            work.close()
            raise Draining("this instance is shutting down", retry_after_s=1)
        self._drivers[driver.run.sight.task.id] = driver
        return self._guard(driver, work)

    async def _guard(self, driver: Driver, work: Coroutine[Any, Any, None]) -> None:
        run, has_ended, broken = driver.run, False, False
        task_id = run.sight.task.id
        try:
            await work
            has_ended = run.has_ended()
            broken = not has_ended
        except RunMovedError:
            self.log.info("run.moved", task=task_id)
        except (StoreUnavailable, PasserelleError) as error:
            driver.failure, broken = error, True
            self.log.warning("run.broken", task=task_id, code=error.stable_code, reason=str(error))
        except Exception:
            broken = True
            self.log.exception("run.crashed", task=task_id)
        finally:
            has_ended = has_ended or run.has_ended()
            self._leave(driver, has_ended=has_ended)
            if broken and not has_ended:
                self.on_broken(driver)

    def _leave(self, driver: Driver, *, has_ended: bool) -> None:
        run, task_id = driver.run, driver.run.sight.task.id
        run.moved = run.moved or not has_ended
        self.on_left(run.sight.task)
        if self._drivers.get(task_id) is driver:
            del self._drivers[task_id]
            del self._tasks[task_id]
        run.tell_changed()

    def drop(self, task_id: str) -> None:
        """Stops driving a task at once; its fence refuses whatever is under way."""
        driver, task = self._drivers.get(task_id), self._tasks.get(task_id)
        if driver is not None and task is not None:
            driver.run.moved = True
            task.cancel()

    async def end(self, task_id: str) -> None:
        """The same, and waits until its driver is done."""
        task = self._tasks.get(task_id)
        self.drop(task_id)
        if task is not None:
            await asyncio.wait((task,))

    def refuse(self) -> None:
        """Takes no new runs from here on."""
        self._draining = True

    async def drain(self) -> None:
        """Stops driving: nothing ends by it, the leases tell others to go on (I6)."""
        self.refuse()
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
