"""Credentials that are sent to a peer, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx
import pytest
from aiohttp import web

from passerelle.core.errors import ConfigInvalid, PeerUnavailable
from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unreached
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.trace import Trace
from passerelle.peers.config import PeerConfig, Tls
from passerelle.peers.credential import ApiKey, Auth, Basic, Bearer, ClientCredentials
from passerelle.runtime.common.carried import AUTHORIZATION, EXTENSIONS, TRACE, set_call_context
from passerelle.runtime.common.secret import Secret
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import read_all, say
from tests.support.loopback_server import end_runner
from tests.support.ports import find_free_port
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tls import CertificateAuthority, weaken

pytestmark = pytest.mark.anyio


@dataclass
class TokenServer:
    """Issues tokens ``token-1``, ``token-2`` and so on that are valid for ``life_s``."""

    url: str = ""
    life_s: int | None = 100
    status: int = 200
    body: JsonObject | None = None
    forms: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    shown: list[str | None] = field(default_factory=list["str | None"])

    async def give(self, request: web.Request) -> web.Response:
        self.forms.append({name: str(value) for name, value in (await request.post()).items()})
        self.shown.append(request.headers.get("Authorization"))
        body: JsonObject = {"access_token": f"token-{len(self.forms)}", "token_type": "Bearer"}
        if self.life_s is not None:
            body["expires_in"] = self.life_s
        return web.json_response(self.body or body, status=self.status)


@pytest.fixture
async def tokens(anyio_backend: str) -> AsyncGenerator[TokenServer, None]:
    made = TokenServer()
    app = web.Application()
    app.router.add_post("/token", made.give)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{cast('tuple[str, int]', runner.addresses[0])[1]}/token"
    yield made
    await end_runner(runner)


def ask_for(tokens: TokenServer) -> ClientCredentials:
    return ClientCredentials(tokens.url, "us & co", Secret("p:w"), ("read", "write"), "them")


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        (Bearer(Secret("t0p")), "authorization", "Bearer t0p"),
        (
            Basic("us", Secret("p4ss")),
            "authorization",
            "Basic " + base64.b64encode(b"us:p4ss").decode(),
        ),
        (ApiKey("header", "X-Key", Secret("k3y")), "x-key", "k3y"),
        (ApiKey("cookie", "key", Secret("k3y")), "cookie", "key=k3y"),
    ],
)
async def test_credential_is_on_every_request(
    scripted: ScriptedPeer, clients: Clients, auth: Auth, header: str, value: str
) -> None:
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=auth))
    await peer.send(say("hello"))
    await read_all(peer.stream(say("hello")))
    await peer.get("scripted-task-1")
    assert [request.headers.get(header) for request in scripted.requests] == [value] * 3


async def test_key_in_the_query_is_added_to_the_address(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    auth = ApiKey("query", "api key", Secret("a&b=c"))
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=auth))
    assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.requests[0].query == "api%20key=a%26b%3Dc"


async def test_token_is_requested_once_and_used_for_all_calls(
    scripted: ScriptedPeer, clients: Clients, tokens: TokenServer
) -> None:
    scripted.bearer = "token-1"
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=ask_for(tokens)))
    outcomes = await asyncio.gather(*(peer.send(say("hello")) for _ in range(5)))
    assert all(isinstance(outcome, Answered) for outcome in outcomes)
    assert tokens.forms == [
        {"grant_type": "client_credentials", "scope": "read write", "audience": "them"}
    ]
    assert tokens.shown == ["Basic " + base64.b64encode(b"us%20%26%20co:p%3Aw").decode()]


async def test_token_is_replaced_after_four_fifths_of_its_life(
    scripted: ScriptedPeer, clients: Clients, tokens: TokenServer
) -> None:
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=ask_for(tokens)))
    for passed_ms, token in ((0, 1), (79_999, 1), (1, 2)):
        clients.clock.ms += passed_ms
        await peer.get("x")
        assert scripted.requests[-1].headers["authorization"] == f"Bearer token-{token}"


@pytest.mark.parametrize("streams", [False, True])
async def test_refused_token_is_replaced_once_and_the_call_repeated(
    scripted: ScriptedPeer, clients: Clients, tokens: TokenServer, *, streams: bool
) -> None:
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=ask_for(tokens)))
    await peer.get("x")
    scripted.bearer = "token-2"
    if streams:
        assert (await read_all(peer.stream(say("hello"))))[-1] == Closed()
    else:
        assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.texts == ["hello", "hello"], "the first one was refused before it was read"
    assert len(scripted.tasks) == 1
    scripted.bearer = "another"
    refused = await peer.send(say("hello"))
    assert isinstance(refused, RefusedByPeer)
    assert refused.http_status == 401
    assert len(tokens.forms) == 3


async def test_refused_static_credential_is_not_sent_twice(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    scripted.bearer = "right"
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=Bearer(Secret("wrong"))))
    assert isinstance(await peer.send(say("hello")), RefusedByPeer)
    assert scripted.count("SendMessage") == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, None),
        (200, {"access_token": "x"}),
        (200, {"access_token": "x\r\nEvil: 1", "token_type": "Bearer"}),
        (200, {"error": "nope"}),
    ],
)
async def test_without_a_token_nothing_is_sent(
    scripted: ScriptedPeer,
    clients: Clients,
    tokens: TokenServer,
    status: int,
    body: JsonObject | None,
) -> None:
    tokens.status, tokens.body = status, body
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=ask_for(tokens)))
    assert isinstance(await peer.send(say("hello")), Unreached)
    with pytest.raises(PeerUnavailable, match="no access token"):
        await peer.describe()
    assert scripted.card_reads == []


async def test_token_endpoint_that_is_down_is_named_with_the_reason(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    gone = TokenServer(url=f"http://127.0.0.1:{find_free_port()}/token")
    peer = clients.connect(PeerConfig("locked", scripted.url, auth=ask_for(gone)))
    with pytest.raises(PeerUnavailable, match=f"from {gone.url}: the connection was refused$"):
        await peer.describe()


async def test_callers_own_token_is_forwarded_only_if_configured(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    token = AUTHORIZATION.set(Secret("Bearer of-the-caller"))
    for forward in (True, False):
        config = PeerConfig(
            f"forward-{forward}", scripted.url, auth=Bearer(Secret("ours")), forward_auth=forward
        )
        await clients.connect(config).send(say("hello"))
    AUTHORIZATION.set(Secret("Bearer a\r\nX-Evil: 1"))
    await clients.connect(
        PeerConfig("forward", scripted.url, auth=Bearer(Secret("ours")), forward_auth=True)
    ).send(say("hello"))
    AUTHORIZATION.reset(token)
    shown = [request.headers["authorization"] for request in scripted.requests]
    assert shown == ["Bearer of-the-caller", "Bearer ours", "Bearer ours"]


async def test_extensions_that_the_peer_declares_are_forwarded_and_others_are_not(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    declared: list[Json] = [{"uri": "urn:one"}, {"uri": "urn:two"}, {"uri": 7}]
    capabilities: JsonObject = {"streaming": True, "extensions": declared}
    scripted.card = {**scripted.card, "capabilities": capabilities}
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    token = EXTENSIONS.set(frozenset({"urn:two", "urn:one", "urn:ours"}))
    await peer.send(say("hello"))
    EXTENSIONS.reset(token)
    await peer.send(say("hello"))
    sent = [request.headers.get("a2a-extensions") for request in scripted.requests]
    assert sent == ["urn:one, urn:two", None]


async def test_each_call_carries_the_credentials_of_its_caller(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    """Calls share common state; the credentials of one caller are never sent for another."""
    capabilities: JsonObject = {"streaming": True, "extensions": [{"uri": "urn:one"}]}
    scripted.card = {**scripted.card, "capabilities": capabilities}
    auth = Bearer(Secret("ours"))
    peer = clients.connect(PeerConfig("scripted", scripted.url, auth=auth, forward_auth=True))
    ids = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    brought = [
        ("Bearer a", frozenset({"urn:one"}), Trace(*ids, "01", "x=1")),
        ("Bearer b", frozenset({"urn:one"}), Trace(*ids, "00")),
        (None, frozenset({"urn:one"}), None),
        ("Bearer b", frozenset[str](), None),
        (None, frozenset[str](), None),
        ("Bearer a", frozenset({"urn:other"}), Trace(*ids, "01", "x=1")),
    ]

    async def call(token: str | None, wanted: frozenset[str], trace: Trace | None) -> None:
        set_call_context(wanted, Secret(token) if token else None)
        TRACE.set(trace)
        await peer.send(say("hello"))
        await peer.get("x")

    for one in brought:
        await asyncio.create_task(call(*one))
    assert len(scripted.requests) == 2 * len(brought)
    for (token, wanted, trace), place in zip(brought, itertools.count(0, 2), strict=False):
        for headers in (one.headers for one in scripted.requests[place : place + 2]):
            assert headers.get("authorization") == (token or "Bearer ours")
            assert headers.get("a2a-extensions") == ("urn:one" if "urn:one" in wanted else None)
            assert headers.get("traceparent") == (trace and trace.parent)
            assert headers.get("tracestate") == (trace and trace.state)
            assert headers["content-type"] == "application/json"


async def test_trace_that_would_inject_a_header_is_not_sent(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    await peer.describe()
    token = TRACE.set(Trace("1" * 32, "2" * 16, "01", "x=1\r\nEvil: 1"))
    assert isinstance(await peer.send(say("hello")), Unreached)
    TRACE.reset(token)
    assert scripted.requests == []


async def test_closed_connections_send_nothing(scripted: ScriptedPeer, clients: Clients) -> None:
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    assert isinstance(await peer.send(say("hello")), Answered)
    await clients.close()
    assert isinstance(await peer.send(say("hello")), Unreached)
    assert scripted.count("SendMessage") == 1


@pytest.mark.kit("AUTH-SERVER-001")
async def test_mutual_tls_sends_the_client_certificate_and_trusts_the_given_authority(
    clients: Clients, tmp_path: Path
) -> None:
    authority = CertificateAuthority(tmp_path)
    us = authority.issue("us")
    context = authority.serve("localhost", ask_client=True)
    ca = str(authority.root)
    async with ScriptedPeer("secure", tls=context) as agent:
        shown = Tls(ca, str(us.cert), str(us.key))
        for tls, kind in ((shown, Answered), (Tls(ca), Unreached), (None, Unreached)):
            peer = clients.connect(PeerConfig("secure", agent.url, tls=tls))
            assert isinstance(await peer.send(say("hello")), kind)
        await clients.close()


@pytest.mark.kit("AUTH-TLS-002")
async def test_agent_with_outdated_tls_only_is_not_called(clients: Clients, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    outdated = weaken(authority.serve("localhost"))
    async with ScriptedPeer("outdated", tls=outdated) as agent:
        # It answers clients with the outdated version: the call below fails because of the version alone.
        async with httpx.AsyncClient(verify=weaken(authority.trust())) as old:
            assert (await old.get(f"{agent.url}/.well-known/agent-card.json")).is_success
        peer = clients.connect(PeerConfig("outdated", agent.url, tls=Tls(str(authority.root))))
        assert isinstance(await peer.send(say("hello")), Unreached)
        await clients.close()


async def test_unreadable_certificate_is_a_configuration_error(
    clients: Clients,
) -> None:
    with pytest.raises(ConfigInvalid, match=r"agents\.a\.tls"):
        clients.connect(PeerConfig("a", "https://a.example", tls=Tls("/no/such/file")))
