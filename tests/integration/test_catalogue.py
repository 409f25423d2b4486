"""The list of agents: filters by caller, skill and tag, and the status of agents that cannot be reached."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from passerelle.a2a_mapping.cards import PublicEdge
from passerelle.control.catalogue import Catalogue
from passerelle.core.commands import ListAgents
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.wire.json import JsonObject
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio
OWNER = Principal("owner", scopes=frozenset(AccessScope))
TAGS = {"writer": frozenset({"standard"})}


def make_card(url: str) -> JsonObject:
    skill: JsonObject = {
        "id": "sum",
        "name": "Summarize",
        "description": f"at {url}",
        "tags": ["text"],
    }
    return {
        "name": "Writer",
        "description": "Writes.",
        "version": "3",
        "supportedInterfaces": [
            {"url": f"{url}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "skills": [skill],
    }


@dataclass
class HandClock:
    """A clock set by the test."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Scene:
    """A reachable agent and one that was never reachable."""

    peer: ScriptedPeer
    peers: PeerRegistry
    catalogue: Catalogue
    clock: HandClock

    async def names(self, query: ListAgents, principal: Principal = OWNER) -> list[str]:
        listed: Any = await self.catalogue.list(principal, query)
        return [entry["name"] for entry in listed["agents"]]

    async def entries(self) -> dict[str, Any]:
        listed: Any = await self.catalogue.list(OWNER, ListAgents())
        return {entry["name"]: entry for entry in listed["agents"]}


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    clock = HandClock()
    async with ScriptedPeer("writer") as peer:
        peer.card = make_card(peer.url)
        configs = [PeerConfig("writer", peer.url), PeerConfig("gone", "http://127.0.0.1:9")]
        peers = PeerRegistry(configs, clock)
        edge = PublicEdge(versions=("1.0",))
        catalogue = Catalogue(
            peers, lambda name: TAGS.get(name, frozenset()), edge, "https://gateway.example"
        )
        try:
            yield Scene(peer, peers, catalogue, clock)
        finally:
            await peers.close()


async def test_agents_are_listed_with_skills_and_gateway_urls(scene: Scene) -> None:
    writer = (await scene.entries())["writer"]
    url = "https://gateway.example/agents/writer"
    assert (writer["url"], writer["status"], writer["tags"]) == (url, "ready", ["standard"])
    assert (writer["title"], writer["version"].split("+")[0]) == ("Writer", "3")
    assert writer["skills"] == [
        {"id": "sum", "name": "Summarize", "description": f"at {url}", "tags": ["text"]}
    ]
    assert {entry["url"] for entry in writer["interfaces"]} == {url}
    assert scene.peer.url not in str(writer)


async def test_agent_never_reached_is_listed_as_unreachable(scene: Scene) -> None:
    gone = (await scene.entries())["gone"]
    assert (gone["status"], gone["skills"]) == ("unreachable", [])


async def test_agent_no_longer_reachable_is_stale(scene: Scene) -> None:
    await scene.entries()
    await scene.peer.stop()
    scene.clock.ms += 86_400_000
    writer = (await scene.entries())["writer"]
    assert (writer["status"], len(writer["skills"])) == ("stale", 1)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (ListAgents(), ["writer", "gone"]),
        (ListAgents(skill="sum"), ["writer"]),
        (ListAgents(skill="SUMMARIZE"), ["writer"]),
        (ListAgents(skill="paint"), []),
        (ListAgents(tag="Standard"), ["writer"]),
        (ListAgents(tag="text"), ["writer"]),
        (ListAgents(tag="sum"), []),
        (ListAgents(skill="sum", tag="other"), []),
    ],
)
async def test_list_is_filtered_by_skill_and_tag(
    scene: Scene, query: ListAgents, found: list[str]
) -> None:
    assert await scene.names(query) == found


async def test_list_has_only_agents_that_the_caller_may_call(scene: Scene) -> None:
    narrow = Principal("n", scopes=frozenset({AccessScope.CALL}), agents=frozenset({"gone"}))
    assert await scene.names(ListAgents(), narrow) == ["gone"]
    reader = Principal("r", scopes=frozenset({AccessScope.READ_TASKS}))
    assert await scene.names(ListAgents(), reader) == []
