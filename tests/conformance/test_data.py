"""The data model: required members, names, enums, times, parts (A2A 1.0 sections 4 and 5.5 to 5.7)."""

from __future__ import annotations

from typing import cast

import pytest

from tests.conformance.callers import Caller, Json, make_params
from tests.conformance.shapes import TIMESTAMP, check_answer, check_item, check_task, list_members
from tests.conformance.site import write
from tests.support.conformance_behaviours import BIG_ARTIFACT_CHARS
from tests.support.conformance_wire import BIG_INTEGER

pytestmark = pytest.mark.anyio

CONTENTS = frozenset({"text", "raw", "url", "data"})


@pytest.mark.kit("DM-TASK-001", "DM-TASK-002", "DM-STATUS-001", "DM-MSG-001", "DM-MSG-002")
@pytest.mark.kit("DM-ART-001", "DM-PART-001", "DM-SERIAL-001", "DM-SERIAL-002", "DM-SERIAL-004")
@pytest.mark.parametrize(
    "prefix",
    [
        "tck-complete-task",
        "tck-input-required",
        "tck-artifact-text",
        "tck-artifact-file",
        "tck-artifact-file-url",
        "tck-artifact-data",
        "tck-message-response",
        "tck-reject-task",
        "psl-auth",
    ],
)
async def test_answer_matches_the_schema(caller: Caller, prefix: str) -> None:
    answer = await caller.send(write(prefix))
    check_answer(answer)
    for part in _list_parts(answer):
        assert len(CONTENTS & part.keys()) == 1
    for name, value in list_members(answer):
        match name:
            case "state":
                assert str(value).startswith("TASK_STATE_")
            case "role":
                assert value in {"ROLE_USER", "ROLE_AGENT"}
            case _:
                continue


@pytest.mark.kit("DM-ART-001", "DM-PART-001")
@pytest.mark.parametrize(
    ("prefix", "parts"),
    [
        ("tck-artifact-text", [{"text": "Generated text content"}]),
        (
            "tck-artifact-file",
            [
                {
                    "raw": "R2VuZXJhdGVkIGZpbGUgY29udGVudA==",
                    "filename": "output.txt",
                    "mediaType": "text/plain",
                }
            ],
        ),
        (
            "tck-artifact-file-url",
            [
                {
                    "url": "https://example.com/output.txt",
                    "filename": "output.txt",
                    "mediaType": "text/plain",
                }
            ],
        ),
        ("tck-artifact-data", [{"data": {"key": "value", "count": 42}}]),
    ],
)
async def test_artifact_is_passed_on_unchanged(
    caller: Caller, prefix: str, parts: list[Json]
) -> None:
    task = await caller.make_task(write(prefix))
    assert [artifact["parts"] for artifact in task["artifacts"]] == [parts]


@pytest.mark.kit("DM-SERIAL-003")
async def test_times_are_marked_as_utc(caller: Caller) -> None:
    items = await caller.collect(write("tck-stream-001"))
    task = await caller.read_task(items[0]["task"]["id"])
    times = [value for name, value in list_members([*items, task]) if name == "timestamp"]
    assert len(times) >= 3
    assert all(TIMESTAMP.fullmatch(str(time)) for time in times)


@pytest.mark.kit("DM-SERIAL-005")
async def test_unknown_members_are_ignored(rpc: Caller, rest: Caller) -> None:
    for caller in (rpc, rest):
        message = write("tck-complete-task", someLaterMember={"deep": True})
        params = {**make_params(message), "anotherOne": 1}
        check_task((await caller.call("SendMessage", params)).said["task"])


@pytest.mark.kit("DM-SERIAL-001", "DM-SERIAL-005")
async def test_names_with_underscores_are_accepted(rpc: Caller, rest: Caller) -> None:
    for caller in (rpc, rest):
        message = write("tck-complete-task")
        message["message_id"] = message.pop("messageId")
        message["context_id"] = "snake-" + message["message_id"]
        params = {"message": message, "configuration": {"history_length": 0}}
        task = (await caller.call("SendMessage", params)).said["task"]
        assert task["contextId"] == message["context_id"]
        assert "history" not in task


async def test_numbers_and_later_members_are_passed_on_unchanged(rpc: Caller, rest: Caller) -> None:
    for caller in (rpc, rest):
        task = await caller.make_task(write("psl-big-integer"))
        assert task["artifacts"][0]["parts"][0]["data"]["count"] == BIG_INTEGER
        items = await caller.collect(write("psl-later-field"))
        assert "'newInSomeLaterVersion': True" in str(items)


async def test_big_artifact_comes_through_whole(caller: Caller) -> None:
    task = await caller.make_task(write("psl-big-artifact"))
    assert len(task["artifacts"][0]["parts"][0]["text"]) == BIG_ARTIFACT_CHARS


@pytest.mark.parametrize(
    "prefix",
    ["psl-twice", "psl-malformed", "psl-drop", "psl-unknown-state", "psl-message-after-task"],
)
async def test_stream_stays_valid_whatever_the_agent_sends(caller: Caller, prefix: str) -> None:
    items = await caller.collect(write(prefix))
    for item in items:
        check_item(item)
    assert "after the fault" in str(items)
    assert "TASK_STATE_COMPLETED" in str(items[-1])


def _list_parts(said: Json) -> list[Json]:
    found = [cast("list[Json]", value) for name, value in list_members(said) if name == "parts"]
    return [part for parts in found for part in parts]
