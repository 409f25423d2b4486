"""Extensions on the wire: echoed when active, demanded when the agent's card requires one."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION
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


async def test_message_without_a_required_extension_is_refused_and_reaches_nobody(
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
