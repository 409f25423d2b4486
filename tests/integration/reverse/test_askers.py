"""An agent that dials in has its own key: it decides no approval that it requests, even if the key may decide."""

from __future__ import annotations

import re
from typing import cast

import pytest

from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance
from tests.integration.reverse.rig import NAME, Rig
from tests.integration.reverse.test_rights import open_raw
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KEY = {"Authorization": f"Bearer {NAME}-key"}
BUILDER = {
    "name": NAME,
    "serves": [NAME],
    "scopes": [
        "channels:connect",
        "agents:serve",
        "a2a:call",
        "tasks:read",
        "tasks:write",
        "approvals:read",
        "approvals:decide",
    ],
}


async def ask_itself(at: Instance) -> None:
    """Opens an approval request in the agent's own name."""
    message: JsonObject = {
        "messageId": "m-1",
        "role": "ROLE_USER",
        "parts": [{"text": "ask May I?"}],
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    assert (await at.http.post(f"/agents/{NAME}", json=body, headers=KEY)).status_code == 200


@pytest.mark.requirement("VAL-4")
@pytest.mark.parametrize("kind", ["service", "person"])
async def test_agent_cannot_decide_its_own_approval_request(rig: Rig, kind: str) -> None:
    at = await rig.callers.start(
        agents=[{"name": NAME, "transport": "channel"}], clients=[{**BUILDER, "kind": kind}]
    )
    async with rig.link(at):
        await ask_itself(at)

        async def find() -> JsonObject | None:
            listed = (await at.http.get("/v1/approvals", headers=KEY)).json()["pending"]
            return cast("JsonObject", listed[0]) if listed else None

        view = await wait_until(find, 20, "the approval is pending")
        assert view is not None
        answer = {
            "rev": view["rev"],
            "digest": view["digest"],
            "decisionId": "dec_own",
            "optionId": "answer",
            "content": {"text": "yes"},
        }
        path = f"/v1/approvals/{view['actionId']}"
        headers = {**KEY, "Idempotency-Key": "own"}
        refused = await at.http.post(f"{path}/decision", json=answer, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "asker")
        assert (await at.http.get(path, headers=KEY)).json()["state"] == "pending"


async def test_agent_with_the_read_scope_reads_an_approval_by_id_and_has_no_inbox(rig: Rig) -> None:
    scopes = [one for one in BUILDER["scopes"] if one != "approvals:decide"]
    at = await rig.callers.start(
        agents=[{"name": NAME, "transport": "channel"}],
        clients=[{**BUILDER, "kind": "agent", "scopes": scopes}],
    )
    async with rig.link(at):
        await ask_itself(at)
        events = [await at.read_session(name) for name in rig.callers.list_sessions()]
        action = next(iter(re.findall(r"act_[0-9a-z]{20,}", str(events))))
        found = await at.http.get(f"/v1/approvals/{action}", headers=KEY)
        assert (found.status_code, found.json()["state"]) == (200, "pending")
        for path in ("/v1/approvals", "/v1/streams/inbox/events"):
            refused = await at.http.get(path, headers=KEY)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
        hook = {"url": "https://hooks.example.com/"}
        refused = await at.http.put("/v1/streams/inbox/webhooks/mine", json=hook, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        async with open_raw(at) as raw:
            assert raw.welcome["pending"] == []
            await raw.send_frames({"t": "sub", "s": "inbox"})
            error = await raw.receive("error")
            assert (error["code"], error["s"]) == ("forbidden", "inbox")
