"""Causes each kind of blocker for real, reads it in every view, and resolves it by the id that it names (CF-8)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from passerelle.a2a_mapping.extensions import NAMED
from tests.integration.callers.rig import Answer, Instance, Rig
from tests.integration.callers.test_agent_queue import act, await_status, start
from tests.integration.callers.test_quota_waits import enlarge
from tests.support.scripted_peer import ScriptedResponse
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ADA: Final = {
    "name": "ada",
    "kind": "person",
    "scopes": [
        *("a2a:call", "tasks:read", "tasks:write"),
        *("approvals:read", "approvals:decide", "approvals:decide-high"),
    ],
}
WORKER: Final = {"name": "worker", "scopes": ["approvals:ask"]}
RULES: Final = [
    {
        "name": "vault-asks",
        "effect": "ask",
        "about": ["delegations"],
        "when": 'peer.name == "vault"',
    },
    {
        "name": "whoever",
        "effect": "allow",
        "about": ["delegations"],
        "when": 'peer.name != ""',
    },
]


async def list_blockers(one: Instance, task: str) -> list[Answer]:
    """Returns the blockers in the record of a task."""
    return list((await act(one, "GET", f"/v1/tasks/{task}")).get("blockers", []))


async def read_blockers(one: Instance, task: str) -> list[Answer]:
    """Returns the blockers of a blocked task; every view that shows them shows the same."""
    record = await act(one, "GET", f"/v1/tasks/{task}")
    found = record.get("blockers", [])
    snapshot = await act(one, "GET", f"/v1/sessions/{record['sessionId']}/tasks")
    thread = await act(one, "GET", f"/v1/threads/{record['threadId']}")
    explained = await act(one, "GET", f"/v1/tasks/{task}/explain")
    lists: list[list[Answer]] = [snapshot["blocked"], thread["pending"]]
    for listed in lists:
        mine = [blocked["blockers"] for blocked in listed if blocked["taskId"] == task]
        assert mine == ([found] if found else [])
    blocked = explained.get("blocked")
    assert (blocked["blockers"] if blocked else []) == found
    return list(found)


async def await_blocker(one: Instance, task: str, kind: str) -> Answer:
    """Waits until the task is blocked; returns its one blocker."""

    async def waits() -> bool:
        return [blocker["kind"] for blocker in await list_blockers(one, task)] == [kind]

    await wait_until(waits, 20, f"{task} waits, and says that it is a {kind}")
    (blocker,) = await read_blockers(one, task)
    assert blocker["reason"]
    return blocker


async def decide(one: Instance, action: str, option: str, text: str | None = None) -> None:
    """Answers the approval with this id."""
    view = await act(one, "GET", f"/v1/approvals/{action}")
    members: dict[str, Any] = {} if text is None else {"content": {"text": text}}
    await act(
        one,
        "POST",
        f"/v1/approvals/{action}/decision",
        rev=view["rev"],
        digest=view["digest"],
        decisionId=f"d-{action}",
        optionId=option,
        **members,
    )


async def finish(one: Instance, task: str) -> None:
    await await_status(one, task, "completed")
    assert await read_blockers(one, task) == []


@pytest.mark.requirement("CF-8", "SNAP-18")
async def test_question_of_the_agent_is_an_action(rig: Rig) -> None:
    one = await rig.start(clients=[ADA])
    task = await start(one, "ask red or blue?")
    blocker = await await_blocker(one, task, "action")
    assert "red or blue?" in blocker["reason"]
    await decide(one, blocker["target"], "reply", "red")
    await finish(one, task)


@pytest.mark.requirement("CF-8", "SNAP-18")
async def test_question_of_a_worker_is_an_action_in_addition_to_that_of_the_agent(rig: Rig) -> None:
    one = await rig.start(clients=[ADA, WORKER])
    task = await start(one, "auth sign in at the bank")
    await await_blocker(one, task, "credential")
    asked = await act(
        one,
        "POST",
        "/v1/approvals",
        "worker-key",
        taskId=task,
        actionType="tool_call",
        subject={"tool": "deploy"},
        dedupeKey="k-1",
    )
    both = await read_blockers(one, task)
    assert [blocker["kind"] for blocker in both] == ["credential", "action"]
    assert both[1]["target"] == asked["action"]["actionId"]
    assert "sign in at the bank" in both[0]["reason"]
    assert "sign in at the bank" not in both[1]["reason"]
    await decide(one, both[1]["target"], "allow")
    left = await await_blocker(one, task, "credential")
    await decide(one, left["target"], "reply", "signed in")
    await finish(one, task)


@pytest.mark.requirement("CF-8", "SNAP-18")
async def test_authorization_requested_by_the_agent_is_a_credential(rig: Rig) -> None:
    one = await rig.start(clients=[ADA])
    task = await start(one, "auth sign in at the bank")
    blocker = await await_blocker(one, task, "credential")
    assert "sign in at the bank" in blocker["reason"]
    await decide(one, blocker["target"], "reply", "signed in")
    await finish(one, task)


@pytest.mark.requirement("CF-8", "SNAP-18")
@pytest.mark.parametrize("option", ["send", "refuse"])
async def test_rule_that_asks_is_a_policy_and_is_named(rig: Rig, option: str) -> None:
    agents = [{"name": name, "url": rig.peer.url} for name in ("echo", "vault")]
    one = await rig.start(clients=[ADA], agents=agents, policy={"rules": RULES})
    turn = await act(one, "POST", "/v1/turns", agent="vault", text="open it")
    task = turn["taskId"]
    blocker = await await_blocker(one, task, "policy")
    assert blocker["rules"] == ["vault-asks"]
    assert rig.counted() == 0
    await decide(one, blocker["target"], option)
    if option == "send":
        await finish(one, task)
    else:
        await await_status(one, task, "failed", "cancelled")
        assert await read_blockers(one, task) == []
    assert rig.counted() == (option == "send")


@pytest.mark.requirement("CF-8", "SNAP-18", "LT-19")
async def test_ambiguous_artifact_name_is_a_context(rig: Rig) -> None:
    one = await rig.start(clients=[ADA])
    rig.peer.hold()
    sending = [
        asyncio.create_task(
            act(one, "POST", "/v1/turns", agent="echo", text=text, contextId="boats")
        )
        for text in ("draw a boat", "draw a ship")
    ]
    drawn = [(await turn)["taskId"] for turn in sending]
    await wait_until(lambda: rig.counted() == len(drawn), 20, "both are at the agent")
    rig.peer.release_all()
    for each in drawn:
        await await_status(one, each, "completed")
    params: Any = one.message("red")
    params["message"] |= {"contextId": "boats", "metadata": {NAMED: ["result"]}}
    answer = await one.call("ada-key", "SendMessage", params)
    task = answer.json()["result"]["task"]["id"]
    blocker = await await_blocker(one, task, "context")
    assert "result" in blocker["reason"]
    await decide(one, blocker["target"], "answer", "2")
    await finish(one, task)
    assert rig.counted() == 3


@pytest.mark.requirement("CF-8", "SNAP-18")
@pytest.mark.parametrize("way", ["completed", "unlinked"])
async def test_another_task_is_a_dependency(rig: Rig, way: str) -> None:
    one = await rig.start(clients=[ADA])
    first, second = [
        (await act(one, "POST", "/v1/tasks", agent="echo", objective=text))["task"]["taskId"]
        for text in ("first", "second")
    ]
    link = {"kind": "blocked_by", "target": first}
    await act(one, "POST", f"/v1/tasks/{second}/link", **link, reason="in order")
    blocker = await await_blocker(one, second, "dependency")
    assert (blocker["target"], blocker["reason"]) == (first, "in order")
    if way == "completed":
        await act(one, "POST", f"/v1/tasks/{blocker['target']}/start")
    else:
        await act(
            one,
            "POST",
            f"/v1/tasks/{second}/unlink",
            kind="blocked_by",
            target=blocker["target"],
        )
    await await_status(one, second, "accepted")
    assert await read_blockers(one, second) == []
    await act(one, "POST", f"/v1/tasks/{second}/start")
    await finish(one, second)


@pytest.mark.requirement("CF-8", "SNAP-18")
async def test_agent_over_its_rate_is_a_dependency_until_the_retry(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[ADA])
    rig.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "3"}))
    task = await start(one, "hello")
    blocker = await await_blocker(one, task, "dependency")
    assert blocker["target"] == "agent:echo"
    record = await act(one, "GET", f"/v1/tasks/{task}")
    assert blocker["until"] > record["statusAt"]
    await finish(one, task)
    assert rig.counted() == 2


@pytest.mark.requirement("CF-8", "SNAP-18")
async def test_exhausted_quota_of_the_owner_is_a_quota_until_its_next_period(rig: Rig) -> None:
    quota = {"calls": 1, "per": "month", "over": "wait"}
    one = await rig.start(clients=[{**ADA, "quotas": [quota]}])
    await finish(one, await start(one, "covered"))
    task = await start(one, "over it")
    blocker = await await_blocker(one, task, "quota")
    assert blocker["target"] == "quota:ada"
    assert blocker["until"].endswith("-01T00:00:00.000Z")
    await enlarge(one, 2)
    await finish(one, task)
