"""Runs the guide as written: its requests against a gateway with sample agents, its program as a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess, run_peers
from tests.support.client_package import (
    API_LIBRARIES,
    LIBRARIES,
    PROJECT,
    build_client,
    install_client,
    write_client,
)
from tests.support.processes import run_gateway
from tests.support.waiting import block_until, wait_until

ROOT: Final = Path(__file__).resolve().parent.parent.parent
GUIDE: Final = ROOT / "docs" / "how-to"
FIRST: Final = ROOT / "docs" / "tutorials" / "first-agent.md"
FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_ADDRESS: Final = "http://127.0.0.1:8080"
SHOWN_DIGEST: Final = "$DIGEST"

# A whole answer, as tests read it: a missing member fails the test by itself.
Answer = dict[str, Any]


def read_blocks(path: Path, language: str) -> list[str]:
    return [text for found, text in FENCE.findall(path.read_text("utf-8")) if found == language]


def read_requests(path: Path) -> list[list[str]]:
    """The words of each curl call in a document."""
    blocks = [text for language in ("sh", "bash") for text in read_blocks(path, language)]
    shown = (text for text in blocks if "curl " in text)
    calls = (shlex.split(text[text.index("curl ") :]) for text in shown)
    return [[word for word in words if word != "--fail-with-body"] for words in calls]


async def play(gateway: GatewayProcess, words: list[str], **values: str) -> Answer:
    """Sends the request of a shown curl call; ``values`` are the shell variables and the digest."""
    known = {
        "$PASSERELLE_TOKEN": gateway.token,
        "$TOKEN": gateway.token,
        SHOWN_ADDRESS: gateway.url,
        **values,
    }
    for name, value in known.items():
        words = [word.replace(name, value) for word in words]
    headers = [word.split(": ", 1) for flag, word in pairwise(words) if flag == "-H"]
    body = words[words.index("-d") + 1] if "-d" in words else None
    async with httpx.AsyncClient(timeout=20) as http:
        verb = "GET" if body is None else "POST"
        answer = await http.request(verb, words[1], headers=dict(headers), content=body)
    assert answer.is_success, answer.text
    found: Answer = answer.json()
    return found


@contextlib.asynccontextmanager
async def open_harness(folder: Path) -> AsyncGenerator[GatewayProcess]:
    """The gateway of the guide, with its two agents."""
    async with run_peers(("echo", "payments"), folder) as peers:
        agents = {name: peer.url for name, peer in peers.items()}
        async with run_gateway(folder, agents) as gateway:
            yield gateway


@contextlib.contextmanager
def run_follower(folder: Path, gateway: GatewayProcess, stream: str) -> Generator[Path]:
    """The program of the guide as a process; yields the file with its output."""
    (program,) = read_blocks(GUIDE / "follow-from-a-device.md", "python")
    (folder / "follow.py").write_text(program, encoding="utf-8")
    write_client(folder)
    channel = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
    environ = {**os.environ, "TOKEN": gateway.token, "PASSERELLE_CHANNEL": channel}
    said = folder / "follow.out"
    with (
        said.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "follow.py", stream], cwd=folder, env=environ, stdout=out
        ) as process,
    ):
        try:
            yield said
        finally:
            process.kill()


def read_sequences(said: Path) -> list[int]:
    return [
        int(found) for found in re.findall(r"^(\d+) [\w.]+$", said.read_text("utf-8"), re.MULTILINE)
    ]


def read_saved(cursors: Path, stream: str) -> int:
    """The sequence of the cursor that the program has saved, or 0."""
    kept: dict[str, str] = json.loads(cursors.read_text("utf-8")) if cursors.exists() else {}
    return int(kept[stream].split(".")[1]) if stream in kept else 0


@pytest.mark.anyio
async def test_shown_requests_are_answered(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as gateway:
        (sent,) = [await play(gateway, words) for words in read_requests(ROOT / "README.md")]
        assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        first, listed, called, turn = [await play(gateway, words) for words in read_requests(FIRST)]
        assert first["task"]["artifacts"][0]["parts"][0]["text"] == "hello"
        assert first["task"]["id"] in {task["id"] for task in listed["tasks"]}
        assert called["result"]["task"]["artifacts"][0]["parts"][0]["text"] == "hello again"
        assert turn["state"] == "accepted"


@pytest.mark.anyio
async def test_shown_approval_is_requested_and_answered(tmp_path: Path) -> None:
    ask, look, decide = read_requests(GUIDE / "decide-an-approval.md")
    async with open_harness(tmp_path) as gateway:
        turn = await play(gateway, ask)

        async def find_question() -> Answer | None:
            pending: list[Answer] = (await play(gateway, look))["pending"]
            return pending[0] if pending else None

        question = await wait_until(find_question, 10, "the question is in the list")
        assert question is not None
        assert question["taskId"] == turn["taskId"]
        values = {"$ACTION": str(question["actionId"]), SHOWN_DIGEST: str(question["digest"])}
        answered = await play(gateway, decide, **values)
        assert answered["outcome"] == "won"
        assert (await play(gateway, decide, **values))["outcome"] == "replayed"


@pytest.mark.anyio
async def test_shown_program_resumes_after_its_last_printed_event(tmp_path: Path) -> None:
    turn_request = read_requests(FIRST)[-1]
    async with open_harness(tmp_path) as gateway:
        turn = await play(gateway, turn_request)
        stream = f"session:{turn['sessionId']}"

        def has_taken(said: Path) -> bool:
            """Whether the whole turn is printed, and the cursor of its last event is saved."""
            seen = read_sequences(said)
            done = "snapshot.updated" in said.read_text("utf-8")
            return done and read_saved(tmp_path / "cursors.json", stream) == max(seen)

        with run_follower(tmp_path, gateway, stream) as said:
            block_until(lambda: has_taken(said), 15, "the program prints the whole turn")
            before = read_sequences(said)
        assert before == list(range(1, len(before) + 1))
        body = {"agent": "echo", "text": "again", "sessionId": turn["sessionId"]}
        await play(
            gateway, [*turn_request[:-1], json.dumps(body), "-H", "Idempotency-Key: order-18"]
        )
        with run_follower(tmp_path, gateway, stream) as said:
            block_until(lambda: has_taken(said), 15, "the program goes on")
            after = read_sequences(said)
        assert after == list(range(before[-1] + 1, before[-1] + 1 + len(after)))


@pytest.mark.anyio
async def test_client_quickstart_follows_its_message_with_the_wheel_alone(
    tmp_path: Path,
) -> None:
    _approve, program = read_blocks(PROJECT / "README.md", "python")
    (tmp_path / "send.py").write_text(program, encoding="utf-8")
    python = install_client(build_client(tmp_path), tmp_path / "environment")
    async with open_harness(tmp_path) as gateway:
        channel = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
        process = await asyncio.create_subprocess_exec(
            *(python, "send.py", "echo", "hello"),
            cwd=tmp_path,
            env={**os.environ, "TOKEN": gateway.token, "PASSERELLE_CHANNEL": channel},
            stdout=subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    sequences, types = zip(*(line.split() for line in said.decode().splitlines()), strict=True)
    assert [int(one) for one in sequences] == list(range(1, len(sequences) + 1))
    assert types[-1] == "task.completed"


@pytest.mark.anyio
async def test_api_client_quickstart_gets_a_payment_approved_with_the_wheel_alone(
    tmp_path: Path,
) -> None:
    program, _send = read_blocks(PROJECT / "README.md", "python")
    (tmp_path / "approve.py").write_text(program, encoding="utf-8")
    wheel = build_client(tmp_path)
    python = install_client(wheel, tmp_path / "environment", (*LIBRARIES, *API_LIBRARIES))
    async with open_harness(tmp_path) as gateway:
        process = await asyncio.create_subprocess_exec(
            *(python, "approve.py"),
            cwd=tmp_path,
            env={**os.environ, "PASSERELLE_URL": gateway.url, "PASSERELLE_TOKEN": gateway.token},
            stdout=subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    title, result, status = said.decode().splitlines()
    assert title.startswith("payments asks for permission")
    assert (result.partition("(")[0], status) == ("Won", "completed")
