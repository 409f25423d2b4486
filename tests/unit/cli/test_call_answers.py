"""What ``passerelle call`` prints of an answer, for each kind of agent."""

from typing import cast

import pytest

from passerelle.cli.verbs.calls import describe_answer, describe_next_step
from passerelle.core.wire.json import Json, JsonObject


def _task(state: str, said: str | None, *artifacts: list[Json]) -> JsonObject:
    message: JsonObject = {"message": {"parts": [{"text": said}]}} if said else {}
    held: list[Json] = [{"artifactId": str(at), "parts": one} for at, one in enumerate(artifacts)]
    status: JsonObject = {"state": f"TASK_STATE_{state}", **message}
    return {"task": {"id": "task_1", "status": status, "artifacts": held}}


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (_task("COMPLETED", "done", [{"text": "The "}, {"text": "fox\nru"}, {"text": "ns"}]), "The fox|runs"),
        (_task("COMPLETED", "done", [{"text": "one"}], [{"text": "two"}]), "one|two"),
        (
            _task("COMPLETED", None, [{"text": "a"}, {"data": {"n": 1}}, {"text": "b"}, {"raw": ""}]),
            'a|{"n": 1}|b|(a file; --json shows it)',
        ),
        (_task("COMPLETED", "done"), "done"),
        (_task("FAILED", "it broke"), "it broke"),
        (_task("FAILED", "it broke", [{"text": "half"}]), "half|it broke"),
        (_task("REJECTED", "not today", [{"text": "half"}]), "half|not today"),
        (_task("INPUT_REQUIRED", "which one?", [{"text": "two of them"}]), "two of them|which one?"),
        (
            {"message": {"parts": [{"text": "one"}, {"text": "two"}, {"data": [1]}]}},
            "one|two|[1]",
        ),
    ],
)  # fmt: skip
def test_an_answer_is_shown_with_artifacts_and_status_text(answer: JsonObject, lines: str) -> None:
    assert list(describe_answer(answer)) == lines.split("|")


def test_data_of_a_question_is_for_programs() -> None:
    answer = _task("INPUT_REQUIRED", "may I?")
    status = cast("JsonObject", cast("JsonObject", answer["task"])["status"])
    parts = cast("list[Json]", cast("JsonObject", status["message"])["parts"])
    parts.append({"data": {"options": ["yes", "no"]}})
    assert list(describe_answer(answer)) == ["may I?"]


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("permission", "passerelle approvals show act_1 shows what is asked"),
        ("confirmation", "passerelle approvals show act_1 shows what is asked"),
        ("input", "answer it with passerelle call echo --task task_1 TEXT"),
        ("auth", "answer it with passerelle call echo --task task_1 TEXT"),
        ("", "answer it with passerelle call echo --task task_1 TEXT"),
    ],
)
def test_the_hint_states_whether_text_answers_the_question(kind: str, hint: str) -> None:
    form: JsonObject = {"action_id": "act_1", "kind": kind}
    part: JsonObject = {"data": {"urn:passerelle:ext:permission:1": form}}
    parts: list[Json] = [{"text": "Which one?"}, *([part] if kind else [])]
    task: JsonObject = {"id": "task_1", "status": {"message": {"parts": parts}}}
    assert describe_next_step("echo", task).startswith(hint)
