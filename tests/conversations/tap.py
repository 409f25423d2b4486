"""A proxy in front of every HTTP agent: it records received messages, and holds answers back on request.

It serves the card of each agent below a separate path ``/<name>``, so that one agent process has many cards.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, cast

import aiohttp
import orjson
from aiohttp import web

from tests.conversations.forms import Json, find_operation, inner
from tests.conversations.script import EXTENSION
from tests.support.loopback_server import end_runner

_HELD_S: Final = 60.0
_TASK: Final = re.compile(rb'"(?:task_?[iI]d|id)": ?"([^"]+)"')
_HOP: Final = {"host", "connection", "transfer-encoding", "content-length", "keep-alive", "te"}


@dataclass(frozen=True, slots=True)
class Received:
    """One message as an agent received it: the operation, the params, and the headers in lower case."""

    operation: str
    params: Json
    headers: Mapping[str, str]


@dataclass(slots=True)
class Log:
    """Every message that agents received, by the label of its caller; ``holds`` names answers that wait."""

    received: dict[str, list[Received]] = field(default_factory=lambda: defaultdict(list))
    holds: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Labels by task: a message that the gateway writes itself has no label."""

    def keep(self, received: Received) -> str:
        """Records it; returns its label and number, by which its answer may be held."""
        message = inner(received.params, "message")
        label = str(inner(message, "metadata").get("label", ""))
        label = label or self.labels.get(str(message.get("taskId", "")), "")
        self.received[label].append(received)
        return f"{label}#{len(self.received[label])}"

    def learn(self, name: str, said: bytes) -> None:
        """Records the label of the tasks that an answer names."""
        for task in _TASK.findall(said):
            self.labels.setdefault(task.decode(), name.partition("#")[0])

    async def pass_on(self, name: str) -> None:
        """Returns once the answer to a message may be sent."""
        held = self.holds.get(name)
        if held is not None:
            async with asyncio.timeout(_HELD_S):
                await held.wait()


@dataclass(slots=True)
class Tap:
    """The proxy. ``upstreams`` are the URLs of agents by name, ``cards`` the cards that it serves."""

    log: Log
    http: aiohttp.ClientSession
    url: str = ""
    upstreams: dict[str, str] = field(default_factory=dict[str, str])
    cards: dict[str, Json] = field(default_factory=dict[str, Json])

    def add(self, name: str, upstream: str, interface: tuple[str, str], *, streams: bool) -> None:
        """Adds an agent."""
        self.upstreams[name] = upstream
        self.cards[name] = make_card(name, f"{self.url}/{name}", interface, streams=streams)

    async def show_card(self, request: web.Request) -> web.Response:
        return web.json_response(self.cards[request.match_info["name"]])

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Forwards one call, and its answer as it arrives."""
        name, tail = request.match_info["name"], request.match_info["tail"]
        body = await request.read()
        told = self._note(request, tail, body)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        url = self.upstreams[name] + (f"/{tail}" if tail else "")
        async with self.http.request(
            request.method, url, data=body or None, headers=headers, params=request.query
        ) as answer:
            if told:
                await self.log.pass_on(told)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            kept.pop("Content-Encoding", None)
            response = web.StreamResponse(status=answer.status, headers=kept)
            # The caller may have disconnected meanwhile; the agent still has the message.
            with suppress(aiohttp.ClientConnectionError):
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    if told:
                        self.log.learn(told, chunk)
                    await response.write(chunk)
        return response

    def _note(self, request: web.Request, tail: str, body: bytes) -> str:
        said = cast("Json", orjson.loads(body)) if body else Json()
        if "jsonrpc" in said:
            operation, params = find_operation(str(said.get("method"))), inner(said, "params")
        else:
            operation, params = find_operation(tail), said
        if "message" not in params:
            return ""
        headers = {key.lower(): value for key, value in request.headers.items()}
        return self.log.keep(Received(operation, params, headers))


def make_card(name: str, url: str, interface: tuple[str, str], *, streams: bool) -> Json:
    """The card of an agent with one interface, in the form of its version."""
    binding, version = interface
    card: Json = {
        "name": name,
        "description": "Asks and is answered.",
        "version": "1.0.0",
        "capabilities": {"streaming": streams, "extensions": [{"uri": EXTENSION}]},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "talk", "name": "talk", "description": "Talks.", "tags": ["test"]}],
    }
    if version == "1.0":
        offered = {"url": url, "protocolBinding": binding, "protocolVersion": version}
        return card | {"supportedInterfaces": [offered]}
    return card | {"url": url, "preferredTransport": binding, "protocolVersion": "0.3.0"}


@asynccontextmanager
async def run_tap(log: Log) -> AsyncGenerator[Tap]:
    """The proxy on a free loopback port, without agents."""
    # The agent may close a kept connection at the moment of its reuse.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(auto_decompress=False, connector=connector) as http:
        tap = Tap(log, http)
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/{name}/.well-known/agent-card.json", tap.show_card)
        app.router.add_route("*", "/{name}", _with_tail(tap))
        app.router.add_route("*", "/{name}/{tail:.*}", tap.forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tap.url = f"http://127.0.0.1:{cast('tuple[str, int]', runner.addresses[0])[1]}"
        try:
            yield tap
        finally:
            await end_runner(runner)


def _with_tail(tap: Tap) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def forward(request: web.Request) -> web.StreamResponse:
        request.match_info["tail"] = ""
        return await tap.forward(request)

    return forward
