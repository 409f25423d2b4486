"""Discovery: which card is used, how long it is cached, and the errors of an unusable card."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from passerelle.core.errors import InvalidAgentResponse, PeerUnavailable
from passerelle.core.peer import Answered, Peer, RefusedByPeer, Unreached
from passerelle.core.wire.json import Json, JsonObject
from passerelle.peers.config import PeerConfig
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import say
from tests.support.scripted_peer import ScriptedPeer, ScriptedResponse

pytestmark = pytest.mark.anyio

Connect = Callable[..., Peer]


def interface(url: Json, binding: str = "JSONRPC", version: str = "1.0") -> JsonObject:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


async def test_card_is_read_once_while_fresh_and_by_one_request_for_many_callers(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    peer = connect()
    cards = await asyncio.gather(*(peer.describe() for _ in range(10)))
    assert len({card.sha256 for card in cards}) == 1
    assert scripted.card_reads == [200]


@pytest.mark.parametrize(
    ("control", "fresh_s"),
    [
        (None, 600),
        ("max-age=120", 120),
        ("public, max-age=5", 60),
        ("max-age=99999999", 86_400),
        ("no-store", 60),
        ("max-age=nonsense", 600),
    ],
)
async def test_cache_time_is_the_peers_within_bounds(
    scripted: ScriptedPeer, clients: Clients, control: str | None, fresh_s: int
) -> None:
    if control is not None:
        scripted.card_headers["Cache-Control"] = control
    peer = clients.connect(PeerConfig("scripted", scripted.url))
    await peer.describe()
    clients.clock.ms += fresh_s * 1000 - 1
    await peer.describe()
    assert scripted.card_reads == [200]
    clients.clock.ms += 1
    await peer.describe()
    assert scripted.card_reads == [200, 304]


async def test_changed_card_is_adopted_with_its_new_hash(
    scripted: ScriptedPeer, connect: Connect, clients: Clients
) -> None:
    peer = connect()
    before = await peer.describe()
    scripted.card = {**scripted.card, "description": "Changed.", "laterField": {"kept": True}}
    clients.clock.ms += 600_000
    after = await peer.describe()
    assert after.sha256 != before.sha256
    assert after.card["laterField"] == {"kept": True}
    assert scripted.card_reads == [200, 200]


async def test_last_good_card_is_used_as_stale_while_the_peer_is_unreachable(
    scripted: ScriptedPeer, connect: Connect, clients: Clients
) -> None:
    peer = connect()
    good = await peer.describe()
    await scripted.stop()
    clients.clock.ms += 600_000
    stale = await peer.describe()
    assert stale.stale
    assert stale.sha256 == good.sha256
    await scripted.start()
    assert (await peer.describe()).stale, "the next attempt waits a little"
    clients.clock.ms += 10_000
    assert not (await peer.describe()).stale


async def test_bad_edit_of_a_card_keeps_the_last_good_one(
    scripted: ScriptedPeer, connect: Connect, clients: Clients
) -> None:
    peer = connect()
    good = await peer.describe()
    scripted.card = {"name": "broken"}
    clients.clock.ms += 600_000
    kept = await peer.describe()
    assert kept.stale
    assert kept.sha256 == good.sha256


async def test_peer_that_never_had_a_card_is_unavailable_and_named(clients: Clients) -> None:
    async with ScriptedPeer() as other:
        url = other.url
    peer = clients.connect(PeerConfig("absent", url))
    with pytest.raises(PeerUnavailable, match=r"peer absent: its card at .* cannot be read"):
        await peer.describe()


async def test_card_at_another_path_is_found_there(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    wrong = clients.connect(PeerConfig("scripted", scripted.url, card_path="/elsewhere.json"))
    with pytest.raises(PeerUnavailable, match="HTTP 404"):
        await wrong.describe()


@pytest.mark.parametrize(
    ("change", "where", "reason"),
    [
        ({"name": 7}, "name", "not a text"),
        ({"supportedInterfaces": []}, "supportedInterfaces", "empty"),
        ({"supportedInterfaces": "all"}, "supportedInterfaces", "missing"),
        (
            {"supportedInterfaces": None, "url": "http://x", "protocolVersion": "0.3.0"},
            "supportedInterfaces",
            "http://x is neither the card's origin",
        ),
        (
            {"supportedInterfaces": [interface("http://127.0.0.1:1", "WEBSOCKET")]},
            "supportedInterfaces",
            "none of JSONRPC/1.0, HTTP+JSON/1.0",
        ),
        (
            {"supportedInterfaces": [interface("http://127.0.0.1:1", version="0.2")]},
            "supportedInterfaces",
            "none of JSONRPC/1.0, HTTP+JSON/1.0",
        ),
        (
            {"supportedInterfaces": [interface("https://elsewhere.example/a2a")]},
            "supportedInterfaces",
            "https://elsewhere.example is neither the card's origin",
        ),
        ({"capabilities": []}, "capabilities", "not a JSON object"),
        ({"capabilities": {"streaming": "yes"}}, "capabilities.streaming", "not true or false"),
    ],
)
async def test_unusable_card_is_reported_with_its_fault(
    scripted: ScriptedPeer, connect: Connect, change: JsonObject, where: str, reason: str
) -> None:
    scripted.card = {**scripted.card, **change}
    peer = connect()
    with pytest.raises(InvalidAgentResponse, match="peer scripted") as caught:
        await peer.describe()
    assert caught.value.details["where"] == where
    assert reason in str(caught.value.details["reason"])
    outcome = await peer.send(say("hello"))
    assert isinstance(outcome, Unreached)
    assert scripted.requests == []


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ({"name": "x" * 1_100_000}, "a body over 1048576 bytes"),
        ({"name": "deep", "nest": None}, "nested deeper than 64"),
    ],
)
async def test_card_over_a_bound_is_refused(
    scripted: ScriptedPeer, connect: Connect, card: JsonObject, reason: str
) -> None:
    if "nest" in card:
        nest: Json = 1
        for _ in range(64):
            nest = [nest]
        card = {**card, "nest": nest}
    scripted.card = card
    with pytest.raises(InvalidAgentResponse, match=reason):
        await connect().describe()


async def test_interface_of_an_allowed_origin_is_used(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with ScriptedPeer("front") as front:
        front.card = scripted.card
        config = PeerConfig("front", front.url, allowed_origins=frozenset({scripted.url + "/"}))
        assert isinstance(await clients.connect(config).send(say("hello")), Answered)
    assert scripted.texts == ["hello"]


async def test_interface_without_a_version_is_called_as_one_of_1_0(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    scripted.card["supportedInterfaces"] = [{"url": scripted.url, "protocolBinding": "JSONRPC"}]
    assert isinstance(await connect().send(say("hello")), Answered)
    assert scripted.requests[0].headers["a2a-version"] == "1.0"


async def test_first_usable_interface_is_chosen_and_its_tenant_sent(
    scripted: ScriptedPeer, connect: Connect
) -> None:
    own = cast("list[JsonObject]", scripted.card["supportedInterfaces"])[0]
    scripted.card["supportedInterfaces"] = [
        "nonsense",
        interface("https://elsewhere.example"),
        interface(scripted.url + "/grpc", "GRPC"),
        {**own, "protocolVersion": "1.0.1", "tenant": "blue"},
    ]
    peer = connect()
    assert isinstance(await peer.send(say("hello")), Answered)
    await peer.get("scripted-task-1")
    assert [request.params["tenant"] for request in scripted.requests] == ["blue", "blue"]


@pytest.mark.parametrize(
    "answer",
    [
        ScriptedResponse(404),
        ScriptedResponse(
            200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32009,"message":"0.9 only"}}'
        ),
    ],
)
async def test_missing_endpoint_or_changed_version_rereads_the_card(
    scripted: ScriptedPeer, connect: Connect, answer: ScriptedResponse
) -> None:
    peer = connect()
    scripted.answer_next(answer)
    assert isinstance(await peer.send(say("hello")), RefusedByPeer)
    assert isinstance(await peer.send(say("hello")), Answered)
    assert scripted.card_reads == [200, 304]
