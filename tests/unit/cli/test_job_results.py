"""What is printed of a job and its items."""

from __future__ import annotations

import pytest

from passerelle.cli.verbs.jobs import describe_job, describe_results
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


def test_job_names_what_its_items_wait_for() -> None:
    wait: JsonObject = {
        "kind": "quota",
        "items": 3,
        "reason": "the quota of 3 calls a day is used up",
        "until": "2026-12-01T00:00:00.000Z",
    }
    approval: JsonObject = {"kind": "action", "items": 1, "reason": "Pay a bill"}
    shown = [line.split(maxsplit=1) for line in describe_job({"waits": [wait, approval]})]
    assert shown == [
        [
            "waits",
            "3 items: the quota of 3 calls a day is used up, until 2026-12-01T00:00:00.000Z",
        ],
        ["waits", "1 item: Pay a bill"],
    ]
