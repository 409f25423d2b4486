"""Policy from outside: why a question was asked, standing approvals, and rules tried on what was asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from passerelle.cli.exit_status import find_exit_status
from passerelle.cli.main import app
from passerelle.core.approval.commands import FailReturn
from passerelle.core.errors import PasserelleError
from tests.integration.delegation.test_policy import asks
from tests.integration.devices.asking import ask as ask_on_device
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final = {
    "name": "ada",
    "kind": "person",
    "scopes": [
        *("a2a:call", "tasks:read", "tasks:write"),
        *("approvals:read", "approvals:decide", "approvals:grant"),
    ],
}
POLICY: Final = {
    "grants": {"scope": "owner", "max_uses": 5},
    "rules": [{"name": "no-drop", "effect": "deny", "when": "action.tool == 'drop'"}],
}


async def run(one: Instance, *arguments: str, status: int = 0) -> str:
    """What a verb prints, asked by ada; with another status than 0 what it complains of."""

    def invoke() -> str:
        url = str(one.http.base_url).rstrip("/")
        flags = ["--url", url, "--token-env", "ADA_KEY"]
        # The runner takes the streams of the whole process: lines of the gateway beside it stay out.
        with capture_logs():
            result = CliRunner(env={"ADA_KEY": "ada-key"}).invoke(
                app, ["approvals", *arguments, *flags]
            )
        error = result.exception
        ended = find_exit_status(error) if isinstance(error, PasserelleError) else result.exit_code
        assert ended == status, (result.output, error)
        return f"{result.output}{error}" if status else result.stdout

    return await asyncio.to_thread(invoke)


async def ask(one: Instance, tool: str) -> dict[str, Any]:
    """A question of the agent about a tool, once it is open."""
    headers = {"Authorization": "Bearer ada-key"}
    before = await list_pending(one)
    turn = {"agent": "echo", "text": asks(tool)}
    await one.http.post("/v1/turns", json=turn, headers=headers)

    async def look() -> dict[str, Any] | None:
        fresh = [view for view in await list_pending(one) if view not in before]
        return fresh[0] if fresh else None

    found: dict[str, Any] | None = await wait_until(look, 10, "the question is open")
    assert found is not None
    return found


async def list_pending(one: Instance) -> list[dict[str, Any]]:
    headers = {"Authorization": "Bearer ada-key"}
    answer = await one.http.get("/v1/approvals", headers=headers)
    return cast("list[dict[str, Any]]", answer.json()["pending"])


async def answer(one: Instance, view: dict[str, Any], option: str) -> None:
    body = {"rev": 1, "digest": view["digest"], "decisionId": view["actionId"], "optionId": option}
    headers = {"Authorization": "Bearer ada-key", "Idempotency-Key": view["actionId"]}
    path = f"/v1/approvals/{view['actionId']}/decision"
    done = await one.http.post(path, json=body, headers=headers)
    assert done.status_code == 200, done.text


@pytest.mark.requirement("VAL-8")
async def test_question_is_explained_by_every_source_that_spoke(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    view = await ask(one, "pay")
    await answer(one, view, "yes")
    headers = {"Authorization": "Bearer ada-key"}
    path = f"/v1/approvals/{view['actionId']}/explain"
    found = (await one.http.get(path, headers=headers)).json()
    assert found["evaluation"]["evaluationId"] == view["evaluationId"]
    assert [step["source"] for step in found["evaluation"]["trail"]] == ["default"]
    types = [fact["type"] for fact in found["facts"]]
    assert types[:3] == ["permission.evaluated", "action.required", "permission.requested"]
    assert "action.resolved" in types
    printed = await run(one, "explain", view["actionId"])
    assert "ask by default: what a peer asks is for somebody to decide" in printed
    assert "action.resolved" in printed
    stranger = await one.http.get(f"{path.replace('act_', 'act_0')}", headers=headers)
    assert stranger.status_code == 404


async def test_rules_in_force_are_shown_to_whom_they_speak_of_and_to_nobody_else(rig: Rig) -> None:
    eve = {"name": "eve", "scopes": ["audit:read"]}
    mine = {"rules": [{"name": "mine", "effect": "ask", "when": "action.tool == 'pay'"}]}
    hook = {"name": "scan", "points": ["before_delegate"], "url": "http://127.0.0.1:9/scan?key=s3"}
    tier = {"risk": "high", "who": ["ada", "eve"], "need": 2}
    stated = {**POLICY, "owners": {"eve": mine}, "hooks": [hook], "approvers": [tier]}
    one = await rig.start(clients=[ADA, eve, {**eve, "name": "bob"}], policy=stated)

    async def read(name: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {name}-key"}
        answered = await one.http.get("/v1/policy", headers=headers)
        assert "s3" not in answered.text
        return {**answered.json(), "status": answered.status_code}

    shown, other = await read("eve"), await read("bob")
    assert [(rule["name"], rule.get("owner")) for rule in shown["rules"]] == [
        ("no-drop", None),
        ("mine", "eve"),
    ]
    assert shown["rules"][0]["when"] == "action.tool == 'drop'"
    assert (shown["hooks"], shown["grantScope"], shown["approvers"][0]["need"]) == (
        ["scan"],
        "owner",
        2,
    )
    assert [rule["name"] for rule in other["rules"]] == ["no-drop"]
    assert shown["version"] == other["version"]
    assert (await read("ada"))["status"] == 403


@pytest.mark.requirement("EXT-1")
async def test_other_rules_are_tried_on_what_was_asked_and_change_nothing(
    rig: Rig, tmp_path: Path
) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    for tool in ("pay", "look"):
        await ask(one, tool)
    other = {
        "policy": {"rules": [{"name": "pay", "effect": "allow", "when": "action.tool == 'pay'"}]}
    }
    file = tmp_path / "other.yaml"
    file.write_bytes(orjson.dumps(other))
    printed = await run(one, "dry-run", "--policy", str(file))
    assert "dry run: 1 of 2 would have another decision" in printed
    assert "tool_call <- echo" in printed
    answered = orjson.loads(await run(one, "dry-run", "--policy", str(file), "--json"))
    said = {
        (case["before"], case.get("now"), tuple(case["rules"]))
        for case in answered["cases"]
        if case["subject"].startswith("tool_call")
    }
    assert said == {("ask", "allow", ("pay",)), ("ask", "ask", ())}
    assert len(await list_pending(one)) == 2
    headers = {"Authorization": "Bearer ada-key"}
    wrong = {"name": "x", "effect": "deny", "when": "nobody == 1"}
    bad: list[dict[str, Any]] = [{"hooks": []}, {"rules": [wrong]}]
    for policy in bad:
        body = {"policy": policy}
        refused = await one.http.post("/v1/policy/try", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")


@pytest.mark.requirement("EXT-3")
async def test_standing_yes_is_listed_and_revoked_by_hand(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    await answer(one, await ask(one, "pay"), "always")

    async def is_there() -> bool:
        return "1 of 1 hold" in await run(one, "grants")

    assert await wait_until(is_there, 10, "the grant is written")
    listed = orjson.loads(await run(one, "grants", "--json"))["grants"]
    [grant] = listed
    assert (grant["scope"], grant["maxUses"]) == ("owner", 5)
    assert "revoked" in await run(one, "revoke", grant["grantId"])
    assert "gone" in await run(one, "revoke", grant["grantId"])
    assert "0 of 1 hold" in await run(one, "grants")
    assert "bypass until" in await run(one, "bypass", "--seconds", "60")
    assert "bypass until" in await run(one, "grants")
    assert "bypass is off" in await run(one, "bypass", "--seconds", "0")


@pytest.mark.requirement("CMD-21")
async def test_policy_is_asked_from_a_shell_and_writes_nothing(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    denied = await run(one, "evaluate", "--agent", "echo", "--tool", "drop", "--args", "{}")
    assert denied.startswith("deny by rule: the rule no-drop")
    assert "risk: medium" in denied
    judged = orjson.loads(
        await run(one, "evaluate", "--agent", "echo", "--tool", "pay", "--destructive", "--json")
    )
    assert (judged["decision"], judged["risk"]) == ("ask", "high")
    told = await run(one, "evaluate", "--about", "delegations", "--agent", "echo", "--text", "hi")
    assert told.startswith("allow by default")
    spent = await run(one, "evaluate", "--command", "git status", "--risk", "critical", "--json")
    assert orjson.loads(spent)["risk"] == "critical"
    for wrong in ("[1]", "{"):
        said = await run(one, "evaluate", "--tool", "pay", "--args", wrong, status=2)
        assert "--args" in said
    assert await list_pending(one) == []
    assert rig.list_sessions() == []


async def test_caller_takes_back_the_question_about_its_own_command(rig: Rig) -> None:
    no_stop = {
        "name": "no-stop",
        "effect": "ask",
        "about": ["commands"],
        "when": "action.tool == 'cancel_task'",
    }
    one = await rig.start(clients=[ADA], policy={"rules": [no_stop]})
    headers = {"Authorization": "Bearer ada-key"}
    turn = {"agent": "echo", "text": "silent"}
    begun = (await one.http.post("/v1/turns", json=turn, headers=headers)).json()
    path = f"/v1/tasks/{begun['taskId']}/cancel"
    refused = (await one.http.post(path, headers=headers)).json()
    assert refused["code"] == "approval_required"
    action = str(refused["actionId"])
    assert await run(one, "cancel", action) == f"cancelled  {action}\n"
    assert await run(one, "cancel", action) == f"cancelled  {action}\n"
    shown = await run(one, "show", action)
    assert "cancelled" in shown
    # Who wants the same again asks again.
    anew = (await one.http.post(path, headers=headers)).json()
    assert (anew["code"], anew["actionId"] == action) == ("approval_required", False)


async def test_question_of_an_agent_is_not_the_owners_to_take_back(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    view = await ask(one, "pay")
    said = await run(one, "cancel", view["actionId"], status=6)
    assert "only the caller that asked for an approval may withdraw it" in said
    assert await list_pending(one) == [view]


async def test_answer_that_did_not_arrive_is_tried_again_from_a_shell(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    view = await ask(one, "pay")
    action = str(view["actionId"])
    early = await run(one, "retry-return", action, status=2)
    assert "delivery none" in early
    await rig.peer.stop()
    await answer(one, view, "yes")
    # What the driver does when the agent has gone on without the answer.
    await one.gateway.parts.actions.close(action, FailReturn("stale"))
    assert "undeliverable" in await run(one, "show", action)
    assert await run(one, "retry-return", action) == f"pending  {action}\n"
    headers = {"Authorization": "Bearer ada-key"}
    shown = (await one.http.get(f"/v1/approvals/{action}", headers=headers)).json()
    assert (shown["returnState"], shown["delivery"]) in {
        ("owed", "pending"),
        ("returning", "delivering"),
    }


async def test_list_in_a_shell_goes_on_where_it_ended(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    older, newer = [(await ask(one, tool))["actionId"] for tool in ("pay", "look")]
    first = await run(one, "list", "--limit", "1", "--kind", "permission")
    assert newer in first
    assert older not in first
    *_, counted, more = first.splitlines()
    assert counted == "approvals: 1 pending on this page"
    words, _, token = more.rpartition(" ")
    assert words == "more: --page"
    last = await run(one, "list", "--limit", "1", "--page", token)
    assert older in last
    assert last.endswith("approvals: 1 pending\n")
    assert "approvals: 0 pending" in await run(one, "list", "--risk", "critical")


async def test_allowing_what_has_ended_says_who_decided_it_at_high_risk_too(rig: Rig) -> None:
    scopes = [*ADA["scopes"], "approvals:decide-high"]
    one = await rig.start(clients=[{**ADA, "scopes": scopes}])
    view = await ask_on_device(one, "high")
    action, digest = str(view["actionId"]), str(view["digest"])
    assert "pass the --digest" in await run(one, "allow", action, status=6)
    assert (await run(one, "list")).startswith("APPROVAL ")
    await run(one, "allow", action, "--digest", digest)
    assert "already resolved" in await run(one, "allow", action, status=3)
