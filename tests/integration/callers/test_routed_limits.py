"""Routing in a whole gateway passes over agents that cost too much or have no free slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from passerelle.core.agent_name import ROUTER
from passerelle.gateway.settings.model import Settings, find_contradictions
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

DEAR = {"price": {"currency": "EUR", "per_call": "0.30"}}


@pytest.fixture
async def other(anyio_backend: str) -> AsyncGenerator[ScriptedPeer]:
    """A second agent."""
    async with ScriptedPeer("other") as peer:
        yield peer


async def send(one: Instance, text: str = "hello", who: str = "ada-key") -> httpx.Response:
    """Sends a message to the gateway's own agent, over HTTP+JSON at the root."""
    headers = {"Authorization": f"Bearer {who}"}
    return await one.http.post("/message:send", json=one.message(text), headers=headers)


async def explain(one: Instance, answer: httpx.Response, who: str = "ada-key") -> list[str]:
    """Returns the routing reasons as the caller reads them."""
    task = answer.json()["task"]["id"]
    headers = {"Authorization": f"Bearer {who}"}
    read = await one.http.get(f"/v1/tasks/{task}", headers=headers)
    return [str(one) for one in read.json()["routing"]]


@pytest.mark.requirement("EXT-5", "PRS-10")
async def test_first_choice_that_the_budget_does_not_cover_is_passed_over(
    rig: Rig, other: ScriptedPeer
) -> None:
    agents = [
        {"name": "echo", "url": rig.peer.url, "tags": ["standard", "eu"], **DEAR},
        {"name": "other", "url": other.url},
    ]
    quota = {"cost": "0.50", "per": "day"}
    one = await rig.start(clients=[{"name": "ada", "quotas": [quota]}], agents=agents)

    async def want() -> httpx.Response:
        params = one.message("hello")
        message: Any = params["message"]
        message["metadata"] = {"urn:passerelle:ext:profile:1": {"tags": ["eu"]}}
        headers = {"Authorization": "Bearer ada-key"}
        return await one.http.post("/message:send", json=params, headers=headers)

    assert (await want()).status_code == 200
    assert (await want()).status_code == 429, "no other agent has the tag"
    free = await send(one)
    assert free.status_code == 200
    assert (rig.counted(), len(other.messages)) == (1, 1)
    # The free agent comes first anyway; the explanation names the excluded one.
    why = "only agent 'other' fits; 'echo' costs more than is left of the caller's quota"
    assert why in await explain(one, free)


@pytest.mark.requirement("EXT-5", "PRS-10")
async def test_first_choice_without_a_free_slot_is_passed_over(
    rig: Rig, other: ScriptedPeer
) -> None:
    agents = [
        {"name": "echo", "url": rig.peer.url, "limits": {"concurrency": 1}},
        {"name": "other", "url": other.url},
    ]
    one = await rig.start(clients=[{"name": "ada"}], agents=agents)
    assert (await send(one)).status_code == 200
    rig.peer.hold()
    slow = asyncio.create_task(send(one))
    await wait_until(lambda: rig.counted() == 2, 15, "the first agent is at work")
    quick = await send(one)
    assert quick.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    why = "only agent 'other' fits; 'echo' has as much work as its limits allow"
    assert why in await explain(one, quick)
    rig.peer.release_all()
    assert (await slow).status_code == 200
    assert (rig.counted(), len(other.messages)) == (2, 1)


async def test_root_serves_the_index_the_card_and_the_control_plane(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "ada"}])
    index = await one.http.get("/")
    assert index.json()["name"] == "Passerelle"
    card = (await one.http.get("/.well-known/agent-card.json")).json()
    assert card["name"] == "Passerelle"
    assert "echo" not in str(card)
    headers = {"Authorization": "Bearer ada-key"}
    assert (await one.http.get("/v1/tasks", headers=headers)).status_code == 200
    body = {"message": one.message("hello")["message"]}
    lost = await one.http.post("/v1/message:send", json=body, headers=headers)
    assert lost.status_code == 404, "HTTP+JSON of 0.3 is served below the name alone"
    said = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}
    older = await one.http.post(
        f"/agents/{ROUTER}/v1/message:send",
        json={"message": said},
        headers={**headers, "A2A-Version": "0.3"},
    )
    assert older.status_code == 200, older.text
    assert older.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_gateway_rejects_an_agent_with_its_own_name() -> None:
    settings = Settings.model_validate({"agents": [{"name": ROUTER, "url": "http://127.0.0.1:1"}]})
    assert (("agents", 0, "name"), "passerelle is the gateway's own agent") in [
        *find_contradictions(settings, {})
    ]
