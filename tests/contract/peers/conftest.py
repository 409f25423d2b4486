"""Peers for the suite, and clients of them that are closed at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from passerelle.core.peer import Peer
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.runtime.memory.room import MemoryRoom
from tests.support.scripted_peer import ScriptedPeer
from tests.support.sdk_agent import run_sdk_agent


@dataclass
class HandClock:
    """A clock that a test moves."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Clients:
    """Makes peer clients whose connections the fixture closes."""

    clock: HandClock = field(default_factory=HandClock)
    registries: list[PeerRegistry] = field(default_factory=list[PeerRegistry])
    memory: MemoryRoom | None = None
    """The memory budget for large answers."""

    def connect(self, config: PeerConfig) -> Peer:
        registry = PeerRegistry([config], self.clock, memory=self.memory)
        self.registries.append(registry)
        return registry.find(config.name)

    async def close(self) -> None:
        for registry in self.registries:
            await registry.close()


@pytest.fixture
async def clients(anyio_backend: str) -> AsyncGenerator[Clients, None]:
    made = Clients()
    yield made
    await made.close()


@pytest.fixture
async def scripted(anyio_backend: str) -> AsyncGenerator[ScriptedPeer, None]:
    async with ScriptedPeer("scripted") as peer:
        yield peer


@pytest.fixture
def connect(clients: Clients, scripted: ScriptedPeer) -> Callable[..., Peer]:
    """A client of the scripted peer, with the given timeouts."""

    def make(*, idle_timeout_s: float = 120.0, total_timeout_s: float = 1800.0) -> Peer:
        config = PeerConfig(
            "scripted",
            scripted.url,
            idle_timeout_s=idle_timeout_s,
            total_timeout_s=total_timeout_s,
        )
        return clients.connect(config)

    return make


@pytest.fixture(
    params=[
        "scripted",
        "JSONRPC/1.0",
        "HTTP+JSON/1.0",
        "GRPC/1.0",
        "JSONRPC/0.3",
        "HTTP+JSON/0.3",
        "GRPC/0.3",
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    """The agent under test: the scripted one, or one of the SDK for each kind of interface."""
    return cast("str", request.param)


@pytest.fixture
async def peer(kind: str, clients: Clients) -> AsyncGenerator[Peer, None]:
    if kind == "scripted":
        async with ScriptedPeer("scripted") as agent:
            yield clients.connect(PeerConfig("scripted", agent.url))
            await clients.close()
    else:
        async with run_sdk_agent(kind) as agent:
            dialled = frozenset({agent.dialled}) if agent.dialled else frozenset[str]()
            yield clients.connect(PeerConfig("sdk", agent.url, allowed_origins=dialled))
            await clients.close()
