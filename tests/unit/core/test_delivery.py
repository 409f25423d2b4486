"""The delivery state of each consumer, from its record and the task's (PO-6)."""

from __future__ import annotations

from typing import Literal

import pytest

from passerelle.core.read_models.delivery import Receiver, show_delivery
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change
from tests.support.payloads import sample

OPEN = change(
    sample(TaskRecord), status=Status.RUNNING, shown_to=7, delivery={}, parent_task_id="task_1"
)
DONE = change(OPEN, status=Status.COMPLETED)
PARENT = change(OPEN, task_id="task_1")


@pytest.mark.requirement("PO-6")
@pytest.mark.parametrize(
    ("task", "sequence", "state", "word"),
    [
        (OPEN, 7, "live", "pending"),
        (DONE, 6, "live", "pending"),
        (DONE, 7, "live", "delivered"),
        (DONE, 6, "backoff", "queued"),
        (DONE, 6, "dead", "failed"),
        (DONE, 7, "dead", "delivered"),
        (DONE, 0, "done", "delivered"),
    ],
)
def test_receiver_has_the_result_when_it_has_the_last_word(
    task: TaskRecord,
    sequence: int,
    state: Literal["live", "backoff", "dead", "done"],
    word: str,
) -> None:
    model = show_delivery(task, [Receiver("webhook:a", sequence, state)], PARENT)
    assert model.consumers["webhook:a"] == word


@pytest.mark.requirement("PO-6")
@pytest.mark.parametrize(
    ("task", "parent", "word"),
    [
        (OPEN, PARENT, "pending"),
        (DONE, PARENT, "delivered"),
        (DONE, change(PARENT, status=Status.ARCHIVED), "parent_missing"),
        (DONE, None, "parent_missing"),
        (change(DONE, parent_task_id=None), None, "not_applicable"),
    ],
)
def test_delivery_to_the_parent_depends_on_whether_it_exists(
    task: TaskRecord, parent: TaskRecord | None, word: str
) -> None:
    assert show_delivery(task, [], parent).consumers["parent"] == word


def test_receivers_are_marked_unknown_in_a_list_of_tasks() -> None:
    model = show_delivery(DONE)
    assert "parent" not in model.consumers
    assert model.marks["receivers"].reason is not None
