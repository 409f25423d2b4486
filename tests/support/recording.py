"""Streams of real agents, recorded once at the wire and replayed to the gateway (VAL-2).

``python -m tests.support.recording`` records them again from an a2a-sdk agent, in both versions of A2A. The player is
an agent that answers a streaming call with the recorded bytes, and GetTask with the recorded task.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, cast

import httpx
import orjson
from aiohttp import web

from passerelle.core.wire.json import JsonObject
from tests.support.loopback_server import end_runner
from tests.support.sdk_agent import run_sdk_agent

RECORDINGS: Final = Path(__file__).resolve().parent.parent / "contract" / "recordings"
STORIES: Final = {
    "chunks": "chunks 3",
    "question": "ask which harbour?",
    "message": "message well met",
}
CALL_ID: Final = "recorded"
SUFFIX: Final = ".stream.json"
_METHODS: Final = {
    "1.0": ("SendStreamingMessage", "GetTask"),
    "0.3": ("message/stream", "tasks/get"),
}


@dataclass(frozen=True, slots=True)
class Recording:
    """One stream: the agent's card, the request, the received lines, and the final task, if any."""

    name: str
    source: str
    card: JsonObject
    asked: str
    lines: list[str]
    task: JsonObject | None

    @property
    def binding(self) -> str:
        """Its version of A2A."""
        return self.name.partition("-")[0]


def load_recordings() -> list[Recording]:
    """All recordings, by name."""
    return [
        Recording(path.name.removesuffix(SUFFIX), **json.loads(path.read_text("utf-8")))
        for path in sorted(RECORDINGS.glob(f"*{SUFFIX}"))
    ]


@asynccontextmanager
async def play(recording: Recording) -> AsyncGenerator[str]:
    """An agent that replays the recording; yields its URL."""
    card = dict(recording.card)

    async def show_card(_request: web.Request) -> web.Response:
        return web.json_response(card)

    async def answer(request: web.Request) -> web.StreamResponse:
        call = cast("JsonObject", orjson.loads(await request.read()))
        stream, get = _METHODS[recording.binding]
        if call["method"] == get:
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": recording.task})
        assert call["method"] == stream, call["method"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for line in recording.lines:
            said = line.replace(json.dumps(CALL_ID), json.dumps(call["id"]))
            await response.write(f"{said}\n".encode())
        return response

    app = web.Application()
    app.add_routes(
        [web.get("/.well-known/agent-card.json", show_card), web.post("/{tail:.*}", answer)]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    url = f"http://{host}:{port}"
    _address(card, url)
    try:
        yield url
    finally:
        await end_runner(runner)


def _address(card: JsonObject, url: str) -> None:
    """Replaces the address of the recorded agent."""
    if "url" in card:
        card["url"] = f"{url}/"
    interfaces = card.get("supportedInterfaces")
    for interface in interfaces if isinstance(interfaces, list) else ():
        cast("JsonObject", interface)["url"] = f"{url}/"


async def record(binding: str, name: str, text: str) -> Recording:
    """Sends a message to an SDK agent and keeps every line of the response."""
    stream, get = _METHODS[binding]
    part = {"text": text} if binding == "1.0" else {"kind": "text", "text": text}
    role = "ROLE_USER" if binding == "1.0" else "user"
    message = {"messageId": "m-recorded", "role": role, "parts": [part]}
    if binding == "0.3":
        message["kind"] = "message"
    headers = {"A2A-Version": binding}
    async with run_sdk_agent(f"JSONRPC/{binding}") as agent, httpx.AsyncClient() as http:
        card = (await http.get(f"{agent.url}/.well-known/agent-card.json", headers=headers)).json()
        body = {"jsonrpc": "2.0", "id": CALL_ID, "method": stream, "params": {"message": message}}
        lines: list[str] = []
        async with http.stream("POST", f"{agent.url}/", json=body, headers=headers) as answer:
            lines += [line async for line in answer.aiter_lines()]
        task = None
        task_id = _find_task(lines)
        if task_id is not None:
            body = {"jsonrpc": "2.0", "id": CALL_ID, "method": get, "params": {"id": task_id}}
            task = (await http.post(f"{agent.url}/", json=body, headers=headers)).json()["result"]
    source = f"a2a-sdk {version('a2a-sdk')}, JSONRPC {binding}"
    return Recording(f"{binding}-{name}", source, card, text, lines, task)


def _find_task(lines: list[str]) -> str | None:
    for line in lines:
        if line.startswith("data:"):
            result = json.loads(line.removeprefix("data:"))["result"]
            task = result.get("task", result if result.get("kind") == "task" else None)
            if task is not None:
                return str(task["id"])
    return None


async def _record_all() -> None:
    RECORDINGS.mkdir(exist_ok=True)
    for binding in _METHODS:
        for name, text in STORIES.items():
            made = await record(binding, name, text)
            content = {
                "source": made.source,
                "card": made.card,
                "asked": made.asked,
                "lines": made.lines,
                "task": made.task,
            }
            path = RECORDINGS / f"{made.name}{SUFFIX}"
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_record_all())
