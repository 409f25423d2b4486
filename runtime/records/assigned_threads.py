"""The thread that runs a task, where it is another one than the task's own (GR-6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import read_shard
from passerelle.core.session.thread import ThreadRecord

if TYPE_CHECKING:
    from passerelle.core.decision import Held
    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.writes import Writes


async def load_assigned(
    writes: Writes, record: TaskRecord, own: ThreadRecord | None
) -> tuple[ThreadRecord | None, dict[EntityRef, Held]]:
    """The thread in whose contexts attempts of a task begin, and what an append has to hold of it.

    That is ``own``, and costs no read, unless the task was resumed on another one. An edge may be made by hand to
    whatever its owner likes: one that leads to no thread of the same session assigns nothing.
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
