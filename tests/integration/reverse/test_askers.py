"""An agent that dials in has a key of its own: it decides nothing that it asks, even where the key may decide."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.json import JsonObject
from tests.integration.reverse.rig import NAME, Rig
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


@pytest.mark.requirement("VAL-4")
@pytest.mark.parametrize("kind", ["service", "person"])
async def test_agent_with_the_rights_of_a_person_answers_no_question_of_its_own(
    rig: Rig, kind: str
) -> None:
    at = await rig.callers.start(
        agents=[{"name": NAME, "transport": "channel"}], clients=[{**BUILDER, "kind": kind}]
    )
    async with rig.link(at):
        message: JsonObject = {
            "messageId": "m-1",
            "role": "ROLE_USER",
            "parts": [{"text": "ask May I?"}],
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        await at.http.post(f"/agents/{NAME}", json=body, headers=KEY)

        async def find() -> JsonObject | None:
            listed = (await at.http.get("/v1/approvals", headers=KEY)).json()["pending"]
            return cast("JsonObject", listed[0]) if listed else None

        view = await wait_until(find, 20, "the question stands")
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
