"""A real engine, a real hub, a real WebSocket server, and the real client: only the control plane is small."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp

from passerelle.channels.endpoint import ChannelEndpoint
from passerelle.channels.fast import FastListener
from passerelle.channels.hub import Hub, HubSettings
from passerelle.channels.limits import ChannelLimits
from passerelle.channels.origins import WebOrigins
from passerelle.channels.replays import Replays
from passerelle.channels.ring import RingBounds
from passerelle.channels.services import (
    ChannelLink,
    ChannelServices,
    LinkFacts,
    StreamGrant,
    StreamName,
    refuse_ticket,
)
from passerelle.channels.states import States
from passerelle.channels.story import LinkFact
from passerelle.channels.texts import Texts
from passerelle.channels.views import FullView, PlainView, TaskView
from passerelle.client.channel import ChannelClient
from passerelle.client.cursor_stores import Cursors
from passerelle.client.items import Event, Gap, GapChoice, Item, LinkStatus, OnGap, Snapshot
from passerelle.core.batch import Appended, Batch, IdempotencyRow, Incarnation, StaleEpoch
from passerelle.core.commands import Authenticator
from passerelle.core.credentials import Credentials
from passerelle.core.errors import NotFound, StoreUnavailable, Unauthenticated
from passerelle.core.events import EncodedEvent
from passerelle.core.ids import STEM_LETTERS, Shard, encode_base32, shard_of
from passerelle.core.ports.deltas import OpenText, TextDelta
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.vocabulary import WithdrawalReason
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.auth.credentials import READER
from passerelle.gateway.server import PromptServer
from passerelle.protocol.cursor import GapReason
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.support.batches import EPOCH, event, mint
from tests.support.harness import OVERSIGHT
from tests.support.spelt_ids import compose_id
from tests.support.waiting import wait_until

ADA = Principal("ada", kind="person", scopes=frozenset(AccessScope) - OVERSIGHT)
BOB = Principal("bob", kind="person", scopes=frozenset(AccessScope) - OVERSIGHT)
MUTE = Principal("mute", kind="service", scopes=frozenset())
TOKENS = {"ada-token": ADA, "bob-token": BOB, "mute-token": MUTE}


BackEnd: TypeAlias = Literal["asgi", "fast"]
OVER_BOTH = pytest.mark.parametrize("backend", ["asgi", "fast"], indirect=True)
"""For a test in which what carries the channel matters."""


class WallClock:
    """The time of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - the rig is where its clock comes from


class RandomIds:
    """Ids as the gateway mints them."""

    def mint(self, prefix: str, shard: Shard) -> str:
        return compose_id(prefix, shard, 0, secrets.randbits(80))

    def draw_letters(self) -> str:
        return encode_base32(secrets.randbits(5 * STEM_LETTERS), STEM_LETTERS)

    def draw(self, bits: int) -> int:
        return secrets.randbits(bits)


class KnownTokens:
    """Authenticates the tokens above."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        if credentials.bearer not in TOKENS:
            raise Unauthenticated("the bearer token is not known")
        return TOKENS[credentials.bearer]


@dataclass
class ControlPlane:
    """Who owns which session, what their state is, and a command that counts its effects per key."""

    store: Store
    owners: dict[str, Principal] = field(default_factory=dict[str, Principal])
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    effects: Counter[str] = field(default_factory=Counter[str])
    asked: list[str] = field(default_factory=list[str])
    error: Exception | None = None
    away: StoreUnavailable | None = None
    pending: tuple[JsonObject, ...] = ()
    hold: asyncio.Event | None = None
    withdrawals: int = 0
    after_snapshot: Callable[[], Awaitable[object]] | None = None

    def foresee(self, principal: Principal, method: str, data: JsonObject) -> None:
        pass

    async def grant(self, principal: Principal, name: StreamName, *, full: bool) -> StreamGrant:
        if self.away is not None:
            raise self.away
        if name.word == "inbox" and name.id in (None, principal.key):
            return StreamGrant(StreamRef(StreamKind.INBOX, principal.key), FullView())
        session = self.tasks.get(name.id or "") if name.word == "task" else name.id
        if session is None or self.owners.get(session) != principal:
            raise NotFound("stream", f"{name.word}:{name.id}")
        stream = StreamRef(StreamKind.SESSION, session)
        if name.word == "task":
            return StreamGrant(stream, TaskView(name.id or ""))
        return StreamGrant(stream, FullView() if full else PlainView())

    async def read_snapshot(
        self, principal: Principal, name: StreamName, grant: StreamGrant
    ) -> JsonObject:
        """The state is the list of all event ids: what a folding client must end up with."""
        entries = await self.store.log.read_page(grant.stream, 0, 100_000)
        if self.after_snapshot is not None:
            await self.after_snapshot()
        first = entries[0].sequence if entries else 1
        return {"events": [entry.event_id for entry in entries], "first": first}

    async def read_pending(
        self, principal: Principal, limit: int
    ) -> tuple[tuple[JsonObject, ...], bool]:
        if self.away is not None:
            raise self.away
        return self.pending[:limit], len(self.pending) > limit

    async def read_withdrawn(
        self, before: Principal, now: Principal
    ) -> list[tuple[str, WithdrawalReason]]:
        """Every pending one, as soon as somebody may decide nothing any more."""
        self.withdrawals += 1
        if self.away is not None:
            raise self.away
        lost = AccessScope.DECIDE in before.scopes and AccessScope.DECIDE not in now.scopes
        return [(str(view["actionId"]), "scope") for view in self.pending] if lost else []

    async def call(
        self, principal: Principal, method: str, data: JsonObject, idem: str | None
    ) -> JsonObject:
        self.asked.append(method)
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        key = idem or f"none-{len(self.asked)}"
        self.effects.setdefault(key, 1)
        return {"method": method, "echo": data, "key": key}


@dataclass
class ToldLinks:
    """What connections told of themselves; nothing becomes a fact here."""

    facts: list[LinkFact] = field(default_factory=list[LinkFact])

    def find_driver(self, owner: str) -> Incarnation | None:
        return None

    def record(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        self.facts.append(fact)
        told = asyncio.get_running_loop().create_future()
        told.set_result(None)
        return told


class ClosedText:
    """An instance that drives no run."""

    def read_blocks(self, session: str) -> list[TextDelta]:
        return []


@dataclass
class Rig:
    """A server and what it stands on."""

    url: str
    port: int
    store: Store
    hub: Hub
    endpoint: ChannelEndpoint
    control: ControlPlane
    services: ChannelServices
    links: ToldLinks
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def make_session(self, owner: Principal = ADA, shard: Shard | None = None) -> str:
        """A session of ``owner``, without a stream yet."""
        session = mint("se", shard or Shard(next(self.numbers) % 64))
        self.control.owners[session] = owner
        return session

    async def append(
        self,
        session: str,
        count: int = 1,
        *,
        epoch: str = EPOCH,
        task: str | None = None,
        size: int = 0,
    ) -> list[str]:
        """Stores events; returns their ids."""
        events = tuple(make_event(task, size) for _ in range(count))
        for first in range(0, count, 64):
            part = events[first : first + 64]
            row = IdempotencyRow(part[0].event_id, "d", b"", 60_000)
            make = partial(Batch, session, part[0].event_id)
            log, shard = self.store.log, shard_of(session)
            result = await log.append(make(log.shard_epoch(shard), epoch, events=part, idem=row))
            if isinstance(result, StaleEpoch):  # a loss was proved meanwhile
                result = await log.append(make(result.epoch, epoch, events=part, idem=row))
            assert isinstance(result, Appended), result
        return [one.event_id for one in events]

    async def ask(self, view: JsonObject) -> None:
        """Opens a question to Ada."""
        self.control.pending = (*self.control.pending, view)
        copies = keys.inbox_open(shard_of(ADA.key), ADA.key)
        packed = pack("HSET", copies, str(view["actionId"]), "{}")
        await self.store.nodes.write(shard_of(ADA.key), packed)

    async def cursor(self, session: str) -> str:
        """The cursor at the end of a session."""
        head = await self.store.log.read_head(StreamRef(StreamKind.SESSION, session))
        assert head is not None
        return f"{head.epoch}.{head.sequence}.{head.chain}"

    def client(
        self,
        device: str = "phone",
        *,
        token: str = "ada-token",
        cursors: Cursors | None = None,
        on_gap: OnGap | None = None,
        url: str | None = None,
        on_status: Callable[[LinkStatus], None] | None = None,
        on_presence: Callable[[tuple[JsonObject, ...]], None] | None = None,
        on_withdrawn: Callable[[str, WithdrawalReason], None] | None = None,
    ) -> ChannelClient:
        """The real client, which tries again quickly."""
        return ChannelClient(
            url or self.url,
            token=token,
            device=device,
            cursors=cursors,
            on_gap=on_gap,
            on_status=on_status,
            on_presence=on_presence,
            on_withdrawn=on_withdrawn,
            jitter=lambda: 0.0005,
        )


def make_event(task: str | None = None, size: int = 0) -> EncodedEvent:
    """An event of a task, with ``size`` further bytes in its payload."""
    made = event()
    if task is None and not size:
        return made
    named = b',"taskId":"%b"' % task.encode() if task else b""
    padding = b'"pad":"%b",' % (b"x" * size)
    body = made.body.replace(b',"payload":{', named + b',"payload":{' + padding)
    return EncodedEvent(made.event_id, made.type, body)


@dataclass
class Application:
    """Folds items into a list of event ids, as an application that persists does."""

    events: list[str] = field(default_factory=list[str])
    gaps: list[Gap] = field(default_factory=list[Gap])
    repeats: int = 0

    def take(self, item: Item) -> None:
        match item:
            case Event(data=data, replayed=replayed):
                name = str(data["eventId"])
                if replayed:
                    return
                if name in self.events:
                    self.repeats += 1
                self.events.append(name)
            case Snapshot(data=data):
                held = data["events"]
                assert isinstance(held, list)
                self.events = [str(name) for name in held]
            case Gap():
                self.gaps.append(item)
            case _:
                return

    async def on_gap(self, gap: Gap) -> GapChoice:
        return "snapshot"

    @property
    def reasons(self) -> list[GapReason]:
        return [gap.why for gap in self.gaps]


@asynccontextmanager
async def serve(  # noqa: PLR0913  each is a part that a test may put in place of the usual one
    store: Store,
    limits: ChannelLimits | None = None,
    *,
    audit_s: float = 30.0,
    bounds: RingBounds | None = None,
    link_facts: LinkFacts | None = None,
    open_text: OpenText | None = None,
    on_lost: Callable[[StreamRef, GapReason], None] = lambda _stream, _why: None,
    authenticator: Authenticator | None = None,
    redeem: Callable[[str, str | None, str], Awaitable[Credentials]] = refuse_ticket,
    origins: Collection[str] = (),
    backend: BackEnd = "asgi",
) -> AsyncGenerator[Rig]:
    """A hub and an endpoint over ``store``, on a free port of loopback."""
    control, links = ControlPlane(store), ToldLinks()
    settings = HubSettings(
        jitter=lambda: 0.5, audit_s=audit_s, linger_s=0.2, bounds=bounds or RingBounds()
    )
    async with Hub(store.log, store.hints, settings, on_lost) as hub:
        bounded = limits or ChannelLimits()
        services = ChannelServices(
            hub=hub,
            texts=Texts(store.deltas, open_text or ClosedText()),
            log=store.log,
            acks=store.acks,
            channels=store.channels,
            presences=store.presences,
            access=control,
            snapshots=control,
            states=States(store.log, control),
            replays=Replays(bounded.replays, bounded.replay_wait_s),
            calls=control,
            links=link_facts or links,
            authenticator=authenticator or KnownTokens(),
            read_credentials=READER.read_scope,
            clock=WallClock(),
            store_clock=WallClock(),
            ids=RandomIds(),
            redeem=redeem,
        )
        endpoint = ChannelEndpoint(services, limits, WebOrigins(origins))
        async with run_endpoint(endpoint, backend) as port:
            url = f"ws://127.0.0.1:{port}/v1/channel"
            try:
                yield Rig(url, port, store, hub, endpoint, control, services, links)
            finally:
                await endpoint.drain(0, 0)


@asynccontextmanager
async def run_endpoint(endpoint: ChannelEndpoint, backend: BackEnd) -> AsyncGenerator[int]:
    """Serves an endpoint on a free port of loopback, over one of the two back-ends."""
    if backend == "asgi":
        async with run_app(
            Starlette(routes=[WebSocketRoute("/v1/channel", endpoint.handle)])
        ) as port:
            yield port
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with FastListener(endpoint, listener, "/v1/channel", message_bytes=1 << 24):
            yield port


@asynccontextmanager
async def run_app(app: ASGIApp) -> AsyncGenerator[int]:
    """Serves an application on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            ws_ping_interval=None,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
        )
        server = PromptServer(config)
        serving = asyncio.create_task(server.serve([listener]))
        await wait_until(lambda: server.started, 15, "the server has started")
        try:
            yield port
        finally:
            server.end()
            await serving
