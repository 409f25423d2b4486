"""The table of the items of a job."""

from __future__ import annotations

import pytest

from passerelle.cli.verbs.jobs import describe_results
from passerelle.core.wire.json import JsonObject


@pytest.mark.parametrize(
    ("item", "last"),
    [
        ({"state": "completed", "taskStatus": "completed", "result": "one\ntwo"}, "one two"),
        ({"state": "failed", "taskStatus": "failed", "error": {"message": "it broke"}}, "it broke"),
        ({"state": "running", "taskStatus": "running"}, "task_1"),
        ({"state": "running", "taskStatus": "waiting_input"}, "(waiting_input)"),
        ({"state": "running", "taskStatus": "queued"}, "(queued)"),
        ({"state": "cancelled", "taskStatus": "cancelled"}, "task_1"),
    ],
)
def test_line_of_an_item_ends_with_its_result_or_its_wait(item: JsonObject, last: str) -> None:
    line = {"item": 1, "attempts": 1, "agent": "echo", "taskId": "task_1", **item}
    _, shown = describe_results({"items": [line]})
    assert shown.rstrip().endswith(last)
