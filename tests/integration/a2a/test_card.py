"""Agent cards: with the gateway's address, cacheable, and served while the peer is unreachable."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from passerelle.a2a_mapping.extensions import INTERFACES
from passerelle.gateway.a2a.cards import OPEN_EDGE, CardOptions
from passerelle.gateway.a2a.face import FaceSettings
from passerelle.peers.interface import AllowedTargets, read_offer
from tests.integration.a2a.rig import Rig, run_rig
from tests.support.engine import Server

pytestmark = pytest.mark.anyio
CARD = "/agents/echo/.well-known/agent-card.json"


async def test_card_is_public_and_names_only_the_gateway(rig: Rig) -> None:
    async with httpx.AsyncClient(base_url=rig.url) as http:
        response = await http.get(CARD)
    card = response.json()
    assert response.headers["content-type"] == "application/json"
    assert {face["url"] for face in card["supportedInterfaces"]} == {f"{rig.url}/agents/echo"}
    assert {face["protocolBinding"] for face in card["supportedInterfaces"]} == {
        "JSONRPC",
        "HTTP+JSON",
    }
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["pushNotifications"] is False
    assert card["securitySchemes"]
    assert rig.peer.url not in response.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_card_lists_interfaces_of_its_origin_unless_all_are_requested(
    engine_server: Server, tmp_path: Path, host: str
) -> None:
    edge = replace(OPEN_EDGE, grpc=f"{host}:9443", sockets=True)
    async with run_rig(engine_server, tmp_path, FaceSettings(CardOptions(edge))) as rig:
        base = rig.url.replace("127.0.0.1", host)
        plain = (await rig.http.get(CARD, headers={"Host": base.removeprefix("http://")})).json()
        assert {face["url"] for face in plain["supportedInterfaces"]} == {f"{base}/agents/echo"}
        [further] = [one for one in plain["capabilities"]["extensions"] if one["uri"] == INTERFACES]
        urls = {one["url"] for one in further["params"]["interfaces"]}
        socket = f"{base.replace('http', 'ws', 1)}/agents/echo/ws"
        assert urls == {f"{host}:9443", socket}
        headers = {"Host": base.removeprefix("http://"), "A2A-Extensions": INTERFACES}
        asked = (await rig.http.get(CARD, headers=headers)).json()
        assert {one["url"] for one in asked["supportedInterfaces"]} == {
            f"{base}/agents/echo",
            *urls,
        }
        assert INTERFACES not in str(asked["capabilities"])
        allowed = AllowedTargets(frozenset({rig.url, f"http://{host}:9443"}))
        assert "GRPC/1.0" in {one.choice for one in read_offer(plain, allowed).usable}


async def test_both_conditional_forms_are_answered_with_304(rig: Rig) -> None:
    first = await rig.http.get(CARD)
    etag, modified = first.headers["etag"], first.headers["last-modified"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', etag)
    assert first.headers["vary"] == "A2A-Version, A2A-Extensions"
    assert first.headers["cache-control"].startswith("public, max-age=300")
    for headers in (
        {"If-None-Match": etag},
        {"If-None-Match": f'"other", W/{etag}'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": modified},
    ):
        again = await rig.http.get(CARD, headers=headers)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
    for headers in (
        {"If-None-Match": '"other"'},
        {"If-None-Match": '"other"', "If-Modified-Since": modified},
        {"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"If-Modified-Since": "soon"},
    ):
        assert (await rig.http.get(CARD, headers=headers)).content == first.content


async def test_head_has_the_headers_and_no_body(rig: Rig) -> None:
    shown = await rig.http.get(CARD)
    head = await rig.http.head(CARD)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == shown.headers["etag"]


async def test_card_is_served_while_the_peer_is_unreachable(rig: Rig) -> None:
    first = await rig.http.get(CARD)
    await rig.peer.stop()
    assert (await rig.http.get(CARD)).content == first.content


async def test_card_of_an_unreachable_agent_is_a_typed_error(rig: Rig) -> None:
    response = await rig.http.get("/agents/gone/.well-known/agent-card.json")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["details"][0]["reason"] == "UNAVAILABLE"
    assert "127.0.0.1" not in response.text


async def test_card_of_an_unknown_agent_is_not_found(rig: Rig) -> None:
    # The root's card is that of the gateway's own agent: tests/integration/a2a/test_own_agent.py.
    for path in (
        "/agents/none/.well-known/agent-card.json",
        "/agents/none/acme/.well-known/agent-card.json",
    ):
        response = await rig.http.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("host", ["evil example", "a@b", "<script>", "x/y"])
async def test_invalid_host_is_not_on_the_card(rig: Rig, host: str) -> None:
    response = await rig.http.get(CARD, headers={"Host": host})
    assert response.json()["supportedInterfaces"][0]["url"] == f"{rig.url}/agents/echo"


@pytest.mark.kit("AUTH-TLS-001")
async def test_public_url_is_on_the_card(engine_server: Server, tmp_path: Path) -> None:
    settings = FaceSettings(CardOptions(OPEN_EDGE), "https://agents.example.com/a2a")
    async with run_rig(engine_server, tmp_path / "blobs", settings) as rig:
        card = (await rig.http.get(CARD)).json()
    urls = {face["url"] for face in card["supportedInterfaces"]}
    assert urls == {"https://agents.example.com/a2a/agents/echo"}
    assert "securitySchemes" not in card
