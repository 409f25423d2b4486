"""Only an answer releases a task that waits for approval: of an agent's request and of a held message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pytest

from tests.integration.devices.asking import PEOPLE, asks, bearer, list_pending
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final[dict[str, object]] = {
    "name": "ada",
    "kind": "person",
    "scopes": [*PEOPLE, "tasks:write", "approvals:grant"],
}
HOLD: Final[dict[str, object]] = {
    "name": "hold",
    "effect": "ask",
    "about": ["delegations"],
    "when": 'peer.name == "vault"',
}
COMMANDS: Final[list[tuple[str, str, JsonObject]]] = [
    ("POST", "/v1/turns", {"agent": "{agent}", "taskId": "{task}", "text": "yes, go on"}),
    ("POST", "/v1/tasks/{task}/pause", {"reason": "a moment"}),
    ("POST", "/v1/tasks/{task}/resume", {"reason": "approved"}),
    ("POST", "/v1/tasks/{task}/start", {}),
    ("POST", "/v1/tasks/{task}/progress", {"phase": "working", "summary": "approved"}),
    ("POST", "/v1/tasks/{task}/progress", {"delivery": "delivered", "consumer": "facade"}),
    ("PATCH", "/v1/tasks/{task}", {"objective": "approved", "metadata": {"approved": True}}),
    ("POST", "/v1/tasks/{task}/retry", {"reason": "approved"}),
    ("POST", "/v1/tasks/{task}/complete", {"summary": "approved"}),
    ("POST", "/v1/threads/{thread}/resume", {}),
    ("POST", "/v1/approvals/{action}/use", {"subject": {"tool": "pay"}}),
    (
        "POST",
        "/v1/approvals/{action}/resolve",
        {"rev": 1, "digest": "{digest}", "decisionId": "d", "optionId": "{yes}"},
    ),
    ("POST", "/v1/approvals/{action}/cancel", {}),
    ("POST", "/v1/policy/bypass", {"seconds": 60}),
]


async def begin(at: Instance, agent: str) -> tuple[JsonObject, JsonObject]:
    """Starts a task that waits for approval; returns it as the caller sees it, and its approval."""
    text = asks("low", f"act_{agent}") if agent == "echo" else "keep this"
    message: JsonObject = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    said = await at.http.post(f"/agents/{agent}", json=body, headers=bearer("ada"))

    async def find() -> JsonObject | None:
        return next(iter(await list_pending(at, "ada")), None)

    view = await wait_until(find, 20, "the approval is pending")
    assert view is not None
    return cast("JsonObject", said.json()["result"]["task"]), view


def fill(value: object, names: dict[str, str]) -> object:
    if isinstance(value, str):
        return value.format(**names) if "{" in value else value
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {name: fill(one, names) for name, one in members.items()}
    return value


@pytest.mark.requirement("VAL-4", "CMD-14")
@pytest.mark.parametrize("agent", ["echo", "vault"])
async def test_no_other_command_releases_a_task_that_waits_for_approval(
    rig: Rig, agent: str
) -> None:
    agents = [{"name": one, "url": rig.peer.url} for one in ("echo", "vault")]
    at = await rig.start(clients=[ADA], agents=agents, policy={"rules": [HOLD]})
    task, view = await begin(at, agent)
    options = cast("list[JsonObject]", view["options"])
    names = {
        "agent": agent,
        "task": str(task["id"]),
        "thread": str(view["threadId"]),
        "action": str(view["actionId"]),
        "digest": str(view["digest"]),
        "yes": str(next(one["optionId"] for one in options if one["kind"] == "allow_once")),
    }
    sent = len(rig.peer.messages)
    for number, (method, path, body) in enumerate(COMMANDS):
        headers = {**bearer("ada"), "Idempotency-Key": f"other-{number}"}
        said = await at.http.request(
            method, path.format(**names), json=fill(body, names), headers=headers
        )
        assert said.status_code < 500, said.text
        shown = await at.http.get(f"/v1/approvals/{view['actionId']}", headers=bearer("ada"))
        assert shown.json()["state"] == "pending", (method, path)
        assert len(rig.peer.messages) == sent, (method, path)
    answer = {"rev": 1, "digest": names["digest"], "decisionId": "dec_1", "optionId": names["yes"]}
    decided = await at.http.post(
        f"/v1/approvals/{view['actionId']}/decision",
        json=answer,
        headers={**bearer("ada"), "Idempotency-Key": "yes"},
    )
    assert decided.json()["outcome"] == "won", decided.text
    await wait_until(lambda: len(rig.peer.messages) == sent + 1, 20, "it goes on")


@pytest.mark.requirement("EXT-1", "CMD-2")
async def test_rule_about_cancels_holds_back_a_session_interrupt_as_well(rig: Rig) -> None:
    rule = {
        "name": "no-stop",
        "effect": "ask",
        "about": ["commands"],
        "when": 'action.tool == "cancel_task"',
    }
    at = await rig.start(clients=[ADA], policy={"rules": [rule]})
    turn = {"agent": "echo", "text": "silent"}
    begun = (await at.http.post("/v1/turns", json=turn, headers=bearer("ada"))).json()
    await wait_until(lambda: rig.peer.messages, 20, "the agent is at work")

    async def interrupt(number: int) -> JsonObject:
        path = f"/v1/sessions/{begun['sessionId']}/interrupt"
        headers = {**bearer("ada"), "Idempotency-Key": f"stop-{number}"}
        said = await at.http.post(path, json={"reason": "enough"}, headers=headers)
        return cast("JsonObject", said.json())

    refused = await interrupt(1)
    assert refused["code"] == "approval_required"
    assert rig.peer.count("CancelTask") == 0
    path = f"/v1/approvals/{refused['actionId']}"
    view = (await at.http.get(path, headers=bearer("ada"))).json()
    yes = next(one["optionId"] for one in view["options"] if one["kind"] == "allow_once")
    answer = {"rev": 1, "digest": view["digest"], "decisionId": "dec_1", "optionId": yes}
    headers = {**bearer("ada"), "Idempotency-Key": "yes"}
    await at.http.post(f"{path}/decision", json=answer, headers=headers)
    assert rig.peer.count("CancelTask") == 0
    assert (await interrupt(2))["outcome"] == "accepted"
    await wait_until(lambda: rig.peer.count("CancelTask"), 20, "the agent receives the cancel")
