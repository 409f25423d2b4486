"""Runs and drivers of other instances: a run is released for them, and signals reach their drivers.

An agent that dials in is driven on the instance with its socket. A driver without the socket releases the run: it is
stored without an owner, with the due row ``serve:<task>``, and any instance with the socket adopts it.

A request for a run that another instance drives is stored first, with a due row (I9): a lost signal costs only time.
The row comes due on the instance with the duty of the shard, and again until it is settled; its handler signals as
well. An append that loses to such a run has its driver yield for a moment. That is not stored: if the signal is lost,
the next lost try sends it again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.batch import DueChange, EntityKind, EntityRef, RunMove
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.task.status import UNDRIVEN
from passerelle.delegation.runs.run import RunMovedError
from passerelle.runtime.records.task_fields import OWNER, read_driver
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.decision import Held
    from passerelle.core.ports.signals import Nudge, Nudges
    from passerelle.core.task.record import TaskRecord
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.runtime.records.writes import Writes


SERVE_ROW: Final = "serve"
"""The kind of the due row of a run that waits for an instance that can drive it."""
FIRST_LOOK_MS: Final = 1_000
"""A hint finds an instance with the socket much earlier."""
_AGAIN_S: Final = 1.0


class RemoteDrivers(Protocol):
    """The instances with the links of agents that dial in."""

    async def offer(self, agent: str, task_id: str) -> None:
        """Offers a released run to the instances that the agent is linked to."""
        ...

    async def forward_input(self, agent: str, task_id: str, turn_id: str) -> bool:
        """Passes a stored message to the instance that the agent is linked to; False if there is no other."""
        ...

    async def claim(self, task_id: str) -> bool:
        """Makes a run without a driver ours."""
        ...


def is_under_way(record: TaskRecord) -> bool:
    """Whether there is a run to release."""
    return record.run is not None and record.status not in UNDRIVEN


async def release_run(
    active: ActiveRun,
    add_facts: Callable[[DecisionDraft], None] = lambda _draft: None,
    may_release: Callable[[TaskRecord], bool] = is_under_way,
) -> bool:
    """Stores that the run has no driver, with the facts that ``add_facts`` adds; this driver writes nothing afterwards.

    False if the stored task may not be released: it stays ours.

    Raises:
        RunMovedError: another instance has the run already.
    """
    run, gone = active.run, False
    task = run.context.task

    def release(draft: DecisionDraft) -> None:
        nonlocal gone
        gone = may_release(draft.record)
        if gone:
            add_facts(draft)
            draft.decision.set_field(task, OWNER, None)

    def terms(draft: DecisionDraft) -> AppendOptions:
        if not gone:
            return AppendOptions()
        row = DueChange(f"{SERVE_ROW}:{task.id}", draft.decision.now_ms + FIRST_LOOK_MS)
        if run.driver is None:
            return AppendOptions(due=(row,))
        leaving = RunMove(run.record.attempts[-1].run_id, task.id, run.driver, enters=False)
        return AppendOptions(runs=(leaving,), due=(row,))

    await active.append(release, terms)
    if gone:
        run.moved = True
        active.deps.log.info("run.released", task=task.id, peer=active.peer.name)
    return gone


async def release_to_link(
    active: ActiveRun,
    add_facts: Callable[[DecisionDraft], None],
    may_release: Callable[[TaskRecord], bool],
) -> None:
    """Releases a run from inside its driver, which ends; instances that may adopt the run are notified.

    Raises:
        RunMovedError: another instance drives it.
    """
    if await release_run(active, add_facts, may_release):
        await active.deps.offer(active.peer.name, active.run.context.task.id)
        raise RunMovedError


@frozen
class InstanceSignals:
    """Sends nudges to the drivers of other instances, and receives those for ``instance``."""

    nudges: Nudges
    writes: Writes
    instance: str
    log: FilteringBoundLogger

    async def send(self, nudge: Nudge, known: Mapping[EntityRef, Held] | None = None) -> None:
        """Nudges the driver of a task, if that is another instance. ``known`` may contain the driver."""
        try:
            instance = await self._find_driver(nudge.task, known or {})
            if instance is not None and instance != self.instance:
                await self.nudges.nudge(instance, nudge)
        except StoreUnavailable as error:
            self.log.info("nudge.lost", task=nudge.task, reason=error.reason)

    async def listen(self, on_nudge: Callable[[Nudge], object]) -> None:
        """Subscribes to nudges; returns once that is done, however long the store is unavailable."""
        while True:
            try:
                await self.nudges.listen(self.instance, on_nudge)
            except StoreUnavailable as error:
                self.log.info("nudge.not_subscribed", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _find_driver(self, task_id: str, known: Mapping[EntityRef, Held]) -> str | None:
        if read_shard(task_id) is None:
            return None
        task = EntityRef(EntityKind.TASK, task_id)
        held = known.get(task) or await self.writes.load_one(task)
        driver = read_driver(held.fields)
        return None if driver is None else driver.instance
