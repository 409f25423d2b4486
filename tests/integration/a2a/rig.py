"""The A2A interface on a real socket, over a real service and engine, in front of a scripted peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson

from passerelle.a2a_mapping.rpc import Method
from passerelle.channels.hub import Hub, HubSettings
from passerelle.control.catalogue import Catalogue
from passerelle.control.service import Service
from passerelle.core.batch import Incarnation
from passerelle.core.ids import ALL_SHARDS
from passerelle.core.ports.leases import LeaseRequest
from passerelle.core.principal import AccessScope
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.gateway.a2a.cards import PeerExtendedCards
from passerelle.gateway.a2a.face import Face, FaceParts, FaceSettings, make_face
from passerelle.gateway.a2a.push import ServicePush
from passerelle.gateway.dependencies import Dependencies
from passerelle.gateway.parts import Parts, make_parts
from passerelle.gateway.server import Server, bind
from passerelle.gateway.settings.callers import GrantSettings
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Policy
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.sealer import Sealer
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.memory.room import MemoryRoom
from passerelle.runtime.observability.metrics import Metrics
from passerelle.store.store import Store, StoreSettings
from passerelle.webhooks.webhooks import Webhooks
from tests.support.clients import make_client
from tests.support.engine import Server as Engine
from tests.support.engine import ask
from tests.support.harness import make_free
from tests.support.known_keys import make_authenticator
from tests.support.scripted_peer import ScriptedPeer

# A whole JSON response; a missing key fails the test by itself.
Answer = dict[str, Any]
OWNER: Final = "owner-token"
CLIENTS: Final = {
    "other": make_client("other", "other-key", "*"),
    "narrow": make_client("narrow", "narrow-key", "gone"),
    "till": make_client("till", "till-key", "gone").model_copy(
        update={"may_call": (GrantSettings(agent="echo", operations=(Method.GET_TASK,)),)}
    ),
    "reader": make_client("reader", "reader-key", "*", scopes=(AccessScope.READ_TASKS,)),
}
INSTANCE: Final = Incarnation("inst_00rig", 1)
PATIENCE: Final = Timeouts(poll_s=0.05, poll_max_s=0.2, parked_poll_s=0.05, parked_poll_max_s=0.2)


@dataclass
class Rig:
    """The parts of a running A2A interface. ``echo`` is the scripted peer; the agent ``gone`` is unreachable."""

    url: str
    peer: ScriptedPeer
    parts: Parts
    face: Face
    metrics: Metrics
    peers: PeerRegistry
    http: httpx.AsyncClient
    engine: Engine
    appends: list[str]
    """The result of each append."""
    terms: dict[str, PeerTerms]
    """The configured terms of agents, by name."""
    rules: list[Policy]
    """Holds one element: the current policy."""
    made: list[str] = field(default_factory=list[str])

    @property
    def service(self) -> Service:
        """The service that the edges call."""
        return self.parts.service

    def message(
        self, text: str, *, configuration: JsonObject | None = None, **members: Json
    ) -> JsonObject:
        """Returns SendMessage params; ``members`` are members of the message."""
        self.made.append(f"m-{len(self.made)}")
        message: JsonObject = {
            "messageId": self.made[-1],
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **members,
        }
        params: JsonObject = {"message": message}
        if configuration is not None:
            params["configuration"] = configuration
        return params

    async def post(
        self, method: str, params: Mapping[str, Json], *, agent: str = "echo", **headers: str
    ) -> httpx.Response:
        """Sends a JSON-RPC request with the id 7."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return await self.http.post(f"/agents/{agent}", json=body, headers=headers)

    async def call(self, method: str, params: Mapping[str, Json], *, agent: str = "echo") -> Answer:
        """Returns the result of a JSON-RPC call that succeeds."""
        answer = cast("Answer", (await self.post(method, params, agent=agent)).json())
        assert "error" not in answer, answer
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", 7)
        return cast("Answer", answer["result"])

    async def refuse(
        self, method: str, params: Mapping[str, Json], *, agent: str = "echo"
    ) -> Answer:
        """Returns the error of a JSON-RPC call that fails."""
        answer = cast("Answer", (await self.post(method, params, agent=agent)).json())
        assert set(answer) == {"jsonrpc", "id", "error"}, answer
        assert set(answer["error"]) == {"code", "message", "data"}
        return cast("Answer", answer["error"])

    async def send(self, text: str, **members: Json) -> Answer:
        """Sends a message; returns its task."""
        return cast(
            "Answer",
            (await self.call("SendMessage", self.message(text, configuration=None, **members)))[
                "task"
            ],
        )

    @asynccontextmanager
    async def stream(
        self, method: str, params: Mapping[str, Json], **headers: str
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        """Yields the events of a JSON-RPC stream as they arrive."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        async with self.http.stream("POST", "/agents/echo", json=body, headers=headers) as response:
            assert response.headers["content-type"] == "text/event-stream", await response.aread()
            yield read_events(response)

    async def collect(self, method: str, params: Mapping[str, Json]) -> list[Event]:
        """Returns all events of a JSON-RPC stream."""
        async with self.stream(method, params) as events:
            return [event async for event in events]

    def list_keys(self) -> set[bytes]:
        """Returns every key in the store."""
        return set(cast("list[bytes]", ask(self.engine.url, "KEYS", "*")))

    def counted(self) -> int:
        """Counts the sends that the peer received."""
        return self.peer.count("SendMessage") + self.peer.count("SendStreamingMessage")


@dataclass
class Event:
    """One server-sent event with its fields as on the wire."""

    data: str = ""
    id: str = ""
    retry: str = ""
    name: str = ""

    @property
    def result(self) -> Answer:
        """The StreamResponse in a JSON-RPC event."""
        return cast("Answer", orjson.loads(self.data)["result"])


async def read_events(response: httpx.Response) -> AsyncIterator[Event]:
    """Splits events at blank lines. Also yields a block without data, which would be an error of the gateway."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            yield Event(
                fields.get("data", ""),
                fields.get("id", ""),
                fields.get("retry", ""),
                fields.get("event", ""),
            )
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            assert name not in fields, "one line of each kind per event"
            fields[name] = value
    assert not fields, "the last event is complete"


@asynccontextmanager
async def run_rig(
    engine: Engine,
    directory: Path,
    settings: FaceSettings | None = None,
    others: Sequence[ScriptedPeer] = (),
    memory: MemoryRoom | None = None,
    sealer: Sealer | None = None,
) -> AsyncGenerator[Rig]:
    """Starts everything and stops it in reverse order. ``others`` are further agents, started by the test.

    With a ``sealer`` push notification configs are stored; no instance delivers them.
    """
    clock, ids = SystemClock(), SystemIds()
    appends: list[str] = []
    async with (
        ScriptedPeer("echo") as peer,
        await Store.open(StoreSettings(engine.url, directory)) as store,
        Hub(store.log, store.hints, HubSettings(lambda: 0.5, linger_s=0.05)) as hub,
    ):
        for shard in ALL_SHARDS:
            request = LeaseRequest(shard, INSTANCE, opens=True, wants_duty=False)
            await store.leases.extend(request, 60_000)
        peers = PeerRegistry(
            [
                PeerConfig("echo", peer.url),
                PeerConfig("gone", "http://127.0.0.1:9"),
                *(PeerConfig(other.name, other.url) for other in others),
            ],
            clock,
        )
        terms: dict[str, PeerTerms] = {}
        rules = [DEFAULT_POLICY]
        parts = make_parts(
            Dependencies(
                store=store,
                hub=hub,
                clock=clock,
                ids=ids,
                find_peer=peers.find,
                drives=lambda _: INSTANCE,
                find_sender=lambda _: INSTANCE,
                find_terms=lambda agent: terms.get(agent, PeerTerms(PATIENCE)),
                find_rules=lambda: rules[0],
                timeouts=PATIENCE,
                spending=make_free(store, clock),
                tally=lambda result, _seconds, _why: appends.append(result),
                catalogue=Catalogue(peers),
                wake_duties=lambda _shard: None,
            ),
            Webhooks(sealer),
        )
        authenticator = make_authenticator(Secret(OWNER), CLIENTS.values())
        metrics = Metrics()
        extended = _make_extended_cards(peers, settings or FaceSettings())
        face_parts = FaceParts(
            parts.service,
            authenticator,
            peers,
            metrics,
            clock,
            ids,
            push=ServicePush(parts.service) if sealer else None,
            extended_cards=extended,
            awaits_approval=lambda agent: terms.get(agent, PeerTerms()).await_approval,
            memory=memory or MemoryRoom(),
        )
        face = make_face(face_parts, settings)
        listener, stop = bind("127.0.0.1", 0), asyncio.Event()
        serving = asyncio.create_task(Server(face, listener, face.drain).serve(stop))
        headers = {"Authorization": f"Bearer {OWNER}", "A2A-Version": "1.0"}
        try:
            async with httpx.AsyncClient(
                base_url=listener.url, headers=headers, timeout=20
            ) as http:
                yield Rig(
                    listener.url,
                    peer,
                    parts,
                    face,
                    metrics,
                    peers,
                    http,
                    engine,
                    appends,
                    terms,
                    rules,
                )
        finally:
            stop.set()
            await serving
            await parts.dispatch.drain()
            await peers.close()


def _make_extended_cards(peers: PeerRegistry, settings: FaceSettings) -> PeerExtendedCards | None:
    if not settings.cards.edge.schemes:
        return None
    return PeerExtendedCards(
        peers,
        settings.cards,
        SystemClock(),
        public_url=settings.public_url,
        local_url="http://here",
    )
