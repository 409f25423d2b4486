"""Extensions on the wire: echoed when active, and required when only the caller can support them."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.extensions import KAGENT_HITL, PERMISSION
from passerelle.core.wire.json import Json
from tests.integration.a2a.rig import Rig
from tests.support.scripted_peer import make_card

pytestmark = pytest.mark.anyio


async def test_active_extensions_are_echoed_in_answers_errors_and_streams(rig: Rig) -> None:
    headers = {"A2A-Extensions": f"urn:foreign, {PERMISSION}"}
    answer = await rig.post("SendMessage", rig.message("hello"), **headers)
    assert answer.headers["a2a-extensions"] == PERMISSION
    refused = await rig.http.get("/agents/echo/tasks/t", params={"A2A-Extensions": PERMISSION})
    assert (refused.status_code, refused.headers["a2a-extensions"]) == (404, PERMISSION)
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage"}
    async with rig.http.stream(
        "POST", "/agents/echo", json={**body, "params": rig.message("hello")}, headers=headers
    ) as response:
        assert response.headers["a2a-extensions"] == PERMISSION
        await response.aread()
    assert "a2a-extensions" not in (await rig.post("SendMessage", rig.message("hello"))).headers


async def test_message_without_a_required_extension_is_refused_and_reaches_no_agent(
    rig: Rig,
) -> None:
    card = make_card("echo", rig.peer.url + "/")
    rig.peer.card = {
        **card,
        "capabilities": {"streaming": True, "extensions": [{"uri": "urn:must", "required": True}]},
    }
    for method in ("SendMessage", "SendStreamingMessage"):
        refused = await rig.refuse(method, rig.message("hello"))
        assert (refused["code"], refused["data"][0]["reason"]) == (
            -32008,
            "EXTENSION_SUPPORT_REQUIRED",
        )
    assert rig.counted() == 0
    answer = await rig.post("SendMessage", rig.message("hello"), **{"A2A-Extensions": "urn:must"})
    assert "result" in answer.json()


@pytest.mark.requirement("DIA-1")
async def test_extension_required_by_the_agent_and_supported_here_is_activated_for_every_caller(
    rig: Rig,
) -> None:
    _declare(rig, KAGENT_HITL, required=True)
    answer = await rig.post("SendMessage", rig.message("hello"))
    assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert await rig.collect("SendStreamingMessage", rig.message("hello"))
    assert {request.headers.get("a2a-extensions") for request in rig.peer.requests} == {KAGENT_HITL}
    # An extension that the caller did not request is not echoed.
    assert "a2a-extensions" not in answer.headers


@pytest.mark.requirement("DIA-1")
async def test_every_call_of_a_conversation_activates_supported_extensions(rig: Rig) -> None:
    _declare(rig, PERMISSION)
    asked = await rig.send("ask which colour?")
    done = await rig.send("blue", taskId=asked["id"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert rig.counted() == 2
    assert {request.headers.get("a2a-extensions") for request in rig.peer.requests} == {PERMISSION}


@pytest.mark.requirement("DIA-2")
@pytest.mark.parametrize("word", ["hello", "message hello", "ask which?"])
async def test_answers_and_streams_list_what_the_agent_has_activated(rig: Rig, word: str) -> None:
    _declare(rig, "urn:theirs", "urn:shy")
    rig.peer.activates = frozenset({"urn:theirs"})
    headers = {"A2A-Extensions": f"urn:theirs, urn:shy, {PERMISSION}"}
    answer = await rig.post("SendMessage", rig.message(word), **headers)
    assert answer.headers["a2a-extensions"] == f"{PERMISSION}, urn:theirs"
    alone = await rig.post("SendMessage", rig.message(word), **{"A2A-Extensions": "urn:theirs"})
    assert alone.headers["a2a-extensions"] == "urn:theirs"
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage"}
    async with rig.http.stream(
        "POST", "/agents/echo", json={**body, "params": rig.message(word)}, headers=headers
    ) as response:
        assert response.headers["a2a-extensions"] == f"{PERMISSION}, urn:theirs"


@pytest.mark.requirement("DIA-2")
async def test_http_json_response_lists_what_the_agent_has_activated(rig: Rig) -> None:
    _declare(rig, "urn:theirs")
    rig.peer.activates = frozenset({"urn:theirs"})
    answer = await rig.http.post(
        "/agents/echo/message:send",
        json=rig.message("hello"),
        headers={"A2A-Extensions": "urn:theirs"},
    )
    assert (answer.status_code, answer.headers["a2a-extensions"]) == (200, "urn:theirs")


def _declare(rig: Rig, *uris: str, required: bool = False) -> None:
    declared: list[Json] = [{"uri": uri, "required": required} for uri in uris]
    card = make_card("echo", rig.peer.url + "/")
    rig.peer.card = {**card, "capabilities": {"streaming": True, "extensions": declared}}
