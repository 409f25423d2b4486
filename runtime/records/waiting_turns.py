"""The tasks that are queued for their turn in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.task.record import TaskRecord, waits_for_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.runtime.records.writes import Writes


async def load_waiting(writes: Writes, names: Iterable[str]) -> list[TaskRecord]:
    """The given tasks that still wait, in the same order.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return [*filter(waits_for_turn, (await writes.read_all(TaskRecord, names)).values())]
