"""The tasks that wait for their turn in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.record import waits_for_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.writes import Writes


async def load_waiting(writes: Writes, names: Iterable[str]) -> list[TaskRecord]:
    """Those of some tasks that still wait, in the same order.

    Raises:
        StoreUnavailable: nobody can tell.
    """
    refs = [EntityRef(EntityKind.TASK, name) for name in names]
    held = await writes.load(refs) if refs else {}
    return [one for ref in refs if waits_for_turn(one := held[ref].record)]
