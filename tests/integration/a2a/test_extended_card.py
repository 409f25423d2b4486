"""Extended cards: for authenticated callers, fetched with the gateway's credentials, with the gateway's address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.gateway.a2a.cards import OPEN_EDGE, CardOptions
from passerelle.gateway.a2a.face import FaceSettings
from tests.integration.a2a.rig import Rig, run_rig
from tests.support.engine import Server

pytestmark = pytest.mark.anyio
PATH = "/agents/echo/extendedAgentCard"
READER = {"Authorization": "Bearer reader-key"}


def announce(rig: Rig) -> JsonObject:
    """Gives the peer an extended card and announces it; returns it."""
    capabilities: JsonObject = {"streaming": True, "extendedAgentCard": True}
    rig.peer.card = {**rig.peer.card, "capabilities": capabilities}
    secret: JsonObject = {"id": "s", "name": "Secret", "description": rig.peer.url, "tags": ["x"]}
    rig.peer.extended_card = {**rig.peer.card, "skills": [secret], "signatures": [{"x": "y"}]}
    return rig.peer.extended_card


async def read(rig: Rig, **headers: str) -> dict[str, Any]:
    response = await rig.http.get(PATH, headers=headers)
    assert response.status_code == 200, response.text
    card: dict[str, Any] = response.json()
    return card


async def test_extended_card_has_the_gateways_address_and_is_equal_on_both_bindings(
    rig: Rig,
) -> None:
    announce(rig)
    response = await rig.http.get(PATH)
    card = response.json()
    assert [skill["name"] for skill in card["skills"]] == ["Secret"]
    assert card["supportedInterfaces"][0]["url"] == f"{rig.url}/agents/echo"
    assert card["capabilities"]["extendedAgentCard"] is True
    assert rig.peer.url not in response.text
    assert "signatures" not in card
    assert await rig.call("GetExtendedAgentCard", {}) == card
    assert rig.peer.count("GetExtendedAgentCard") == 1


async def test_extended_card_is_not_for_shared_caches(rig: Rig) -> None:
    response = await rig.http.get(PATH)
    assert response.headers["cache-control"].startswith("private")
    assert "Authorization" in response.headers["vary"]


async def test_caller_without_a_credential_gets_no_extended_card(rig: Rig) -> None:
    async with httpx.AsyncClient(base_url=rig.url, headers={"A2A-Version": "1.0"}) as http:
        response = await http.get(PATH)
    assert response.status_code == 401
    assert response.json()["error"]["status"] == "UNAUTHENTICATED"


async def test_caller_without_the_call_scope_sees_no_skill(rig: Rig) -> None:
    announce(rig)
    assert (await read(rig, **READER))["skills"] == []
    assert (await read(rig))["skills"] != []


async def test_extended_card_is_not_fetched_with_the_token_of_a_caller(rig: Rig) -> None:
    announce(rig)
    await read(rig)
    asked = [request for request in rig.peer.requests if request.method == "GetExtendedAgentCard"]
    assert [request.headers.get("Authorization") for request in asked] == [None]


async def test_agent_without_an_extended_card_shows_its_public_one(rig: Rig) -> None:
    public = (await rig.http.get("/agents/echo/.well-known/agent-card.json")).json()
    assert (await read(rig))["skills"] == public["skills"]
    assert rig.peer.count("GetExtendedAgentCard") == 0


async def test_announced_but_missing_extended_card_is_not_configured(rig: Rig) -> None:
    announce(rig)
    rig.peer.extended_card = None
    error = await rig.refuse("GetExtendedAgentCard", {})
    assert error["code"] == -32007
    assert error["data"][0]["reason"] == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    assert (await rig.http.get(PATH)).status_code == 400


async def test_cached_extended_card_is_served_while_the_agent_is_unreachable(rig: Rig) -> None:
    announce(rig)
    first = await read(rig)
    await rig.peer.stop()
    assert await read(rig) == first


async def test_agent_unreachable_before_the_first_fetch_shows_its_public_card(
    rig: Rig,
) -> None:
    announce(rig)
    public = (await rig.http.get("/agents/echo/.well-known/agent-card.json")).json()
    await rig.peer.stop()
    assert (await read(rig))["skills"] == public["skills"]


async def test_open_gateway_has_no_extended_card(engine_server: Server, tmp_path: Path) -> None:
    settings = FaceSettings(CardOptions(OPEN_EDGE))
    async with run_rig(engine_server, tmp_path / "blobs", settings) as rig:
        error = await rig.refuse("GetExtendedAgentCard", {})
        card = (await rig.http.get("/agents/echo/.well-known/agent-card.json")).json()
    assert error["code"] == -32004
    assert card["capabilities"]["extendedAgentCard"] is False
