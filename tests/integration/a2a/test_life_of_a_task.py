"""The examples of "life of a task" as written there: a picture is generated, and changed in the same context."""

from __future__ import annotations

from typing import Final, cast

import httpx
import orjson
import pytest

from passerelle.core.wire.json import JsonObject
from tests.integration.a2a.rig import OWNER, Answer, Rig
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

MAKE: Final = """
{
  "jsonrpc": "2.0",
  "id": "req-001",
  "method": "message.send",
  "params": {
    "message": {
      "role": "user",
      "messageId": "msg-user-001",
      "parts": [
        { "kind": "text", "text": "Generate an image of a sailboat on the ocean." }
      ]
    }
  }
}
"""
CHANGE: Final = """
{
  "jsonrpc": "2.0",
  "id": "req-002",
  "method": "message.send",
  "params": {
    "message": {
      "role": "user",
      "messageId": "msg-user-002",
      "contextId": "ctx-conversation-abc",
      "referenceTaskIds": ["task-boat-gen-123"],
      "parts": [
        { "kind": "text", "text": "Please modify the sailboat to be red." }
      ]
    }
  }
}
"""
PNG: Final = "iVBORw0KGgo="
OLDER_FILE: Final[JsonObject] = {
    "kind": "file",
    "file": {"name": "sailboat_image.png", "mimeType": "image/png", "bytes": PNG},
}
NEWER_FILE: Final[JsonObject] = {
    "raw": PNG,
    "filename": "sailboat_image.png",
    "mediaType": "image/png",
}


async def draw(turn: Turn) -> None:
    """The agent of the examples."""
    task = await turn.open()
    picture: JsonObject = {**NEWER_FILE}
    task.artifact([picture], artifact_id="artifact-boat-v1-xyz", name="sailboat_image.png")
    await turn.status("COMPLETED")


@pytest.fixture
def painter(rig: Rig) -> Rig:
    rig.peer.on("Generate", draw)
    rig.peer.on("Please", draw)
    return rig


async def post(rig: Rig, body: bytes | str, version: str | None = None) -> Answer:
    """Sends a body unchanged; like the text, without a version header by default."""
    headers = {"Authorization": f"Bearer {OWNER}", "Content-Type": "application/json"}
    headers |= {"A2A-Version": version} if version else {}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, timeout=20) as http:
        answer = cast("Answer", (await http.post("/agents/echo", content=body)).json())
    assert "error" not in answer, answer
    return answer


def spell(text: str, method: str) -> bytes:
    """Returns a body of the text with the method name and the form of a version."""
    body = orjson.loads(text)
    body["method"] = method
    if method == "SendMessage":
        message = body["params"]["message"]
        message["role"] = "ROLE_USER"
        message["parts"] = [{"text": part["text"]} for part in message["parts"]]
    return orjson.dumps(body)


def name_ids(task: Answer) -> str:
    """Returns a task with its ids replaced by names, and without times and history, for comparison."""
    shown = {name: value for name, value in task.items() if name not in {"history", "status"}}
    status = {"state": task["status"]["state"]}
    text = orjson.dumps({**shown, "status": status}, option=orjson.OPT_SORT_KEYS).decode()
    return text.replace(task["id"], "TASK").replace(task["contextId"], "CONTEXT")


@pytest.mark.requirement("LT-15", "LT-16")
async def test_first_example_is_accepted_as_written_and_answered_with_the_picture(
    painter: Rig,
) -> None:
    literal = await post(painter, MAKE)
    assert literal["id"] == "req-001"
    task = literal["result"]
    golden: JsonObject = {
        "kind": "task",
        "id": "TASK",
        "contextId": "CONTEXT",
        "status": {"state": "completed"},
        "artifacts": [
            {
                "artifactId": "artifact-boat-v1-xyz",
                "name": "sailboat_image.png",
                "parts": [OLDER_FILE],
            }
        ],
    }
    assert orjson.loads(name_ids(task)) == golden
    current = (await post(painter, spell(MAKE, "message/send")))["result"]
    assert name_ids(current) == name_ids(task)
    newest = (await post(painter, spell(MAKE, "SendMessage"), "1.0"))["result"]
    assert list(newest) == ["task"]
    assert orjson.loads(name_ids(newest["task"])) == {
        "id": "TASK",
        "contextId": "CONTEXT",
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [
            {
                "artifactId": "artifact-boat-v1-xyz",
                "name": "sailboat_image.png",
                "parts": [NEWER_FILE],
            }
        ],
    }
    said = [message["parts"] for message in painter.peer.messages]
    assert said == [[{"text": "Generate an image of a sailboat on the ocean."}]] * 3


@pytest.mark.requirement("LT-15")
@pytest.mark.parametrize("method", ["message.send", "message/send", "SendMessage"])
async def test_change_of_the_picture_is_a_new_task_in_the_context_of_the_first(
    painter: Rig, method: str
) -> None:
    made = (await post(painter, MAKE))["result"]
    # Ids are minted by the server: replace those of the text with those of the first answer.
    text = CHANGE.replace("ctx-conversation-abc", made["contextId"])
    text = text.replace("task-boat-gen-123", made["id"])
    version = "1.0" if method == "SendMessage" else None
    result = (await post(painter, spell(text, method), version))["result"]
    changed = result["task"] if version else result
    assert changed["contextId"] == made["contextId"]
    assert changed["id"] != made["id"]
    assert changed["artifacts"][0]["name"] == "sailboat_image.png"
    native = list(painter.peer.tasks)
    assert painter.peer.messages[-1]["referenceTaskIds"] == [native[0]]
