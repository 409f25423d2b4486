"""Two instances behind a real nginx: streams, sockets, and a task whose instance is killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import httpx
import orjson
from websockets import Subprotocol
from websockets.sync.client import ClientConnection, connect

from passerelle.core.wire.json import JsonObject
from tests.examples.stage import Example, open_example

LINES: Final = 40
WITHIN_S: Final = 30.0


def read_token(example: Example) -> str:
    """The owner's token, which both instances share."""
    tokens = {(example.folder / one / "owner-token").read_text("ascii").strip() for one in "ab"}
    (token,) = tokens
    return token


def open_http(example: Example, token: str) -> httpx.Client:
    """A caller that knows only nginx."""
    headers = {"Authorization": f"Bearer {token}", "A2A-Version": "1.0"}
    url = example.url("8000")
    return httpx.Client(base_url=url, headers=headers, timeout=WITHIN_S, trust_env=False)


def stream_report(http: httpx.Client) -> list[str]:
    """The texts of a report, as its stream delivers them."""
    said = {"role": "ROLE_USER", "parts": [{"text": "chunks=5 every=0.5"}]}
    body = {"message": {"messageId": os.urandom(8).hex(), **said}}
    texts: list[str] = []
    with http.stream("POST", "/agents/report/message:stream", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if "artifactUpdate" not in line:
                continue
            artifact = orjson.loads(line.removeprefix("data:"))["artifactUpdate"]["artifact"]
            texts.append(artifact["parts"][0]["text"])
            if len(texts) == 1:
                # The agent is still writing: if nginx buffered the answer, it would not be here yet.
                assert len(http.get("/v1/tasks?status=running").json()["tasks"]) == 1
    return texts


def greet(socket: ClientConnection, token: str) -> str:
    """The connection on which a device is welcomed."""
    hello: JsonObject = {
        "t": "hello",
        "v": 1,
        "token": token,
        "device": "phone",
        "role": "ui",
        "caps": [],
    }
    socket.send(orjson.dumps({**hello, "sdk": "test/1", "subs": [{"s": "inbox"}]}).decode())
    welcome = orjson.loads(str(socket.recv(WITHIN_S)).splitlines()[0])
    assert welcome["t"] == "welcome", welcome
    return str(welcome["conn"])


def read_report(http: httpx.Client, task: str) -> str:
    """The whole artifact of a task."""
    (artifact,) = http.get(f"/agents/report/tasks/{task}").raise_for_status().json()["artifacts"]
    return "".join(part["text"] for part in artifact["parts"])


def test_task_continues_whichever_instance_is_killed(tmp_path: Path) -> None:
    whole = "".join(f"line {line} of {LINES}\n" for line in range(1, LINES + 1))
    with open_example("two-instances", tmp_path) as example:
        example.play()
        token = read_token(example)
        with open_http(example, token) as http:
            assert "completed" in (example.folder / "watched").read_text("utf-8")
            assert read_report(http, example.run("echo $task").strip()) == whole
            example.restart("a")
            # Now the other instance, while the first one is up again.
            (kill,) = (step.commands for step in example.steps if "kill -9" in step.commands)
            example.run(kill.replace("a.pid", "b.pid"))
            assert read_report(http, example.run("echo $task").strip()) == whole


def test_streams_and_sockets_are_not_buffered(tmp_path: Path) -> None:
    with open_example("two-instances", tmp_path) as example:
        example.play(before="chunks=40")
        token = read_token(example)
        with open_http(example, token) as http:
            for _ in range(2):  # each instance has its turn
                assert stream_report(http) == [f"line {line} of 5\n" for line in range(1, 6)]
        channel = f"{example.url('8000').replace('http', 'ws')}/v1/channel"
        with connect(channel, subprotocols=[Subprotocol("passerelle.v1+json")]) as socket:
            assert greet(socket, token)
