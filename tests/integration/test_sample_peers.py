"""Sample peers, run as separate processes and called over HTTP."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import Any, cast

import httpx
import orjson
import pytest

from passerelle.a2a_mapping.dialects.pause import DecidedQuestion
from passerelle.a2a_mapping.dialects.registry import detect, encode
from passerelle.core.approval.prompt import PeerAnswer
from passerelle.core.wire.json import JsonObject
from passerelle.demo.peers.report import ReportPace, read_pace

# A parsed response; missing keys fail the test.
Answer = dict[str, Any]
URI = "urn:passerelle:ext:permission:1"


@contextlib.contextmanager
def _run(name: str) -> Generator[httpx.Client]:
    command = [sys.executable, "-m", f"passerelle.demo.peers.{name}", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        contextlib.ExitStack() as at_the_end,
    ):
        at_the_end.callback(_stop, process)
        assert process.stdout is not None
        said = cast("Answer", orjson.loads(process.stdout.readline()))
        assert said["agent"] == name
        assert said["url"] == f"http://127.0.0.1:{said['port']}"
        with httpx.Client(
            base_url=said["url"], headers={"A2A-Version": "1.0"}, timeout=20
        ) as client:
            yield client


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(10) == 0
    finally:
        process.kill()


def _send(text: str, message_id: str = "m1", **ids: str) -> JsonObject:
    return {
        "message": {
            "messageId": message_id,
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **ids,
        }
    }


def _call(client: httpx.Client, method: str, params: JsonObject) -> Answer:
    body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return cast("Answer", client.post("/", json=body).json()["result"])


def _stream(client: httpx.Client, method: str, params: JsonObject) -> list[Answer]:
    body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with client.stream("POST", "/", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data:")]
    return [orjson.loads(line.removeprefix("data:"))["result"] for line in lines]


def _stats(client: httpx.Client) -> Answer:
    return cast("Answer", client.get("/stats").json())


def _texts(task: Answer) -> list[str]:
    return [part["text"] for artifact in task["artifacts"] for part in artifact["parts"]]


def test_echo_answers_with_a_task_a_message_or_a_question() -> None:
    with _run("echo") as client:
        task = _call(client, "SendMessage", _send("hi"))["task"]
        assert (task["status"]["state"], _texts(task)) == ("TASK_STATE_COMPLETED", ["hi"])
        message = _call(client, "SendMessage", _send("message: hi", "m2"))["message"]
        assert message["parts"] == [{"text": "hi"}]
        asked = _call(client, "SendMessage", _send("ask: which?", "m3"))["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        ids = {"taskId": asked["id"], "contextId": asked["contextId"]}
        answered = _call(client, "SendMessage", _send("blue", "m4", **ids))["task"]
        assert (answered["id"], _texts(answered)) == (asked["id"], ["blue"])
        rest = client.post("/message:send", json=_send("over HTTP+JSON", "m4")).json()["task"]
        assert _texts(rest) == ["over HTTP+JSON"]
        assert _stats(client)["received"] == {"m1": 1, "m2": 1, "m3": 1, "m4": 2}


def test_report_streams_chunks_and_can_be_subscribed_to() -> None:
    with _run("report") as client:
        frames = _stream(client, "SendStreamingMessage", _send("chunks=3 every=0.05"))
        chunks = [frame["artifactUpdate"] for frame in frames if "artifactUpdate" in frame]
        assert [chunk.get("append", False) for chunk in chunks] == [False, True, True]
        assert [chunk.get("lastChunk", False) for chunk in chunks] == [False, False, True]
        assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        slow = _send("chunks=8 every=0.2", "m2")
        slow["configuration"] = {"returnImmediately": True}
        started = _call(client, "SendMessage", slow)["task"]
        seen = _stream(client, "SubscribeToTask", {"id": started["id"]})
        assert seen[0]["task"]["id"] == started["id"]
        assert seen[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        fetched = _call(client, "GetTask", {"id": started["id"]})
        assert _texts(fetched) == [f"line {line} of 8\n" for line in range(1, 9)]


def test_report_stops_on_cancel() -> None:
    with _run("report") as client:
        request = _send("chunks=1000 every=5")
        request["configuration"] = {"returnImmediately": True}
        started = _call(client, "SendMessage", request)["task"]
        ended = _call(client, "CancelTask", {"id": started["id"]})
        assert ended["status"]["state"] == "TASK_STATE_CANCELED"
        assert _stats(client)["cancelled"] == [started["id"]]


def test_peer_stops_in_time_with_an_open_stream() -> None:
    with _run("report") as client, contextlib.ExitStack() as reading:
        body: JsonObject = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": _send("chunks=1000 every=1"),
        }
        response = reading.enter_context(client.stream("POST", "/", json=body))
        assert next(response.iter_lines()).startswith("data:")


@pytest.mark.parametrize(
    ("option", "end"), [("pay", "paid"), ("reject", "rejected: nothing was paid")]
)
def test_payments_accepts_only_a_typed_answer(option: str, end: str) -> None:
    with _run("payments") as client:
        asked = _call(client, "SendMessage", _send("40 EUR to the baker"))["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        ids = {"taskId": asked["id"], "contextId": asked["contextId"]}
        for wrong in (_send("yes, approved", "m2", **ids), _wrong_digest(asked, ids)):
            asked = _call(client, "SendMessage", wrong)["task"]
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert "artifacts" not in asked
        (prompt,) = detect("payments", asked)
        assert prompt.subject == {
            "type": "tool_call",
            "name": "pay",
            "arguments": {"bill": "40 EUR to the baker"},
        }
        answer = PeerAnswer(allowed=option == "pay", option_id=option)
        message = encode(
            [DecidedQuestion(prompt, answer, "dec_1")], asked["id"], asked["contextId"]
        )
        done = _call(client, "SendMessage", {"message": message})["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert done["status"]["message"]["parts"] == [{"text": end}]
        assert [artifact["name"] for artifact in done.get("artifacts", [])] == (
            ["receipt"] if option == "pay" else []
        )


def _wrong_digest(asked: Answer, ids: dict[str, str]) -> JsonObject:
    (form,) = [part["data"][URI] for part in asked["status"]["message"]["parts"] if "data" in part]
    answer: JsonObject = {**form, "digest": "sha256:0", "option_id": "pay"}
    message = _send("", "m3", **ids)
    cast("JsonObject", message["message"])["parts"] = [{"data": {URI: answer}}]
    return message


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("a report please", ReportPace(12, 0.4)),
        ("chunks=3 every=0.05", ReportPace(3, 0.05)),
        ("every=2 chunks=0", ReportPace(1, 2.0)),
        ("chunks=9999 every=99", ReportPace(1000, 10.0)),
        ("chunks=x every=-1", ReportPace(12, 0.4)),
    ],
)
def test_pace_of_a_report_is_limited(text: str, pace: ReportPace) -> None:
    assert read_pace(text) == pace


def test_used_port_is_refused_with_a_reason() -> None:
    with _run("echo") as client:
        port = str(client.base_url.port)
        command = [sys.executable, "-m", "passerelle.demo.peers.echo", "--port", port]
        second = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert second.returncode != 0
        assert b"in use" in second.stderr
