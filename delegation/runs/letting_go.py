"""A run that its driver lets go: stored without an owner, owed, and nobody's until somebody takes it up.

For agents that dial in: whoever drives a run of theirs has to hold their socket. What is owed is ``serve:<task>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, RunMove
from passerelle.core.status import UNDRIVEN
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.step import Step

ROW: Final = "serve"
"""The kind of the due row of a run that waits for whoever can drive it."""
FIRST_LOOK_MS: Final = 1_000
"""A hint finds an instance that holds the socket long before."""


def is_under_way(record: TaskRecord) -> bool:
    """Whether there is a run to be let go."""
    return record.run is not None and record.status not in UNDRIVEN


async def let_go(
    driver: Driver,
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


async def hand_over(
    driver: Driver, say: Callable[[Step], None], may: Callable[[TaskRecord], bool]
) -> None:
    """The same from inside the driver, which is done then; those who may take the run up are told.

    Raises:
        RunMovedError: it is not ours any more.
    """
    if await let_go(driver, say, may):
        await driver.means.offer(driver.peer.name, driver.run.sight.task.id)
        raise RunMovedError
