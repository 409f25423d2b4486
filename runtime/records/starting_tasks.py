"""Tasks before they start: which still wait for their turn in a context, and which thread runs one (GR-6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import read_shard
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord, waits_for_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.decision import Held
    from passerelle.runtime.records.writes import Writes


async def load_waiting(writes: Writes, names: Iterable[str]) -> list[TaskRecord]:
    """The given tasks that still wait, in the same order.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return [*filter(waits_for_turn, (await writes.read_all(TaskRecord, names)).values())]


async def load_assigned(
    writes: Writes, record: TaskRecord, own: ThreadRecord | None
) -> tuple[ThreadRecord | None, dict[EntityRef, Held]]:
    """Returns the thread in whose contexts attempts of a task start, and the entities an append has to compare for it.

    This is ``own``, without a read, unless the task was resumed on another thread. Owners may set this edge freely: one
    that leads to no thread of the same session assigns nothing.
    """
    target = record.assigned_thread
    if target in {None, record.thread_id} or read_shard(target or "") is None:
        return own, {}
    ref = EntityRef(EntityKind.THREAD, target or "")
    held = await writes.load([ref])
    thread = held[ref].record
    if not isinstance(thread, ThreadRecord) or thread.session_id != record.session_id:
        return own, {}
    return thread, held
