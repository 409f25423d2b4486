"""The edges of a task in two places: edges written in pieces are read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from passerelle.core.task.edges import KEPT_EDGES, cut, join, list_changes
from passerelle.core.task.record import Edge, TaskRecord
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.record import change
from tests.support.payloads import sample

TASK = sample(TaskRecord)
WRITES = some.lists(some.lists(some.integers(0, KEPT_EDGES + 12), max_size=9), max_size=24)
AT = "2026-01-01T00:00:00.000Z"


def link(task: TaskRecord, number: int) -> TaskRecord:
    """As a fold does it; an edge that is recorded twice at one time has the same bytes as before."""
    others = tuple(one for one in task.relationships if one.edge_id != f"edge {number}")
    edge = Edge(f"edge {number}", "child", f"task {number}", "open", AT, AT)
    return change(task, relationships=(*others, edge))


@given(count=some.integers(0, KEPT_EDGES + 12), writes=WRITES, rereads=some.booleans())
def test_whatever_is_written_in_pieces_is_read_whole(
    count: int, writes: list[list[int]], *, rereads: bool
) -> None:
    task = change(TASK, relationships=())
    for number in range(count):
        task = link(task, number)
    before: TaskRecord | None = None
    fields: dict[str, bytes] = {}
    for numbers in [[], *writes]:
        for number in numbers:
            task = link(task, number)
        changes = list_changes(before, fields, task)
        assert before is None or len(changes) <= 4 * len(numbers)
        for name, content in changes.items():
            if content is None:
                del fields[name]
            else:
                fields[name] = content
        assert len(cut(task).relationships) <= KEPT_EDGES
        read = join(cut(task), dict(reversed(fields.items())))
        assert to_bytes(read) == to_bytes(task)
        assert len(fields) == max(0, len(task.relationships) - KEPT_EDGES)
        before = task = read if rereads else task


def test_record_that_was_stored_whole_gets_its_list_with_its_next_write() -> None:
    task = change(TASK, relationships=())
    for number in range(KEPT_EDGES + 3):
        task = link(task, number)
    assert join(task, {}) is task
    changes = list_changes(task, {}, task)
    assert [*changes] == ["edge:0", "edge:1", "edge:2"]
    assert all(changes.values())
