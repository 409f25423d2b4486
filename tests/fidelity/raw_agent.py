"""An agent of JSON-RPC 1.0 that answers with fixed bytes and keeps what it was sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx
import orjson
from aiohttp import web

from passerelle.demo.processes import start
from tests.fidelity.interactions import INTERACTIONS, QUESTION, Interaction

_BY_NAME = {one.name: one for one in INTERACTIONS}
_SENDS = {"SendMessage", "SendStreamingMessage"}


@dataclass
class RawAgent:
    """``received`` are the bodies of messages in the order in which they came, ``tasks`` the last Task by id."""

    url: str = ""
    received: list[bytes] = field(default_factory=list[bytes])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    _begun: int = 0

    async def show_card(self, request: web.Request) -> web.Response:
        card = {
            "name": "raw",
            "description": "Fixed bytes.",
            "version": "1.0.0",
            "supportedInterfaces": [
                {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ],
            "capabilities": {
                "streaming": True,
                "extensions": [{"uri": "urn:example:ext:one"}],
            },
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }
        return web.json_response(card)

    async def show_received(self, request: web.Request) -> web.Response:
        """What came since the last look."""
        found = [
            [body.decode(), headers]
            for body, headers in zip(self.received, self.headers, strict=True)
        ]
        self.received, self.headers = [], []
        return web.json_response(found)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        body = await request.read()
        call = orjson.loads(body)
        if call["method"] not in _SENDS:
            task = self.tasks.get(call["params"].get("id", ""))
            if task is None or call["method"] != "GetTask":
                return self._reply(call, '"error":{"code":-32001,"message":"no such task"}')
            return self._reply(call, f'"result":{task}')
        self.received.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        message = call["params"]["message"]
        interaction = _BY_NAME[str(message["messageId"]).rpartition("|")[0]]
        task_id = message.get("taskId") or self._mint()
        ids = {"$T": task_id, "$C": message.get("contextId") or f"context-of-{task_id}"}
        if interaction.follows and not message.get("taskId"):
            return await self._stream_or_reply(request, call, interaction, (QUESTION,), ids)
        frames = interaction.frames or ((interaction.result,) if interaction.result else ())
        return await self._stream_or_reply(request, call, interaction, frames, ids)

    async def _stream_or_reply(
        self,
        request: web.Request,
        call: dict[str, object],
        interaction: Interaction,
        frames: tuple[str, ...],
        ids: dict[str, str],
    ) -> web.StreamResponse:
        if not frames:
            return self._reply(call, f'"error":{interaction.error}')
        filled = [_fill(frame, ids) for frame in frames]
        for frame in filled:
            if frame.startswith('{"task":'):
                self.tasks[ids["$T"]] = frame.removeprefix('{"task":')[:-1]
        if call["method"] == "SendMessage":
            return self._reply(call, f'"result":{filled[-1]}')
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = orjson.dumps(call["id"]).decode()
        for frame in filled:
            said = f'data: {{"jsonrpc":"2.0","id":{number},"result":{frame}}}\n\n'
            await response.write(said.encode())
        return response

    def _reply(self, call: dict[str, object], inner: str) -> web.Response:
        number = orjson.dumps(call["id"]).decode()
        said = f'{{"jsonrpc":"2.0","id":{number},{inner}}}'
        return web.Response(body=said.encode(), content_type="application/json")

    def _mint(self) -> str:
        self._begun += 1
        return f"raw-{self._begun}"


def _fill(frame: str, ids: dict[str, str]) -> str:
    for name, value in ids.items():
        frame = frame.replace(name, value)
    return frame


@dataclass(frozen=True, slots=True)
class RawPeer:
    """The agent as a process; ``url`` is where it takes calls."""

    url: str

    async def take_received(self) -> list[tuple[bytes, dict[str, str]]]:
        """Body and headers of every message since the last look."""
        async with httpx.AsyncClient(trust_env=False) as http:
            found = (await http.post(self.url.replace("/rpc", "/received"))).json()
        return [(body.encode(), headers) for body, headers in found]


@asynccontextmanager
async def run_raw_agent(folder: Path) -> AsyncGenerator[RawPeer]:
    """The agent on a free loopback port."""
    root = str(Path(__file__).resolve().parents[2])
    child = start("raw", ("tests.fidelity.raw_agent",), folder, {"PYTHONPATH": root})
    try:
        yield RawPeer((await child.read_line("http")).strip())
    finally:
        await child.stop()


async def serve() -> None:
    """Serves until it is stopped, and says where first."""
    agent = RawAgent()
    app = web.Application(client_max_size=2**24)
    app.router.add_get("/.well-known/agent-card.json", agent.show_card)
    app.router.add_post("/rpc", agent.answer)
    app.router.add_post("/received", agent.show_received)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = cast("tuple[str, int]", runner.addresses[0])[1]
    agent.url = f"http://127.0.0.1:{port}/rpc"
    sys.stdout.write(f"{agent.url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
