"""The processes of a conformance run: the agent, a second one with a required extension, and their gateway.

``ada`` and ``bob`` are callers with a key each, ``reader`` may only read, ``stranger`` may call another agent only.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
import httpx
import orjson

from passerelle.demo.processes import GatewayProcess, start
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from tests.conformance.callers import (
    GRPC,
    HTTP_JSON,
    JSONRPC,
    WEBSOCKET,
    Caller,
    HttpJsonCaller,
    Json,
    JsonRpcCaller,
)
from tests.conformance.grpc_caller import GrpcCaller
from tests.conformance.socket_caller import open_socket
from tests.support.ports import find_free_port
from tests.support.processes import run_gateway
from tests.support.scripted_peer import ScriptedPeer

AGENT: Final = "conformance"
DEMANDING: Final = "demanding"
LEAKY: Final = "leaky"
VANISHING: Final = "vanishing"
MARKER: Final = "xqleak"
_SKILL: Final[Json] = {"id": "leaky", "name": "leaky", "description": "Leaks.", "tags": ["test"]}
ROOT: Final = Path(__file__).resolve().parents[2]
KEYS: Final = {name: f"key-of-{name}" for name in ("ada", "bob", "reader", "stranger")}
_SCOPES: Final[dict[str, list[str]]] = {"reader": ["tasks:read"]}
_MAY_CALL: Final[dict[str, list[str]]] = {"stranger": [DEMANDING]}
_HOST: Final = "127.0.0.1"
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_NUMBERS: Final = iter(range(1, 1_000_000))


@dataclass(frozen=True, slots=True)
class Agent:
    """A running conformance agent."""

    url: str
    grpc: str

    async def release(self, message_id: str, steps: int = 1) -> None:
        """Lets the behaviour of a message take further steps."""
        async with open_http() as http:
            await http.post(f"{self.url}/release/{message_id}", params={"steps": steps})

    async def list_received(self, message_id: str) -> list[Json]:
        """Every message with that id, as the agent received it."""
        async with open_http() as http:
            found: list[Json] = (await http.get(f"{self.url}/received/{message_id}")).json()
            return found

    async def list_versions(self) -> list[str]:
        """The versions that calls to the agent named."""
        async with open_http() as http:
            found: list[str] = (await http.get(f"{self.url}/versions")).json()
            return found


@dataclass(frozen=True, slots=True)
class Site:
    """The processes of a run."""

    agent: Agent
    demanding: Agent
    gateway: GatewayProcess
    grpc_address: str
    leaky: ScriptedPeer
    """An agent whose ids all begin with ``MARKER``. It has its port, and listens while a test lets it."""
    vanishing: ScriptedPeer
    """Another one, for tests that stop it: the gateway then does not call it for a while."""

    def find_url(self, agent: str = AGENT) -> str:
        """The URL of an agent at the gateway."""
        return f"{self.gateway.url}/agents/{agent}"

    @asynccontextmanager
    async def open_caller(
        self, binding: str = JSONRPC, who: str | None = "ada", agent: str = AGENT
    ) -> AsyncGenerator[Caller]:
        """A caller of an agent over a binding; ``who`` is a name in ``KEYS``, None calls without a credential."""
        headers = {} if who is None else {"Authorization": f"Bearer {KEYS[who]}"}
        if binding == GRPC:
            async with grpc.aio.insecure_channel(self.grpc_address) as channel:
                yield GrpcCaller(channel, agent, headers)
            return
        if binding == WEBSOCKET:
            async with open_socket(self.find_url(agent), headers) as caller:
                yield caller
            return
        async with open_http(headers) as http:
            yield CALLERS[binding](http, self.find_url(agent))

    async def read_card(self, agent: str = AGENT, **headers: str) -> httpx.Response:
        """The public card."""
        path = f"{self.find_url(agent)}/.well-known/agent-card.json"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with open_http() as http:
            return await http.get(path, headers={"A2A-Version": "1.0", **named})


CALLERS: Final[dict[str, Callable[[httpx.AsyncClient, str], Caller]]] = {
    JSONRPC: JsonRpcCaller,
    HTTP_JSON: HttpJsonCaller,
}


@asynccontextmanager
async def run_agent(folder: Path, name: str, *flags: str) -> AsyncGenerator[Agent]:
    """A conformance agent on free ports."""
    module = "tests.support.conformance_agent"
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    child = start(name, (module, *flags), folder, environ)
    try:
        said = orjson.loads(await child.read_line("{"))
        yield Agent(said["url"], said["grpc"])
    finally:
        await child.stop()


@asynccontextmanager
async def run_site(folder: Path, **settings: object) -> AsyncGenerator[Site]:
    """The three processes."""
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(run_agent(folder, "agent"))
        demanding = await stack.enter_async_context(
            run_agent(folder, "demanding", "--required-extension")
        )
        leaky, vanishing = await make_leaky(), await make_leaky()
        agents = {AGENT: agent.url, DEMANDING: demanding.url, LEAKY: leaky.url}
        agents[VANISHING] = vanishing.url
        port = find_free_port()
        chosen: dict[str, Any] = {**make_settings(port), "clients": list_clients(), **settings}
        gateway = await stack.enter_async_context(run_gateway(folder, agents, **chosen))
        # The gRPC library keeps threads and files after its first use: use it before the tests, not in one of them.
        async with grpc.aio.insecure_channel(f"{_HOST}:{port}") as channel:
            await channel.channel_ready()
            yield Site(agent, demanding, gateway, f"{_HOST}:{port}", leaky, vanishing)


async def make_leaky() -> ScriptedPeer:
    """The agent that puts its marker into everything except its card, which is public."""
    peer = ScriptedPeer(MARKER)
    await peer.start()
    peer.card |= {"name": "Leaky", "skills": [_SKILL]}
    await peer.stop()
    return peer


def make_settings(grpc_port: int) -> Json:
    """The settings of a gateway in front of a conformance agent."""
    return {
        "card_shape": "v1",
        # The official kit reads each binding from the card.
        "card": {"interfaces": ["JSONRPC", "HTTP+JSON", "GRPC", "WEBSOCKET"]},
        "grpc": {"port": grpc_port, "default_agent": AGENT},
        "webhooks": {"allow": [f"http://{_HOST}:*", "http://localhost:*", "https://example.com"]},
    }


def list_clients() -> list[Json]:
    """The callers in the configuration."""
    return [
        {
            "name": name,
            "key_hash": hash_key(Secret(key)),
            "may_call": _MAY_CALL.get(name, ["*"]),
            "scopes": _SCOPES.get(name, ["a2a:call", "tasks:read", "tasks:write"]),
        }
        for name, key in KEYS.items()
    ]


def write(prefix: str, text: str = "hello", **members: object) -> Json:
    """A message with a unique id that begins with ``prefix``."""
    return {
        "messageId": f"{prefix}-{os.getpid()}-{next(_NUMBERS)}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **members,
    }


def open_http(headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """A bare client. Loading default certificates would take longer than a whole test."""
    return httpx.AsyncClient(headers=headers, timeout=20, trust_env=False, verify=_NO_AUTHORITIES)


def open_as(who: str) -> httpx.AsyncClient:
    """A bare client with the key of a caller."""
    return open_http({"Authorization": f"Bearer {KEYS[who]}", "A2A-Version": "1.0"})


def find_origin(url: str) -> str:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
