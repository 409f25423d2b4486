"""The watched tasks: their records, folded from events as the gateway folds them, and their event rates.

A snapshot replaces the state; an event that the snapshot already contains changes nothing. Time is an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.errors import InvalidInput
from passerelle.core.events import decode_event
from passerelle.core.read_models.task import TaskLine, show_task
from passerelle.core.task.fold import evolve
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.codec import from_wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

RATE_OVER_MS: Final = 10_000
KEPT_ENDED: Final = 50
"""Number of ended tasks that are kept, the latest ones; bounds the memory of a long watch."""
_GOOD: Final = frozenset({Status.COMPLETED, Status.ARCHIVED})


@dataclass(slots=True)
class _Watched:
    record: TaskRecord
    seen_ms: deque[int] = field(default_factory=deque[int])


@dataclass(slots=True)
class Board:
    """Tasks by local id. ``only_open``: excludes tasks that had ended when first seen."""

    only_open: bool = False
    all_completed: bool = True
    """Whether every ended task is completed."""
    _tasks: dict[str, _Watched] = field(default_factory=dict[str, _Watched])

    def apply_snapshot(self, snapshot: JsonObject) -> list[str]:
        """Applies the snapshot of a task or a session; returns the ids of its watched tasks."""
        listed = objects_at(snapshot, "tasks") or [object_at(snapshot, "task")]
        records = [from_wire(TaskRecord, one, newer=True) for one in listed if one]
        changed: list[str] = []
        for record in records:
            known = self._tasks.get(record.task_id)
            if known is None and self.only_open and record.status in ENDED:
                continue
            self._keep(known or _Watched(record), record)
            changed.append(record.task_id)
        return changed

    def apply_event(self, data: JsonObject, now_ms: int) -> str | None:
        """Applies one stored event; returns the id of the task that it changed."""
        try:
            event = decode_event(orjson.dumps(data))
        except InvalidInput:
            # a form that this version cannot read: the next snapshot has its content
            return None
        known = self._tasks.get(event.fact.scope.task_id or "")
        before = known.record if known else None
        record = evolve(before, event)
        if record is None or record is before:
            return None
        watched = known or _Watched(record)
        watched.seen_ms.append(now_ms)
        self._keep(watched, record)
        return record.task_id

    def show(self, task_id: str, now_ms: int) -> TaskLine:
        """Returns the line of a task."""
        return show_task(self._tasks[task_id].record, now_ms)

    def list_all(self) -> list[str]:
        """Returns all task ids, open ones first, then by creation time."""
        order = sorted(self._tasks.values(), key=lambda one: one.record.created_at)
        order.sort(key=lambda one: one.record.status in ENDED)
        return [one.record.task_id for one in order]

    def measure(self, task_id: str, now_ms: int) -> float:
        """Returns events per second of a task over the last ten seconds."""
        seen = self._tasks[task_id].seen_ms
        while seen and seen[0] <= now_ms - RATE_OVER_MS:
            seen.popleft()
        return len(seen) * 1000 / RATE_OVER_MS

    @property
    def has_ended(self) -> bool:
        """Whether no task is open."""
        return all(one.record.status in ENDED for one in self._tasks.values())

    def count(self) -> dict[str, int]:
        """Counts the tasks by status."""
        return Counter(one.record.status.value for one in self._tasks.values())

    def _keep(self, watched: _Watched, record: TaskRecord) -> None:
        watched.record = record
        self._tasks[record.task_id] = watched
        if record.status in ENDED:
            self.all_completed = self.all_completed and record.status in _GOOD
            for task_id in [*self._list_ended()][:-KEPT_ENDED]:
                del self._tasks[task_id]

    def _list_ended(self) -> Iterator[str]:
        ended = [one.record for one in self._tasks.values() if one.record.status in ENDED]
        for record in sorted(ended, key=lambda record: record.status_at):
            yield record.task_id
