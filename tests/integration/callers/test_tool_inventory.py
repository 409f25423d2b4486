"""The tool inventory of a caller: its agents, the policy decision for each, and which are unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final = {
    "name": "ada",
    "kind": "person",
    "scopes": ["a2a:call", "approvals:grant"],
}
BOB: Final = {"name": "bob", "may_call": ["echo"]}
CARL: Final = {"name": "carl", "scopes": ["tasks:read"]}
RULES: Final = [
    {
        "name": "not-bob",
        "effect": "deny",
        "about": ["calls"],
        "when": 'caller.name == "bob"',
    },
    {
        "name": "vault-asks",
        "effect": "ask",
        "about": ["delegations"],
        "when": 'peer.name == "vault"',
    },
]


async def read(at: Instance, who: str, query: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {who}-key"}
    said = await at.http.get(f"/v1/tools{query}", headers=headers)
    assert said.status_code == 200, said.text
    found: dict[str, Any] = said.json()
    return found


async def list_states(at: Instance, who: str) -> dict[str, str]:
    return {one["agent"]: one["state"] for one in (await read(at, who))["agents"]}


async def start(rig: Rig, **settings: object) -> Instance:
    agents = [{"name": one, "url": rig.peer.url} for one in ("echo", "vault")]
    return await rig.start(clients=[ADA, BOB, CARL], agents=agents, **settings)


@pytest.mark.requirement("CMD-18", "SNAP-3")
async def test_two_callers_have_two_inventories_with_the_rules_that_apply(rig: Rig) -> None:
    at = await start(rig, policy={"rules": RULES})
    ada, bob = await read(at, "ada"), await read(at, "bob")
    assert [(one["agent"], one["state"], one["rules"]) for one in ada["agents"]] == [
        ("echo", "allowed", []),
        ("vault", "ask", ["vault-asks"]),
    ]
    assert [(one["agent"], one["state"], one["source"], one["rules"]) for one in bob["agents"]] == [
        ("echo", "denied", "rule", ["not-bob"])
    ]
    assert ada["policyVersion"] == bob["policyVersion"]
    (echo, _) = ada["agents"]
    assert [skill["id"] for skill in echo["skills"]] == ["echo"]
    assert rig.peer.url not in str(ada)
    assert not rig.peer.messages


@pytest.mark.requirement("CMD-18")
async def test_inventory_matches_what_happens_to_a_message(rig: Rig) -> None:
    at = await start(rig, policy={"rules": RULES})
    assert (await at.send("ada-key")).status_code == 200
    status = (await at.send("bob-key")).json()["result"]["task"]["status"]
    assert status["state"] == "TASK_STATE_REJECTED"
    assert "the rule not-bob" in str(status)
    headers = {"Authorization": "Bearer carl-key"}
    assert (await at.http.get("/v1/tools", headers=headers)).status_code == 403


@pytest.mark.requirement("SNAP-3")
async def test_states_follow_the_mode(rig: Rig) -> None:
    at, alone = [
        await start(rig, policy={"rules": RULES[1:], "mode": mode}) for mode in ("normal", "no_ask")
    ]
    assert [(await read(one, "ada"))["mode"] for one in (at, alone)] == ["normal", "no_ask"]
    assert await list_states(at, "ada") == {"echo": "allowed", "vault": "ask"}
    assert await list_states(alone, "ada") == {"echo": "allowed", "vault": "denied"}


@pytest.mark.requirement("SNAP-3")
async def test_inventory_shows_an_active_bypass(rig: Rig) -> None:
    at = await start(rig, policy={"rules": RULES})
    assert not (await read(at, "ada"))["bypass"]
    headers = {"Authorization": "Bearer ada-key", "Idempotency-Key": "on"}
    done = await at.http.post("/v1/policy/bypass", json={"seconds": 60}, headers=headers)
    assert done.status_code == 200, done.text
    assert (await read(at, "ada"))["bypass"]


@pytest.mark.requirement("CMD-18")
async def test_unreachable_agent_is_unavailable_and_a_denied_one_stays_denied(rig: Rig) -> None:
    agents = [{"name": "echo", "url": rig.peer.url}, {"name": "gone", "url": "http://127.0.0.1:9"}]
    at = await rig.start(clients=[ADA, BOB], agents=agents, policy={"rules": RULES[:1]})
    assert await list_states(at, "ada") == {"echo": "allowed", "gone": "unavailable"}
    await rig.peer.stop()

    async def is_held_back() -> bool:
        await at.send("ada-key")
        return (await list_states(at, "ada"))["echo"] == "unavailable"

    await wait_until(is_held_back, 30, "calls to the agent have failed")
    found = {one["agent"]: one for one in (await read(at, "ada"))["agents"]}
    assert found["echo"]["reason"] == "calls to it have failed"
    assert found["gone"]["reason"] == "its card could not be read"
    assert await list_states(at, "bob") == {"echo": "denied"}


@pytest.mark.requirement("CMD-18")
async def test_credential_without_message_operations_is_denied(rig: Rig) -> None:
    reader = {"name": "dora", "may_call": [{"agent": "echo", "operations": ["GetTask"]}]}
    at = await rig.start(clients=[reader])
    (echo,) = (await read(at, "dora"))["agents"]
    assert (echo["state"], echo["source"]) == ("denied", "credential")


@pytest.mark.requirement("CMD-18")
async def test_inventory_of_a_skill_or_tag_lists_the_agents_with_it(rig: Rig) -> None:
    agents = [{"name": "echo", "url": rig.peer.url, "tags": ["standard"]}]
    agents += [{"name": "vault", "url": rig.peer.url}]
    at = await rig.start(clients=[ADA], agents=agents)
    found = {
        query: [one["agent"] for one in (await read(at, "ada", query))["agents"]]
        for query in ("?tag=standard", "?skill=echo", "?skill=paint")
    }
    assert found == {
        "?tag=standard": ["echo"],
        "?skill=echo": ["echo", "vault"],
        "?skill=paint": [],
    }
