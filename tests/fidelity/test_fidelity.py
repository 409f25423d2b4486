"""Payloads pass as they are: what an agent gets and what its caller gets, directly and through the gateway.

Numbers are compared as they are written: 1.0 is not 1. What may differ are rows of the table of differences
(tests/conversations/differences.toml), and each place here that allows something names its row.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeAlias, cast

import httpx
import pytest

from passerelle.demo.processes import GatewayProcess
from tests.conversations.forms import inner
from tests.fidelity.interactions import INTERACTIONS, Interaction
from tests.fidelity.raw_agent import RawPeer, run_raw_agent
from tests.support.loops import SHARED, Backend
from tests.support.processes import run_gateway

pytestmark = pytest.mark.anyio
Json: TypeAlias = dict[str, Any]
_NUMBERS: Final = count(1)
_OURS: Final = "urn:passerelle:ext:"
_IDS: Final = frozenset({"id", "taskId", "contextId"})


@dataclass
class World:
    """The agent, and the gateway in front of it."""

    agent: RawPeer
    gateway: GatewayProcess


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def world(
    anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        folder = tmp_path_factory.mktemp("gateway")
        agent = await stack.enter_async_context(run_raw_agent(folder))
        origin = agent.url.removesuffix("/rpc")
        gateway = await stack.enter_async_context(run_gateway(folder, {"raw": origin}))
        yield World(agent, gateway)


@dataclass(frozen=True)
class Seen:
    """What came of an interaction on one side: the answers as the caller got them, the requests as the agent did."""

    answers: list[Json]
    requests: list[Json]
    extensions: list[str]


async def play(world: World, interaction: Interaction, url: str, headers: dict[str, str]) -> Seen:
    """The interaction, and the question before it where there is one."""
    answers: list[Json] = []
    ids = ""
    for turn in (1, 2) if interaction.follows else (1,):
        is_last = turn == 2 or not interaction.follows
        params = interaction.params if is_last else ""
        parts = interaction.parts if is_last else '[{"text":"begin"}]'
        rest = (interaction.message if is_last else "") + ids
        name = json.dumps(f"{interaction.name}|{next(_NUMBERS)}")
        message = f'{{"messageId":{name},"role":"ROLE_USER","parts":{parts}{rest}}}'
        method = "SendStreamingMessage" if interaction.frames else "SendMessage"
        body = f'{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{"message":{message}{params}}}}}'
        sent = {
            "A2A-Version": "1.0",
            "Content-Type": "application/json",
            "A2A-Extensions": "urn:example:ext:one",
            **headers,
        }
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            answer = await http.post(url, content=body.encode(), headers=sent)
        said = [read_exactly(line) for line in list_bodies(answer)]
        if is_last:
            answers += said
        else:
            task = said[0]["result"]["task"]
            ids = f',"taskId":"{task["id"]}","contextId":"{task["contextId"]}"'
    received = await world.agent.take_received()
    requests = [read_exactly(body) for body, _ in received]
    extensions = [headers.get("a2a-extensions", "") for _, headers in received]
    return Seen(answers, requests, extensions)


def list_bodies(answer: httpx.Response) -> list[bytes]:
    """The body, or the data of each event."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [answer.content]
    lines = answer.content.split(b"\n")
    return [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]


def read_exactly(body: bytes) -> Json:
    """The JSON, with each number as it is written."""
    found = json.loads(
        body,
        parse_int=lambda text: ("number", text),
        parse_float=lambda text: ("number", text),
    )
    return cast("Json", found)


def outline(value: object, known: dict[str, str], name: str = "") -> object:
    """``value`` with symbols for ids (row ids), and without metadata of the gateway (row extensions)."""
    if isinstance(value, dict):
        found = {
            key: outline(one, known, key)
            for key, one in cast("Json", value).items()
            if not key.startswith(_OURS) and key != "messageId"
        }
        return {key: one for key, one in found.items() if key != "metadata" or one != {}}
    if isinstance(value, list):
        return [outline(one, known, name) for one in cast("list[object]", value)]
    if name in _IDS and isinstance(value, str):
        return known.setdefault(value, f"<{len(known)}>")
    return value


def even_out(interaction: Interaction, answers: list[Json]) -> list[Json]:
    """Takes out what the rows ids, times and kept are about."""
    for answer in answers:
        result = inner(answer, "result")
        task = inner(result, "task")
        task.pop("history", None)  # kept: the agent has none
        for holder in (task, inner(result, "statusUpdate")):
            status = inner(holder, "status")
            if interaction.name == "time: none":
                status.pop("timestamp", None)  # times
            said = inner(status, "message")
            for member in _IDS:
                said.pop(member, None)  # ids: a message inside a task names it
        message = inner(result, "message")
        message.pop("contextId", None)
    return answers


def even_requests(requests: list[Json]) -> list[Json]:
    """Takes out what the rows ids and waiting are about, and the number of the call."""
    for request in requests:
        request.pop("id")
        request.pop("method")
        message = request["params"]["message"]
        message.pop("contextId", None)
        configuration = inner(request["params"], "configuration")
        configuration.pop("returnImmediately", None)
        if not configuration:
            request["params"].pop("configuration", None)
    return requests


@pytest.mark.requirement("FID-1")
@pytest.mark.parametrize("interaction", INTERACTIONS, ids=lambda one: one.name)
async def test_nothing_is_lost(world: World, interaction: Interaction) -> None:
    direct = await play(world, interaction, world.agent.url, {})
    url = f"{world.gateway.url}/agents/raw"
    through = await play(world, interaction, url, world.gateway.authorization)
    sides: list[tuple[object, object]] = []
    for seen in (direct, through):
        known: dict[str, str] = {}
        asked = outline(even_requests(seen.requests), {})
        sides.append((outline(even_out(interaction, seen.answers), known), asked))
    (told, asked), (told_through, asked_through) = sides
    assert asked_through == asked
    if interaction.error:
        ((error,), (shown,)) = (
            [one["error"] for one in seen.answers] for seen in (direct, through)
        )
        assert shown["code"] == error["code"]
        assert error["message"] in shown["message"]  # sentence
        assert all(detail in shown["data"] for detail in error.get("data", []))
    else:
        assert told_through == told
    assert all("urn:example:ext:one" in one for one in through.extensions)


def test_there_are_sixty() -> None:
    assert len(INTERACTIONS) >= 60
    assert len({one.name for one in INTERACTIONS}) == len(INTERACTIONS)
