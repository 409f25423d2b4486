"""The tasks that are queued for their turn in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.record import waits_for_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.writes import Writes


async def load_waiting(writes: Writes, names: Iterable[str]) -> list[TaskRecord]:
    """The given tasks that still wait, in the same order.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    refs = [EntityRef(EntityKind.TASK, name) for name in names]
    held = await writes.load(refs) if refs else {}
    return [one for ref in refs if waits_for_turn(one := held[ref].record)]
