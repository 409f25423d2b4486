"""A run that its driver lets go: stored without an owner, owed, and nobody's until somebody takes it up.

For agents that dial in: whoever drives a run of theirs has to hold their socket. What is owed is ``serve:<task>``.

Wishes towards a run that another instance drives: that one is told to look.

What is wished is stored before, and owed by its due row (I9): a nudge that is lost costs time. The row comes due at
whichever instance has the duty of the shard, and again until it is settled; its handler nudges as well.

Who has lost an append to such a run has it give way for a moment. Here nothing is stored yet: where that nudge is lost,
the next try that loses sends it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, EntityKind, EntityRef, RunMove
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import read_shard
from passerelle.core.status import UNDRIVEN
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.records.task_fields import OWNER, read_driver
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.decision import Held
    from passerelle.core.ports.nudges import Nudge, Nudges
    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.draft import Step
    from passerelle.delegation.runs.driver import ActiveRun
    from passerelle.runtime.records.writes import Writes

ROW: Final = "serve"
"""The kind of the due row of a run that waits for whoever can drive it."""
FIRST_LOOK_MS: Final = 1_000
"""A hint finds an instance that holds the socket long before."""


def is_under_way(record: TaskRecord) -> bool:
    """Whether there is a run to be let go."""
    return record.run is not None and record.status not in UNDRIVEN


async def release_run(
    driver: ActiveRun,
    say: Callable[[Step], None] = lambda _step: None,
    may: Callable[[TaskRecord], bool] = is_under_way,
) -> bool:
    """Stores that nobody drives the run, with the facts that ``say`` adds; nothing is written from here afterwards.

    False where it may not be let go as it stands in the store, and stays ours.

    Raises:
        RunMovedError: it was somebody else's already.
    """
    run, gone = driver.run, False
    task = run.sight.task

    def release(step: Step) -> None:
        nonlocal gone
        gone = may(step.record)
        if gone:
            say(step)
            step.decision.set_field(task, OWNER, None)

    def terms(step: Step) -> Terms:
        if not gone:
            return Terms()
        row = DueChange(f"{ROW}:{task.id}", step.decision.now_ms + FIRST_LOOK_MS)
        if run.driver is None:
            return Terms(due=(row,))
        leaving = RunMove(run.record.attempts[-1].run_id, task.id, run.driver, enters=False)
        return Terms(runs=(leaving,), due=(row,))

    await driver.patiently(release, terms)
    if gone:
        run.moved = True
        driver.means.log.info("run.let_go", task=task.id, peer=driver.peer.name)
    return gone


async def release_to_link(
    driver: ActiveRun, say: Callable[[Step], None], may: Callable[[TaskRecord], bool]
) -> None:
    """The same from inside the driver, which is done then; those who may take the run up are told.

    Raises:
        RunMovedError: it is not ours any more.
    """
    if await release_run(driver, say, may):
        await driver.means.offer(driver.peer.name, driver.run.sight.task.id)
        raise RunMovedError


_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class InstanceSignals:
    """Nudges the drivers of other instances, and hears what others have for those of ``instance``."""

    nudges: Nudges
    writes: Writes
    instance: str
    log: FilteringBoundLogger

    async def tell(self, nudge: Nudge, known: Mapping[EntityRef, Held] | None = None) -> None:
        """Tells whoever drives the task, if that is another instance. ``known`` may hold who it is."""
        try:
            instance = await self._find_driver(nudge.task, known or {})
            if instance is not None and instance != self.instance:
                await self.nudges.nudge(instance, nudge)
        except StoreUnavailable as error:
            self.log.info("nudge.lost", task=nudge.task, reason=error.reason)

    async def listen(self, on_nudge: Callable[[Nudge], object]) -> None:
        """Returns once nudges are heard, however long the store keeps us waiting."""
        while True:
            try:
                await self.nudges.listen(self.instance, on_nudge)
            except StoreUnavailable as error:
                self.log.info("nudge.deaf", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _find_driver(self, task_id: str, known: Mapping[EntityRef, Held]) -> str | None:
        if read_shard(task_id) is None:
            return None
        task = EntityRef(EntityKind.TASK, task_id)
        held = known.get(task) or (await self.writes.load([task]))[task]
        driver = read_driver(held.fields)
        return None if driver is None else driver.instance
