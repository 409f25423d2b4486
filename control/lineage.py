"""Reads a task together with its edge to the earlier task of its context that it continues (LT-13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import parse_facade
from passerelle.core.read_models.lineage import find_source, has_implicit_source, link_source
from passerelle.core.task.record import TaskRecord

if TYPE_CHECKING:
    from passerelle.core.ports.log import EventLog
    from passerelle.runtime.records.writes import Writes

_LOOKED_AT: Final = 128
"""Earlier tasks of a session searched for the source, newest first."""
_CHUNK: Final = 8


async def read_source(writes: Writes, log: EventLog, task: TaskRecord) -> TaskRecord:
    """The task with its source. Nothing is read if no message led to it, or if the message names the source."""
    if not has_implicit_source(task):
        return task
    parsed = [parse_facade(facade) for facade, _ in await log.read_session_tasks(task.session_id)]
    names = sorted({one[0] for one in parsed if one and one[0] < task.task_id}, reverse=True)
    for first in range(0, min(len(names), _LOOKED_AT), _CHUNK):
        refs = [EntityRef(EntityKind.TASK, name) for name in names[first : first + _CHUNK]]
        held = await writes.load(refs)
        records = [record for ref in refs if isinstance(record := held[ref].record, TaskRecord)]
        source = find_source(task, records)
        if source is not None:
            return link_source(task, source)
    return task
