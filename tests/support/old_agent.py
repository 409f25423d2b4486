"""An A2A 0.3 agent over JSON-RPC whose executor raises, with the same bytes as the SDK 0.3.26.

Its stream breaks off after the Task, ``tasks/resubscribe`` is refused since nothing is left to read, and
``tasks/get`` reports *working* forever. A message that answers an input request does the same; the first word ``ask``
makes it request input.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, cast

import orjson
from aiohttp import web

from passerelle.core.wire.json import Json, JsonObject
from tests.support.loopback_server import end_runner

_TASK: Final = "old-task-1"


@dataclass
class OldAgent:
    """``streams``: whether its card declares streaming. ``state``: of its only task. ``calls``: the methods."""

    streams: bool = True
    state: str = "working"
    calls: list[str] = field(default_factory=list[str])
    url: str = ""
    _context: str = "old-context"

    @property
    def sends(self) -> list[str]:
        """The methods of the calls that carried a message."""
        return [method for method in self.calls if method.startswith("message/")]

    async def show_card(self, _request: web.Request) -> web.Response:
        card: JsonObject = {
            "protocolVersion": "0.3.0",
            "name": "old",
            "description": "Raises.",
            "version": "1.0.0",
            "url": self.url + "/",
            "preferredTransport": "JSONRPC",
            "capabilities": {"streaming": self.streams},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }
        return web.Response(body=orjson.dumps(card), content_type="application/json")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        call = cast("JsonObject", orjson.loads(await request.read()))
        method, params = str(call["method"]), cast("JsonObject", call["params"])
        self.calls.append(method)
        if method in {"message/stream", "message/send"}:
            return await self._take(request, call, params)
        if method == "tasks/get":
            return _reply(call, {"result": self._show()})
        return _reply(call, {"error": {"code": -32001, "message": "Task not found"}})

    async def _take(
        self, request: web.Request, call: JsonObject, params: JsonObject
    ) -> web.StreamResponse:
        message = cast("JsonObject", params["message"])
        self._context = str(message.get("contextId") or self._context)
        text = str(cast("list[JsonObject]", message["parts"])[0].get("text", ""))
        self.state = "input-required" if text.startswith("ask") else "working"
        if call["method"] == "message/send":
            if self.state == "working":
                return _reply(call, {"error": {"code": -32603, "message": "boom"}})
            return _reply(call, {"result": self._show()})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        body: JsonObject = {"jsonrpc": "2.0", "id": call["id"], "result": self._show()}
        await stream.write(b"data: " + orjson.dumps(body) + b"\n\n")
        if self.state == "working" and request.transport is not None:
            request.transport.abort()
        return stream

    def _show(self) -> JsonObject:
        status: JsonObject = {"state": self.state, "timestamp": "2026-01-01T00:00:00Z"}
        return {"kind": "task", "id": _TASK, "contextId": self._context, "status": status}


def _reply(call: JsonObject, body: JsonObject) -> web.Response:
    answer: dict[str, Json] = {"jsonrpc": "2.0", "id": call["id"], **body}
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


@asynccontextmanager
async def run_old_agent(*, streams: bool = True) -> AsyncGenerator[OldAgent, None]:
    """Serves the agent on a free loopback port."""
    agent = OldAgent(streams)
    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", agent.show_card)
    app.router.add_post("/", agent.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = cast("tuple[str, int]", runner.addresses[0])[:2]
    agent.url = f"http://{host}:{port}"
    try:
        yield agent
    finally:
        await end_runner(runner)
