"""``-o name``: the id of the object in an answer, or the ids of a list."""

import pytest

from passerelle.cli.verbs.output import render_answer
from passerelle.core.wire.json import JsonObject


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"job": {"jobId": "se_1", "agents": ["echo"]}, "version": 1}, "se_1"),
        ({"jobId": "se_1", "agents": ["echo"], "items": 3}, "se_1"),
        ({"jobs": [{"jobId": "se_1"}, {"jobId": "se_2"}], "nextPageToken": ""}, "se_1\nse_2"),
        ({"schedule": {"scheduleId": "se_3"}, "version": 1}, "se_3"),
        ({"schedules": [{"scheduleId": "se_3"}]}, "se_3"),
        ({"deliveries": [{"delivery": "push:task_1:mine"}]}, "push:task_1:mine"),
        ({"closed": [{"actionId": "act_1"}], "nextPageToken": ""}, "act_1"),
        ({"pending": [], "nextPageToken": ""}, ""),
        ({"tasks": [{"taskId": "task_1", "sessionId": "se_1"}]}, "task_1"),
        ({"taskId": "task_1", "sessionId": "se_1"}, "task_1"),
        ({"agents": [{"name": "echo"}]}, "echo"),
        ({"subagents": [{"subagentId": "sub_1"}], "jobs": []}, "sub_1"),
        ({"subagent": {"subagentId": "sub_1"}, "taskId": "task_1"}, "sub_1"),
        ({"subagentId": "sub_1", "tasks": ["task_1"]}, "sub_1"),
        ({"threadId": "th_1", "turns": [{"turnId": "turn_1", "taskId": "task_1"}]}, "turn_1"),
        ({"threadId": "th_1", "turns": [], "activeTurns": ["turn_1"]}, ""),
        ({"items": [{"item": 1, "taskId": "task_1"}, {"item": 2}], "nextPageToken": ""}, "task_1"),
    ],
)
def test_names_of_an_answer(answer: JsonObject, names: str) -> None:
    assert render_answer(answer, "name") == names
