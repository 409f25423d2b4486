"""The gateway's own agent at the root and at ``/agents/passerelle``: cards, operations, and permissions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from passerelle.a2a_mapping.extensions import PROFILE
from passerelle.core.agent_name import ROUTER
from passerelle.core.wire.json import Json
from passerelle.gateway.a2a.cards import KEY_EDGE, CardOptions
from passerelle.gateway.a2a.face import FaceSettings
from tests.integration.a2a.rig import OWNER, Rig, run_rig
from tests.support.engine import Server
from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
PLACES = ("", f"/agents/{ROUTER}")


def make_skills(*ids: str) -> list[Json]:
    return [{"id": one, "name": one, "description": one, "tags": ["t"]} for one in ids]


@pytest.fixture
async def rig(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    """A rig with the agents ``echo``, ``gone`` and ``other``, whose cards differ in their skills."""
    settings = FaceSettings(cards=CardOptions(KEY_EDGE))
    async with (
        ScriptedPeer("other") as other,
        run_rig(engine_server, tmp_path, settings, [other]) as opened,
    ):
        opened.peer.card = {**opened.peer.card, "skills": make_skills("say", "echo")}
        other.card = {**other.card, "skills": make_skills("say", "paint")}
        yield opened


async def read(rig: Rig, path: str, **headers: str) -> dict[str, Any]:
    answer = await rig.http.get(path, headers={"A2A-Version": "1.0", **headers})
    assert answer.status_code == 200, answer.text
    return cast("dict[str, Any]", answer.json())


@pytest.mark.parametrize("place", PLACES)
async def test_public_card_names_no_agent_and_points_to_the_gateway(rig: Rig, place: str) -> None:
    card = await read(rig, f"{place}{CARD}")
    assert card["name"] == "Passerelle"
    assert [one["id"] for one in card["skills"]] == ["delegate"]
    text = str(card)
    for word in ("'echo'", "paint", "gone", "other", str(rig.peer.url)):
        assert word not in text
    urls = {one["url"] for one in card["supportedInterfaces"]}
    assert urls == {f"{rig.url}/agents/{ROUTER}"}
    assert PROFILE in {one["uri"] for one in card["capabilities"]["extensions"]}
    named = await read(rig, f"/agents/echo{CARD}")
    assert PROFILE not in str(named)
    old = await rig.http.get(f"{place}{CARD}", headers={"A2A-Version": "0.3"})
    assert old.json()["url"] == f"{rig.url}/agents/{ROUTER}"


async def test_extended_card_lists_the_skills_of_the_callers_agents(rig: Rig) -> None:
    for key, skills in (
        (OWNER, ["delegate", "say", "echo", "paint"]),
        ("narrow-key", ["delegate"]),
        ("reader-key", []),
    ):
        for place in PLACES:
            card = await read(rig, f"{place}/extendedAgentCard", Authorization=f"Bearer {key}")
            assert [one["id"] for one in card["skills"]] == skills
            assert str(rig.peer.url) not in str(card)


@pytest.mark.requirement("EXT-5")
@pytest.mark.parametrize("place", PLACES)
async def test_every_operation_works_as_at_an_agent(rig: Rig, place: str) -> None:
    async def call(method: str, params: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = await rig.http.post(place or "/", json=body)
        assert "result" in answer.json(), answer.text
        return cast("dict[str, Any]", answer.json()["result"])

    task = (await call("SendMessage", rig.message("hello")))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert await call("GetTask", {"id": task["id"]}) == task
    listed = await call("ListTasks", {"contextId": task["contextId"]})
    assert [one["id"] for one in listed["tasks"]] == [task["id"]]
    rest = await rig.http.get(f"{place}/tasks/{task['id']}")
    assert rest.json() == task
    again = await rig.http.post(
        f"{place}/message:send", json=rig.message("again", contextId=task["contextId"])
    )
    assert again.json()["task"]["contextId"] == task["contextId"]
    async with rig.http.stream(
        "POST", f"{place}/message:stream", json=rig.message("more")
    ) as stream:
        lines = [line async for line in stream.aiter_lines() if line.startswith("data: ")]
    assert "TASK_STATE_COMPLETED" in lines[-1]
    asked = (await call("SendMessage", rig.message("ask name")))["task"]
    stopped = await call("CancelTask", {"id": asked["id"]})
    assert stopped["status"]["state"] == "TASK_STATE_CANCELED"
    assert (await rig.http.get(f"/agents/echo/tasks/{task['id']}")).status_code == 404


async def test_own_agent_routes_only_to_agents_that_the_caller_may_call(rig: Rig) -> None:
    await rig.post("SendMessage", rig.message("hello"), agent=ROUTER)
    sent = rig.counted()
    narrow = {"Authorization": "Bearer narrow-key"}
    refused = (await rig.post("SendMessage", rig.message("hello"), agent=ROUTER, **narrow)).json()
    task = refused["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_REJECTED"
    assert "'gone' is out of reach" in str(task["status"])
    assert "echo" not in str(task)
    assert rig.counted() == sent
    # An operation that the caller may not use at its agents is refused here as well.
    till = {"Authorization": "Bearer till-key"}
    denied = await rig.post("SendMessage", rig.message("hello"), agent=ROUTER, **till)
    assert denied.json()["error"]["code"] == -32603
    reader = {"Authorization": "Bearer reader-key"}
    denied = await rig.post("SendMessage", rig.message("hello"), agent=ROUTER, **reader)
    assert "a2a:call" in denied.json()["error"]["message"]
    unknown = await rig.http.post("/", json={}, headers={"Authorization": "Bearer nobody"})
    assert unknown.status_code == 401


async def test_malformed_profile_is_refused_by_its_field(rig: Rig) -> None:
    params = rig.message("hello", metadata={PROFILE: {"tier": "expert"}})
    error = await rig.refuse("SendMessage", params, agent=ROUTER)
    assert error["code"] == -32602
    assert f"message.metadata.{PROFILE}.tier" in str(error)


async def test_accepted_media_types_select_the_agent(rig: Rig) -> None:
    rig.peer.card = {**rig.peer.card, "defaultOutputModes": ["image/png"], "skills": []}
    params = rig.message("hello", configuration={"acceptedOutputModes": ["text/plain"]})
    task = (await rig.call("SendMessage", params, agent=ROUTER))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.counted() == 0
