"""Artifacts referenced by a message that needs approval are shown, evaluated, and sent as they were shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import orjson
import pytest

from tests.integration.devices.asking import PEOPLE, bearer, list_pending
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final[dict[str, object]] = {"name": "ada", "kind": "person", "scopes": PEOPLE}
HOLD: Final[dict[str, object]] = {
    "name": "hold",
    "effect": "ask",
    "about": ["delegations"],
    "when": 'peer.name == "vault"',
}


async def call(at: Instance, agent: str, message: JsonObject) -> JsonObject:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    said = await at.http.post(f"/agents/{agent}", json=body, headers=bearer("ada"))
    return cast("JsonObject", said.json()["result"]["task"])


@pytest.mark.requirement("CMD-14", "VAL-4")
async def test_quoted_artifacts_of_a_held_message_are_sent_as_they_were_allowed(rig: Rig) -> None:
    agents = [{"name": name, "url": rig.peer.url} for name in ("echo", "vault")]
    at = await rig.start(clients=[ADA], agents=agents, policy={"rules": [HOLD]})
    written = await call(
        at, "echo", {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "chunks 1"}]}
    )
    held: JsonObject = {
        "messageId": "m-2",
        "role": "ROLE_USER",
        "parts": [{"text": "keep this"}],
        "referenceTaskIds": [written["id"]],
    }
    await call(at, "vault", held)
    assert len(rig.peer.messages) == 1

    async def find() -> JsonObject | None:
        return next(iter(await list_pending(at, "ada")), None)

    view = await wait_until(find, 20, "the approval is pending")
    assert view is not None
    assert "chunk-1" in orjson.dumps(view["subject"]).decode()
    body = {
        "rev": view["rev"],
        "digest": view["digest"],
        "decisionId": "dec_1",
        "optionId": "send",
    }
    path = f"/v1/approvals/{view['actionId']}/decision"
    answered = await at.http.post(
        path, json=body, headers={**bearer("ada"), "Idempotency-Key": "k-1"}
    )
    assert answered.status_code == 200, answered.text
    await wait_until(lambda: len(rig.peer.messages) == 2, 20, "the message has gone")
    sent = rig.peer.messages[1]
    texts = [part["text"] for part in cast("list[JsonObject]", sent["parts"])]
    assert texts == ["keep this", "chunk-1 "]
    assert "referenceTaskIds" not in sent
