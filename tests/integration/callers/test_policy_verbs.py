"""The policy commands: explain an approval, list and revoke standing approvals, try rules on past approvals."""

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
    """Runs an ``approvals`` command as ada. Returns its output; with ``status`` other than 0, its error as well."""

    def invoke() -> str:
        url = str(one.http.base_url).rstrip("/")
        flags = ["--url", url, "--token-env", "ADA_KEY"]
        # The runner captures the streams of the whole process: keep the gateway's log lines out.
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
    """Lets the agent ask about a tool; returns the open approval."""
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
async def test_approval_is_explained_by_every_source_of_the_decision(rig: Rig) -> None:
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
    assert "ask by default: requests of a peer need an approval" in printed
    assert "action.resolved" in printed
    stranger = await one.http.get(f"{path.replace('act_', 'act_0')}", headers=headers)
    assert stranger.status_code == 404


async def test_rules_are_shown_only_to_the_callers_that_they_apply_to(rig: Rig) -> None:
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
async def test_other_rules_are_tried_on_past_requests_and_change_nothing(
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
async def test_standing_approval_is_listed_and_revoked(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    await answer(one, await ask(one, "pay"), "always")

    async def is_there() -> bool:
        return "1 of 1 valid" in await run(one, "grants")

    assert await wait_until(is_there, 10, "the grant is written")
    listed = orjson.loads(await run(one, "grants", "--json"))["grants"]
    [grant] = listed
    assert (grant["scope"], grant["maxUses"]) == ("owner", 5)
    assert "revoked" in await run(one, "revoke", grant["grantId"])
    assert "gone" in await run(one, "revoke", grant["grantId"])
    assert "0 of 1 valid" in await run(one, "grants")
    assert "bypass until" in await run(one, "bypass", "--seconds", "60")
    assert "bypass until" in await run(one, "grants")
    assert "bypass is off" in await run(one, "bypass", "--seconds", "0")


@pytest.mark.requirement("CMD-21")
async def test_policy_is_evaluated_from_a_shell_and_writes_nothing(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    denied = await run(one, "evaluate", "--agent", "echo", "--tool", "drop", "--args", "{}")
    assert denied.startswith("deny by rule: the rule no-drop")
    assert "risk: medium" in denied
    judged = orjson.loads(
        await run(one, "evaluate", "--agent", "echo", "--tool", "pay", "--destructive", "--json")
    )
    assert (judged["decision"], judged["risk"]) == ("ask", "high")
    allowed = await run(
        one, "evaluate", "--about", "delegations", "--agent", "echo", "--text", "hi"
    )
    assert allowed.startswith("allow by default")
    spent = await run(one, "evaluate", "--command", "git status", "--risk", "critical", "--json")
    assert orjson.loads(spent)["risk"] == "critical"
    for wrong in ("[1]", "{"):
        said = await run(one, "evaluate", "--tool", "pay", "--args", wrong, status=2)
        assert "--args" in said
    assert await list_pending(one) == []
    assert rig.list_sessions() == []


async def test_caller_withdraws_the_approval_request_of_its_own_command(rig: Rig) -> None:
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
    # The same command afterwards opens a new approval request.
    anew = (await one.http.post(path, headers=headers)).json()
    assert (anew["code"], anew["actionId"] == action) == ("approval_required", False)


async def test_owner_cannot_withdraw_an_agents_approval_request(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    view = await ask(one, "pay")
    said = await run(one, "cancel", view["actionId"], status=6)
    assert "only the caller that asked for an approval may withdraw it" in said
    assert await list_pending(one) == [view]


async def test_failed_delivery_of_a_decision_is_retried_from_a_shell(rig: Rig) -> None:
    one = await rig.start(clients=[ADA], policy=POLICY)
    view = await ask(one, "pay")
    action = str(view["actionId"])
    early = await run(one, "retry-return", action, status=2)
    assert "delivery none" in early
    await rig.peer.stop()
    await answer(one, view, "yes")
    # The driver does this when the agent has continued without the answer.
    await one.gateway.parts.actions.close(action, FailReturn("stale"))
    assert "undeliverable" in await run(one, "show", action)
    assert await run(one, "retry-return", action) == f"pending  {action}\n"
    headers = {"Authorization": "Bearer ada-key"}
    shown = (await one.http.get(f"/v1/approvals/{action}", headers=headers)).json()
    assert (shown["returnState"], shown["delivery"]) in {
        ("owed", "pending"),
        ("returning", "delivering"),
    }


async def test_list_in_a_shell_continues_at_its_page_token(rig: Rig) -> None:
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


async def test_allowing_a_closed_approval_names_its_decider_at_high_risk_too(rig: Rig) -> None:
    scopes = [*ADA["scopes"], "approvals:decide-high"]
    one = await rig.start(clients=[{**ADA, "scopes": scopes}])
    view = await ask_on_device(one, "high")
    action, digest = str(view["actionId"]), str(view["digest"])
    assert "pass the --digest" in await run(one, "allow", action, status=6)
    assert (await run(one, "list")).startswith("APPROVAL ")
    await run(one, "allow", action, "--digest", digest)
    assert "already resolved" in await run(one, "allow", action, status=3)
