"""The tools of a caller as a fact of its turn: stored when a rule restricts one, and again when that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from passerelle.control import tool_inventory

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

SCOPES: Final = ["a2a:call", "tasks:read", "tasks:write", "policy:write"]
ADA: Final = {"name": "ada", "kind": "person", "scopes": SCOPES}
BOB: Final = {"name": "bob", "scopes": SCOPES[:3]}


def make_rule(name: str, effect: str, about: str, when: str) -> dict[str, Any]:
    return {"name": name, "effect": effect, "about": [about], "when": when}


NO_VAULT: Final = make_rule(
    "no-vault", "deny", "calls", 'caller.name == "bob" && peer.name == "vault"'
)
ASK_FIRST: Final = make_rule("ask-first", "ask", "delegations", 'peer.name == "shed"')
NO_CANCEL: Final = make_rule("no-cancel", "deny", "commands", 'action.tool == "cancel_task"')


async def start(rig: Rig, *rules: dict[str, Any]) -> Instance:
    agents = [{"name": one, "url": rig.peer.url} for one in ("echo", "vault", "shed")]
    at = await rig.start(clients=[ADA, BOB], agents=agents, policy={"rules": [*rules]})
    # A turn reads no cards: the skills of an agent are unknown until its card has been read.
    said = await at.http.get("/v1/tools", headers={"Authorization": "Bearer ada-key"})
    assert said.status_code == 200, said.text
    return at


async def send(at: Instance, who: str, number: int = 0, **where: str) -> dict[str, Any]:
    """Sends a message; returns its Task."""
    message: dict[str, Any] = {
        "messageId": f"{who}-{number}",
        "role": "ROLE_USER",
        "parts": [{"text": "hello"}],
        **where,
    }
    said = (await at.call(f"{who}-key", "SendMessage", {"message": message})).json()
    assert "result" in said, said
    task: dict[str, Any] = said["result"]["task"]
    return task


async def edit(at: Instance, *rules: dict[str, Any]) -> None:
    """Replaces the edited rules, which apply in addition to those of the configuration."""
    headers = {"Authorization": "Bearer ada-key"}
    version = (await at.http.get("/v1/policy", headers=headers)).json()["rev"]
    put = {"rules": [*rules], "version": version}
    done = await at.http.put("/v1/policy", json=put, headers=headers)
    assert done.status_code == 200, done.text


async def list_catalogs(rig: Rig, at: Instance) -> list[dict[str, Any]]:
    """Returns the tool catalog facts of all sessions."""
    events = [one for session in rig.list_sessions() for one in await at.read_session(session)]
    return [one for one in events if one["type"] == "tool.catalog.resolved"]


@pytest.mark.requirement("EVC-8")
async def test_skills_of_a_denied_agent_are_in_the_turn_with_the_rule(rig: Rig) -> None:
    at = await start(rig, NO_VAULT, ASK_FIRST, NO_CANCEL)
    await send(at, "bob")
    (event,) = await list_catalogs(rig, at)
    assert {"sessionId", "threadId", "turnId", "taskId"} <= event.keys()
    said = event["payload"]
    assert (said["caller"], said["allowed"], said["mode"]) == ("bob", 1, "normal")
    assert said["policyVersion"] == at.gateway.terms.find_rules().version
    assert [
        (one["kind"], one.get("peer"), one["state"], one["names"], one["rules"])
        for one in said["groups"]
    ] == [
        ("skill", "vault", "denied", ["echo"], ["no-vault"]),
        ("skill", "shed", "ask", ["echo"], ["ask-first"]),
        ("gateway_action", None, "denied", ["cancel_task"], ["no-cancel"]),
    ]


@pytest.mark.requirement("EVC-8")
async def test_two_callers_have_two_catalogs_and_an_unrestricted_one_has_none(rig: Rig) -> None:
    at = await start(rig, NO_VAULT)
    await send(at, "ada")
    assert await list_catalogs(rig, at) == []
    await send(at, "bob")
    assert [one["payload"]["caller"] for one in await list_catalogs(rig, at)] == ["bob"]


@pytest.mark.requirement("EVC-8")
async def test_thread_gets_a_new_catalog_only_when_its_tools_change(rig: Rig) -> None:
    at, said = await start(rig), list[int]()
    context = (await send(at, "bob"))["contextId"]

    for number, rules in enumerate([None, [NO_VAULT], None, [NO_VAULT, NO_CANCEL], [], None]):
        if rules is not None:
            await edit(at, *rules)
        await send(at, "bob", number + 1, contextId=context)
        said.append(len(await list_catalogs(rig, at)))
    assert said == [0, 1, 1, 2, 3, 3]
    first, second, last = (one["payload"] for one in await list_catalogs(rig, at))
    assert first["digest"] != second["digest"]
    assert (last["groups"], "digest" in last) == ([], False)


@pytest.mark.requirement("EVC-8")
async def test_groups_over_the_limit_are_counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_inventory, "NAMED_GROUPS", 1)
    at = await start(rig, NO_VAULT, ASK_FIRST, NO_CANCEL)
    await send(at, "bob")
    (event,) = await list_catalogs(rig, at)
    assert [one["peer"] for one in event["payload"]["groups"]] == ["vault"]
    assert event["payload"]["unnamed"] == 2
