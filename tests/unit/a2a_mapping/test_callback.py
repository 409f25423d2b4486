"""Which task a notification of an agent is about, in every form that agents send."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.replies import read_task_id
from passerelle.core.wire.json import JsonObject


@pytest.mark.parametrize(
    "body",
    [
        {"task": {"id": "t"}},
        {"statusUpdate": {"taskId": "t", "status": {}}},
        {"artifactUpdate": {"taskId": "t"}},
        {"message": {"taskId": "t"}},
        {"kind": "task", "id": "t"},
        {"id": "t", "status": {}},
        {"kind": "status-update", "taskId": "t"},
        {"kind": "artifact-update", "taskId": "t"},
        {"kind": "message", "taskId": "t"},
    ],
)
def test_task_is_found_in_each_form(body: JsonObject) -> None:
    assert read_task_id(body) == "t"


@pytest.mark.parametrize(
    "body",
    [{}, {"task": "t"}, {"task": {}}, {"task": {"id": 7}}, {"kind": "message", "id": "t"}],
)
def test_body_that_names_no_task_names_none(body: JsonObject) -> None:
    assert read_task_id(body) is None
