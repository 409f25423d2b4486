"""Wishes towards a run that another instance drives: that one is told to look.

What is wished is stored before, and owed by its due row (I9): a nudge that is lost costs time. The row comes due at
whichever instance has the duty of the shard, and again until it is settled; its handler nudges as well.

Who has lost an append to such a run has it give way for a moment. Here nothing is stored yet: where that nudge is lost,
the next try that loses sends it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import read_shard
from passerelle.runtime.records.task_fields import read_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.decision import Held
    from passerelle.core.ports.nudges import Nudge, Nudges
    from passerelle.runtime.records.writes import Writes

_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Nudging:
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
