"""Runs whole gateways in process, with client limits, and a scripted peer: the fixture of the callers tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson

from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.a2a.face import Face
from passerelle.gateway.assembly import Gateway, open_gateway
from passerelle.gateway.auth.access import Access, open_access
from passerelle.gateway.auth.keys import hash_key
from passerelle.gateway.edges import make_edges
from passerelle.gateway.server import Server, bind
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.records.places import name_home
from tests.support.engine import ask
from tests.support.scripted_peer import ScriptedPeer

Answer = dict[str, Any]
KEY: Final = "00" * 32


@dataclass
class Instance:
    """A running gateway instance."""

    gateway: Gateway
    access: Access
    settings: Settings
    http: httpx.AsyncClient
    face: Face
    _sent: int = 0

    async def call(
        self, key: str, method: str, params: JsonObject, agent: str = "echo"
    ) -> httpx.Response:
        """Sends a JSON-RPC call with a client's key."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Authorization": f"Bearer {key}"}
        return await self.http.post(f"/agents/{agent}", json=body, headers=headers)

    async def send(
        self, key: str, text: str = "hello", agent: str = "echo", **configuration: object
    ) -> httpx.Response:
        """Sends SendMessage with a client's key."""
        self._sent += 1
        return await self.call(key, "SendMessage", self.message(text, **configuration), agent)

    def message(self, text: str, **configuration: object) -> JsonObject:
        """Returns the parameters of SendMessage."""
        message: JsonObject = {
            "messageId": f"m-{self._sent}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
        return {"message": message, "configuration": cast("JsonObject", configuration)}

    async def read_home(self, client: str) -> list[Answer]:
        """Returns the events of a client's home session."""
        return await self.read_session(name_home(Principal(client)))

    async def read_session(self, session: str) -> list[Answer]:
        """Returns the events of a session."""
        log = self.gateway.store.log
        entries = await log.read_page(StreamRef(StreamKind.SESSION, session), 0, 1000)
        return [orjson.loads(entry.data) for entry in entries]


@dataclass
class Rig:
    """The engine, the peer and the exit stack of a test. ``url`` is the engine's."""

    url: str
    folder: Path
    peer: ScriptedPeer
    stack: AsyncExitStack

    async def start(self, **settings: object) -> Instance:
        """Starts a gateway on the engine; ``clients`` name their key in clear text."""
        clients = cast("list[dict[str, object]]", settings.pop("clients", []))
        agent: dict[str, object] = {"name": "echo", "url": self.peer.url}
        agent |= cast("dict[str, object]", settings.pop("agent", {}))
        settings.setdefault("agents", [agent])
        settings.setdefault("secret_key", KEY)
        given = Settings.model_validate(
            {
                "redis_url": self.url,
                "data_dir": self.folder,
                "clients": [describe(client) for client in clients],
                **settings,
            }
        )
        gateway = await self.stack.enter_async_context(open_gateway(given))
        access = await self.stack.enter_async_context(open_access(given, gateway.store))
        edges = make_edges(gateway, given, access)
        listener, stop = bind("127.0.0.1", 0), asyncio.Event()
        serving = asyncio.create_task(Server(edges.site, listener, edges.drain).serve(stop))

        async def end() -> None:
            stop.set()
            await serving

        self.stack.push_async_callback(end)
        http = httpx.AsyncClient(base_url=listener.url, headers={"A2A-Version": "1.0"}, timeout=20)
        await self.stack.enter_async_context(http)
        return Instance(gateway, access, given, http, edges.face)

    def list_sessions(self) -> list[str]:
        """Returns the ids of all stored sessions."""
        names = cast("list[bytes]", ask(self.url, "KEYS", "*:e:se_*"))
        return [name.decode().rpartition(":")[2] for name in names]

    def counted(self) -> int:
        """Counts the messages that the peer received."""
        return self.peer.count("SendMessage") + self.peer.count("SendStreamingMessage")


def describe(client: dict[str, object]) -> dict[str, object]:
    """Returns a client section. Its key is ``<name>-key``; it may call every agent unless the section restricts it."""
    key = hash_key(Secret(f"{client['name']}-key"))
    return {"key_hash": key, "may_call": ["*"], **client}


@asynccontextmanager
async def run_rig(url: str, folder: Path) -> AsyncGenerator[Rig]:
    """Starts with an empty engine and a peer."""
    ask(url, "FLUSHALL")
    async with open_rig(url, folder) as rig:
        yield rig


@asynccontextmanager
async def open_rig(url: str, folder: Path) -> AsyncGenerator[Rig]:
    """Uses the engine as it is, with a new peer."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(ScriptedPeer("echo"))
        yield Rig(url, folder, peer, stack)
