"""The JavaScript client in Node, remote-controlled: a test talks to it over a separate socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.support.waiting import wait_until

CLIENT: Final = Path(__file__).resolve().parents[2] / "clients/js"
_WITHIN_S: Final = 20.0


@dataclass(slots=True)
class ScriptedClient:
    """One channel in one runtime; ``items`` are those of all its streams, in order of arrival."""

    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    statuses: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ended: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Results of the tests that it ran by itself."""
    _control: ServerConnection | None = None
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(
        default_factory=dict[int, "asyncio.Future[dict[str, Any]]"]
    )
    _orders: int = 0

    async def order(self, order: str, **what: object) -> Any:  # noqa: ANN401 - JSON, as a test reads it
        """Executes an order; returns the whole answer, ``{"result": …}`` or ``{"error": …}``."""
        self._orders += 1
        number = self._orders
        self._answers[number] = asyncio.get_running_loop().create_future()
        assert self._control is not None, "the puppet has not dialled in"
        await self._control.send(orjson.dumps({"id": number, "order": order, **what}).decode())
        async with asyncio.timeout(_WITHIN_S):
            return await self._answers[number]

    async def do(self, order: str, **what: object) -> Any:  # noqa: ANN401 - JSON, as a test reads it
        """Executes an order that must succeed; returns its result."""
        answer = await self.order(order, **what)
        assert "result" in answer, answer
        return answer["result"]

    async def await_state(self, state: str) -> None:
        """Waits until the channel's last status is ``state``."""
        await wait_until(
            lambda: bool(self.statuses) and self.statuses[-1]["state"] == state,
            _WITHIN_S,
            f"the channel is {state}",
        )

    def events(self, stream: str) -> list[dict[str, Any]]:
        """The stored events that the application saw, without those in a snapshot."""
        return [
            item["data"]
            for item in self.items
            if item["type"] == "event" and item["stream"] == stream and not item["replayed"]
        ]

    async def listen(self, control: ServerConnection) -> None:
        """Reads reports of the runtime until it disconnects."""
        self._control = control
        with contextlib.suppress(ConnectionClosed):  # a killed page closes without a handshake
            async for message in control:
                self._take(cast("dict[str, Any]", orjson.loads(message)))

    def _take(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers.pop(said["id"]).set_result(said)
        elif "item" in said:
            self.items.append(said["item"])
        elif "status" in said:
            self.statuses.append(said["status"])
        elif "ended" in said:
            self.ended.append(said)
        elif "results" in said:
            self.results = said["results"]


@dataclass(slots=True)
class ClientHost:
    """Runs clients: one folder for their stored data, one port."""

    folder: Path
    _server: Server
    _waiting: list[ScriptedClient]

    @contextlib.asynccontextmanager
    async def open_client(self) -> AsyncGenerator[ScriptedClient]:
        """A connected client; its process is killed at the end."""
        scripted = ScriptedClient()
        self._waiting.append(scripted)
        process = await asyncio.create_subprocess_exec(
            *self._compose_command(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await wait_until(
                lambda: scripted not in self._waiting, _WITHIN_S, "the puppet dials in"
            )
            yield scripted
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _compose_command(self) -> list[str]:
        port = self._server.sockets[0].getsockname()[1]
        script = str(CLIENT / "test/puppet_node.js")
        flags = ["--experimental-websocket", "--no-warnings"]
        kept = str(self.folder / "cursors.json")
        return ["node", *flags, script, f"ws://127.0.0.1:{port}/control", kept]


@contextlib.asynccontextmanager
async def open_client_host(folder: Path) -> AsyncGenerator[ClientHost]:
    """A host for clients, which are opened one after the other."""
    waiting: list[ScriptedClient] = []

    async def meet(control: ServerConnection) -> None:
        await waiting.pop().listen(control)

    async with serve(meet, "127.0.0.1", 0) as server:
        yield ClientHost(folder, server, waiting)
