"""What ``-o`` prints of an answer."""

from __future__ import annotations

import json

import pytest
import yaml

from passerelle.cli.verbs.output import render_answer
from passerelle.core.wire.json import JsonObject

TASK: JsonObject = {"taskId": "task_1", "sessionId": "se_1", "title": "Über"}


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"tasks": [TASK, {"taskId": "task_2"}], "nextPageToken": "x"}, "task_1\ntask_2"),
        ({"tasks": []}, ""),
        ({"pending": [{"actionId": "act_1", "taskId": "task_1"}]}, "act_1"),
        ({"agents": [{"name": "echo"}]}, "echo"),
        (TASK, "task_1"),
        ({"task": TASK, "version": 3}, "task_1"),
        ({"actionId": "act_1", "taskId": "task_1"}, "act_1"),
        ({"sessionId": "se_1", "tasks": [TASK]}, "task_1"),
        ({"fingerprints": []}, ""),
    ],
)
def test_names_are_the_ids_of_what_is_listed(answer: JsonObject, names: str) -> None:
    assert render_answer(answer, "name") == names


def test_json_and_yaml_are_the_whole_answer() -> None:
    assert json.loads(render_answer(TASK, "json")) == TASK
    text = render_answer(TASK, "yaml")
    assert yaml.safe_load(text) == TASK
    assert text.startswith("taskId: task_1\n")
    assert "Über" in text
