"""An agent that asks for permission, over the A2A interface of a whole gateway, and people who answer over ``/v1``."""

from __future__ import annotations

import itertools
from typing import cast

import httpx
import orjson

from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance
from tests.support.waiting import wait_until

PERMISSION = "urn:passerelle:ext:permission:1"
PEOPLE = [
    "a2a:call",
    "tasks:read",
    "approvals:read",
    "approvals:decide",
    "approvals:decide-high",
    "channels:connect",
    "devices:manage",
    "audit:read",
]
ADA: dict[str, object] = {"name": "ada", "kind": "person", "scopes": PEOPLE}
BOB: dict[str, object] = {"name": "bob", "kind": "person", "scopes": PEOPLE}
DAN: dict[str, object] = {
    "name": "dan",
    "kind": "person",
    "scopes": [scope for scope in PEOPLE if scope != "approvals:decide-high"],
}
CLEO: dict[str, object] = {"name": "cleo", "kind": "person", "scopes": PEOPLE}
_NUMBERS = itertools.count(1)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-key"}


def asks(risk: str = "medium", action: str = "act_peer", **further: str) -> str:
    """Returns the text that makes the agent ask; ``further`` are members of its form."""
    form: JsonObject = {
        "action_id": action,
        "rev": 1,
        "digest": "sha256:ab",
        "kind": "permission",
        "title": "Pay 40 EUR",
        "subject": {"type": "tool_call", "name": "pay", "arguments": {"amount": "40"}},
        "options": [
            {"option_id": "yes", "name": "Pay", "kind": "allow_once"},
            {"option_id": "no", "name": "Do not", "kind": "reject_once"},
        ],
        "risk": risk,
        **further,
    }
    return f"ask-data {orjson.dumps({PERMISSION: form}).decode()}"


async def ask(at: Instance, risk: str = "medium", who: str = "ada") -> JsonObject:
    """Lets the agent ask in the name of a caller; returns the view of the approval."""
    known = {str(one["actionId"]) for one in await list_pending(at, who)}
    answered = await at.send(f"{who}-key", asks(risk, f"act_peer_{next(_NUMBERS)}"))
    assert answered.status_code == 200, answered.text
    task = cast("JsonObject", answered.json()["result"])["task"]
    assert cast("JsonObject", task)["id"]

    async def find() -> JsonObject | None:
        fresh = [one for one in await list_pending(at, who) if one["actionId"] not in known]
        return fresh[0] if fresh else None

    found = await wait_until(find, 10, "the approval is in the inbox")
    assert found is not None
    return found


async def list_pending(at: Instance, who: str) -> list[JsonObject]:
    answer = await at.http.get("/v1/approvals", headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return cast("list[JsonObject]", answer.json()["pending"])


def make_answer(view: JsonObject, option: str = "yes") -> JsonObject:
    """Returns an answer to the approval in a view."""
    return {
        "actionId": view["actionId"],
        "rev": view["rev"],
        "digest": view["digest"],
        "optionId": option,
        "decisionId": f"dec_{next(_NUMBERS)}",
    }


async def say(at: Instance, headers: dict[str, str], answer: JsonObject) -> httpx.Response:
    """Sends an answer over ``/v1``."""
    body = {**answer}
    action = body.pop("actionId")
    return await at.http.post(
        f"/v1/approvals/{action}/decision",
        json=body,
        headers={**headers, "Idempotency-Key": str(answer["decisionId"])},
    )


async def read(at: Instance, who: str, action: object) -> JsonObject:
    answer = await at.http.get(f"/v1/approvals/{action}", headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return cast("JsonObject", answer.json())
