"""Merges task lists into one list by time, newest first; each list is read in chunks, and only when needed."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from passerelle.core.ports.projections import ListedTasks, Projections

TaskListRow: TypeAlias = "tuple[int, str]"
CHUNK: Final = 100
SLACK_MS: Final = 60_000
"""A list may have rows newer than its registry time by this much: rows are written alongside the append."""


@dataclass(slots=True)
class TaskLane:
    """One list of an owner, read in chunks."""

    projections: Projections
    owner: str
    agent: str
    before: TaskListRow | None
    chunk: int = CHUNK
    _read: list[TaskListRow] = field(default_factory=list["TaskListRow"])
    _is_over: bool = False

    async def take(self) -> TaskListRow | None:
        """The next row; None at the end."""
        if not self._read and not self._is_over:
            page = await self.projections.read_index(
                self.owner, self.agent, self.before, self.chunk
            )
            self._read = [(at_ms, facade) for facade, at_ms in reversed(page)]
            self._is_over = len(page) < self.chunk
        if not self._read:
            return None
        self.before = self._read.pop()
        return self.before


async def merge_lanes(
    lanes: list[TaskLane], bounds: list[int] | None = None
) -> AsyncIterator[tuple[TaskListRow, TaskLane]]:
    """Rows of all lists, each name once. ``bounds``, descending: no row of a list is later; lists open as needed."""
    heads: list[tuple[TaskListRow, int]] = []
    seen: set[str] = set()
    opened = 0
    while True:
        while opened < len(lanes) and (
            not heads or bounds is None or bounds[opened] >= heads[-1][0][0]
        ):
            await _push(heads, lanes[opened], opened)
            opened += 1
        if not heads:
            return
        row, place = heads.pop()
        if row[1] not in seen:
            seen.add(row[1])
            yield row, lanes[place]
        await _push(heads, lanes[place], place)


def open_lanes(
    projections: Projections, listed: Iterable[ListedTasks], before: TaskListRow | None
) -> tuple[list[TaskLane], list[int]]:
    """A lane for each list, the one with the newest row first, and upper bounds for the times of their rows."""
    wanted = sorted(listed, key=lambda one: (-one.at_ms, one.owner, one.agent))
    lanes = [TaskLane(projections, one.owner, one.agent, before, 20) for one in wanted]
    return lanes, [one.at_ms + SLACK_MS for one in wanted]


async def _push(heads: list[tuple[TaskListRow, int]], lane: TaskLane, place: int) -> None:
    row = await lane.take()
    if row is not None:
        insort(heads, (row, place))
