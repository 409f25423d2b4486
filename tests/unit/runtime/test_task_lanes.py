"""Lists of several owners are merged: in order, each row once, and none is read before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.ports.projections import ListedTasks
from passerelle.runtime.records.task_lanes import SLACK_MS, merge_lanes, open_lanes

if TYPE_CHECKING:
    from passerelle.core.ports.projections import Projections
    from passerelle.runtime.records.task_lanes import TaskListRow

pytestmark = pytest.mark.anyio


class Lists:
    """Lists by owner, which note how often each is read."""

    def __init__(self, rows: dict[str, list[TaskListRow]]) -> None:
        self.rows = rows
        self.read: list[str] = []

    async def read_index(
        self, owner: str, agent: str, before: TaskListRow | None, limit: int
    ) -> list[tuple[str, int]]:
        del agent
        self.read.append(owner)
        found = sorted(
            (row for row in self.rows[owner] if not before or row < before), reverse=True
        )
        return [(name, at_ms) for at_ms, name in found[:limit]]

    def list(self, late_ms: int = 0) -> list[ListedTasks]:
        return [
            ListedTasks(owner, "echo", max(at_ms for at_ms, _ in rows) - late_ms)
            for owner, rows in self.rows.items()
            if rows
        ]


async def walk(
    lists: Lists, before: TaskListRow | None = None, late_ms: int = 0, limit: int = 1000
) -> list[TaskListRow]:
    lanes, bounds = open_lanes(cast("Projections", lists), lists.list(late_ms), before)
    found: list[TaskListRow] = []
    async for row, _ in merge_lanes(lanes, bounds):
        found.append(row)
        if len(found) == limit:
            break
    return found


rows = st.lists(
    st.tuples(st.integers(0, 3 * SLACK_MS), st.integers(0, 99).map(lambda n: f"t{n:02}")),
    max_size=60,
)


@given(st.lists(rows, max_size=5), st.one_of(st.none(), st.tuples(st.integers(0, 99), st.text())))
async def test_rows_come_in_order_whatever_is_known_of_their_lists(
    drawn: list[list[TaskListRow]], before: TaskListRow | None
) -> None:
    lists = Lists(
        {
            f"o{n}": list({name: (at_ms, f"o{n}{name}") for at_ms, name in one}.values())
            for n, one in enumerate(drawn)
        }
    )
    wanted = sorted((row for one in lists.rows.values() for row in one), reverse=True)
    for late_ms in (0, SLACK_MS):
        found = await walk(lists, before, late_ms)
        assert found == [row for row in wanted if before is None or row < before]


async def test_a_list_without_anything_new_enough_is_not_read() -> None:
    old = {f"o{n}": [(n, f"t{n}")] for n in range(50)}
    lists = Lists({"new": [(9 * SLACK_MS + n, f"n{n:02}") for n in range(30)], **old})
    assert len(await walk(lists, limit=10)) == 10
    assert lists.read == ["new"]
