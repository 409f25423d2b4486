"""Workers request approval over HTTP before they act: rules, a person or a host's policy decide, and only that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from tests.support.waiting import wait_until
from tests.support.worker_program import CommandWorker

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final = {
    "name": "ada",
    "kind": "person",
    "scopes": [
        "a2a:call",
        "tasks:read",
        "tasks:write",
        "approvals:read",
        "approvals:decide",
        "approvals:decide-high",
    ],
}
BUILDER: Final = {"name": "builder", "kind": "agent", "scopes": ["approvals:ask"]}
HOST: Final = {"name": "host", "scopes": ["approvals:host"]}
POLICY: Final = {
    "rules": [
        {"name": "look", "effect": "allow", "argv": ["git", "status"]},
        {"name": "never", "effect": "deny", "argv": ["rm"]},
    ]
}


async def start(rig: Rig, **policy: object) -> tuple[Instance, CommandWorker]:
    """Starts a gateway, and a worker on a running task of Ada's."""
    one = await rig.start(clients=[ADA, BUILDER, HOST], policy={**POLICY, **policy})
    turn = {"agent": "echo", "text": "slow 8"}
    accepted = (await one.http.post("/v1/turns", json=turn, headers=key("ada"))).json()
    return one, CommandWorker(one.http, "builder-key", accepted["taskId"])


def key(name: str, idem: str = "") -> dict[str, str]:
    headers = {"Authorization": f"Bearer {name}-key"}
    return headers | ({"Idempotency-Key": idem} if idem else {})


async def decide(one: Instance, view: JsonObject, option: str) -> None:
    body = {
        "rev": view["rev"],
        "digest": view["digest"],
        "decisionId": "dec_1",
        "optionId": option,
    }
    path = f"/v1/approvals/{view['actionId']}/decision"
    answer = await one.http.post(path, json=body, headers=key("ada", "k-1"))
    assert answer.status_code == 200, answer.text


async def read_events(one: Instance, worker: CommandWorker) -> list[dict[str, Any]]:
    record = (await one.http.get(f"/v1/tasks/{worker.task}", headers=key("ada"))).json()
    return await one.read_session(record["sessionId"])


@pytest.mark.requirement("CMD-21", "EXT-1", "VAL-8")
async def test_rules_decide_for_a_worker_and_a_person_decides_the_rest(rig: Rig) -> None:
    one, worker = await start(rig)
    allowed = await worker.ask("git status", "a-1")
    assert allowed["state"] == "allowed"
    assert (await worker.run(allowed, "git status")).status_code == 200
    denied = await worker.ask("rm -rf /", "a-2")
    assert denied["state"] == "rejected"
    assert (await worker.run(denied, "rm -rf /")).status_code == 409
    asked = await worker.ask("make install", "a-3")
    assert (asked["state"], asked["title"]) == (
        "pending",
        "builder asks for permission to run a command: make install",
    )
    record = (await one.http.get(f"/v1/tasks/{worker.task}", headers=key("ada"))).json()
    assert record["status"] == "waiting_permission"
    assert (await worker.ask("make install", "a-3"))["actionId"] == asked["actionId"]
    early = await worker.run(asked, "make install")
    assert early.status_code == 409
    await decide(one, asked, "allow")
    answered = await worker.wait(asked)
    assert (await worker.run(answered, "make install")).status_code == 200
    assert (await worker.run(answered, "make install")).status_code == 409
    assert worker.ran == ["git status", "make install"]
    judged = [
        e["payload"] for e in await read_events(one, worker) if "evaluationId" in e["payload"]
    ]
    said = [(p["decision"], p["source"], tuple(p.get("rules", ()))) for p in judged[1:]]
    assert ("deny", "rule", ("never",)) in said
    assert ("allow", "rule", ("look",)) in said
    assert sum(p.get("consumes", False) for p in judged) == 2


async def test_one_changed_byte_is_another_action_and_is_refused(rig: Rig) -> None:
    one, worker = await start(rig, rules=[])
    asked = await worker.ask("make install", "a-1")
    await decide(one, asked, "allow")
    view = await worker.wait(asked)
    for other in ("make  install", "make installs", "make install\u200b"):
        refused = await worker.run(view, other)
        assert (refused.status_code, refused.json()["code"]) == (412, "digest_mismatch")
    # An escaped character looks like the spelt-out escape, but is another action.
    spelt = await worker.ask("make \\u{200b}", "a-2")
    body = {"rev": 1, "digest": spelt["digest"], "decisionId": "dec_2", "optionId": "allow"}
    path = f"/v1/approvals/{spelt['actionId']}/decision"
    await one.http.post(path, json=body, headers=key("ada", "k-2"))
    hidden = await worker.run(await worker.wait(spelt), "make \u200b")
    assert (hidden.status_code, hidden.json()["code"]) == (412, "digest_mismatch")
    assert worker.ran == []


async def test_rule_that_denies_now_overrides_an_earlier_approval(rig: Rig) -> None:
    one, worker = await start(rig)
    asked = await worker.ask("make install", "a-1")
    await decide(one, asked, "allow")
    view = await worker.wait(asked)
    no_make = {"name": "no-make", "effect": "deny", "argv": ["make"]}
    changed = one.settings.model_validate(
        {**one.settings.model_dump(), "policy": {"rules": [no_make]}}
    )
    one.gateway.terms.reload(changed)
    refused = await worker.run(view, "make install")
    assert refused.status_code == 409
    assert "now denies it" in refused.json()["detail"]
    assert worker.ran == []


@pytest.mark.requirement("CMD-21")
async def test_host_policy_decides_an_approval_and_is_named_as_its_cause(rig: Rig) -> None:
    one, worker = await start(rig)
    asked = await worker.ask("make install", "a-1")
    path = f"/v1/approvals/{asked['actionId']}/resolve"
    body = {
        "rev": asked["rev"],
        "digest": asked["digest"],
        "decisionId": "dec_h",
        "optionId": "allow",
    }
    for name in ("builder", "ada"):
        assert (await one.http.post(path, json=body, headers=key(name))).status_code == 403
    resolved = await one.http.post(path, json=body, headers=key("host"))
    assert resolved.status_code == 200, resolved.text
    decision = resolved.json()["action"]["decision"]
    assert (decision["cause"], decision["decidedBy"]) == ("host_policy", "host")
    assert (await worker.run(asked, "make install")).status_code == 200
    late = await one.http.post(path, json={**body, "decisionId": "dec_i"}, headers=key("host"))
    assert (late.status_code, late.json()["code"]) == (409, "already_resolved")


@pytest.mark.requirement("CMD-21")
async def test_dry_run_reports_the_decision_and_writes_nothing(rig: Rig) -> None:
    one, worker = await start(
        rig,
        rules=[{"name": "no-mail", "effect": "ask", "about": ["delegations"]}],
        grants={"scope": "owner"},
    )

    async def is_asked() -> bool:
        return any(e["type"] == "permission.requested" for e in await read_events(one, worker))

    await wait_until(is_asked, 15, "the question whether the task itself may go on")
    before = await list_judgements(one, worker)
    body = {"about": "delegations", "agent": "echo", "text": "hello"}
    judged = await one.http.post("/v1/approvals/evaluate", json=body, headers=key("ada"))
    assert judged.status_code == 200, judged.text
    found = judged.json()
    assert (found["decision"], found["source"], found["rules"]) == ("ask", "rule", ["no-mail"])
    body = {"about": "delegations", "agent": "nobody"}
    unknown = await one.http.post("/v1/approvals/evaluate", json=body, headers=key("ada"))
    assert unknown.json()["decision"] == "deny"
    for wrong in ("x", "a\x00b", f"se_00{'0' * 26}", f"task_00{'0' * 26}"):
        body = {"about": "calls", "agent": "echo", "taskId": wrong}
        refused = await one.http.post("/v1/approvals/evaluate", json=body, headers=key("ada"))
        assert (refused.status_code, refused.json()["kind"]) == (404, "task"), wrong
    huge = {"subject": {"tool": "pay", "arguments": {"amount": 2**53 + 1}}}
    unsound = await one.http.post("/v1/approvals/evaluate", json=huge, headers=key("ada"))
    assert (unsound.json()["decision"], unsound.json()["source"]) == ("deny", "integrity")
    # The running task writes events of its own.
    assert await list_judgements(one, worker) == before


async def list_judgements(one: Instance, worker: CommandWorker) -> list[str]:
    """Returns the ids of the events about permissions and approvals."""
    classes = ("permission.", "action.", "grant.", "hook.")
    events = await read_events(one, worker)
    return [str(event["eventId"]) for event in events if str(event["type"]).startswith(classes)]


async def test_worker_asks_only_for_tasks_of_its_tenant_and_reads_only_its_own_approvals(
    rig: Rig,
) -> None:
    one, worker = await start(rig)
    stranger = CommandWorker(one.http, "builder-key", "task_nowhere")
    body = {
        "taskId": stranger.task,
        "actionType": "command",
        "subject": {"command": "ls"},
        "dedupeKey": "x",
    }
    missing = await one.http.post("/v1/approvals", json=body, headers=key("builder"))
    assert missing.status_code == 404
    asked = await worker.ask("make install", "a-1")
    path = f"/v1/approvals/{asked['actionId']}"
    assert (await one.http.get(path, headers=key("host"))).status_code in {403, 404}
    decision = {"rev": 1, "digest": asked["digest"], "decisionId": "d", "optionId": "allow"}
    own = await one.http.post(f"{path}/decision", json=decision, headers=key("builder", "k"))
    assert own.status_code == 403


async def test_rejection_resumes_the_task_that_waited_for_it(rig: Rig) -> None:
    one, worker = await start(rig)
    asked = await worker.ask("make install", "a-1")
    await decide(one, asked, "reject")
    assert (await worker.wait(asked))["state"] == "rejected"

    async def goes_on() -> bool:
        path = f"/v1/tasks/{worker.task}"
        record = cast("JsonObject", (await one.http.get(path, headers=key("ada"))).json())
        return record["status"] == "running"

    assert await wait_until(goes_on, 15, "the task goes on")
    assert (await worker.run(asked, "make install")).status_code == 409


async def read_status(one: Instance, worker: CommandWorker) -> str:
    record = (await one.http.get(f"/v1/tasks/{worker.task}", headers=key("ada"))).json()
    return str(record["status"])


@pytest.mark.requirement("CMD-21", "EVC-10")
async def test_worker_withdraws_its_request_once_and_its_task_resumes(rig: Rig) -> None:
    one, worker = await start(rig)
    asked = await worker.ask("make install", "a-1")
    assert await read_status(one, worker) == "waiting_permission"
    path = f"/v1/approvals/{asked['actionId']}/cancel"
    # No other caller may withdraw it: neither an approver nor a host; a stranger does not learn that it exists.
    by_owner = await one.http.post(path, headers=key("ada"))
    assert (by_owner.status_code, by_owner.json()["code"]) == (403, "not_asker")
    assert (await one.http.post(path, headers=key("host"))).status_code == 403
    gone = await one.http.post(path, headers=key("builder"))
    assert gone.status_code == 200, gone.text
    view = gone.json()["action"]
    assert (view["state"], view["decision"]["cause"]) == ("cancelled", "asker_withdrew")
    again = await one.http.post(path, headers=key("builder"))
    assert (again.status_code, again.json()["repeated"]) == (200, True)
    assert again.json()["action"] == view

    async def goes_on() -> bool:
        return await read_status(one, worker) == "running"

    assert await wait_until(goes_on, 20, "the task goes on")
    body = {"rev": 1, "digest": asked["digest"], "decisionId": "dec_1", "optionId": "allow"}
    late = await one.http.post(
        f"/v1/approvals/{asked['actionId']}/decision", json=body, headers=key("ada", "k-1")
    )
    assert (late.status_code, late.json()["code"]) == (410, "cancelled")
    assert (await worker.run(asked, "make install")).status_code == 410
    assert worker.ran == []
    # A repeated withdrawal is one fact.
    ends = [e for e in await read_events(one, worker) if e["type"] == "action.resolved"]
    assert len(ends) == 1


async def test_decided_approval_cannot_be_withdrawn_and_names_its_winner(rig: Rig) -> None:
    one, worker = await start(rig)
    asked = await worker.ask("make install", "a-1")
    await decide(one, asked, "allow")
    path = f"/v1/approvals/{asked['actionId']}/cancel"
    late = await one.http.post(path, headers=key("builder"))
    assert (late.status_code, late.json()["code"]) == (409, "already_resolved")
    assert late.json()["winner"]["decidedBy"] == "ada"
    assert (await worker.run(asked, "make install")).status_code == 200
    nowhere = await one.http.post("/v1/approvals/act_nowhere/cancel", headers=key("builder"))
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
    odd = await one.http.post(path, json={"why": "no"}, headers=key("builder"))
    assert (odd.status_code, odd.json()["code"]) == (400, "invalid_input")
    assert "why" in odd.json()["detail"]


@pytest.mark.requirement("CMD-21")
async def test_caller_that_may_not_ask_learns_nothing_of_tasks(rig: Rig) -> None:
    """The scope to ask is checked first, and a key for other agents sees no task of this one."""
    asks = ["approvals:ask"]
    eve = {"name": "eve", "kind": "person", "scopes": asks}
    other = {"name": "other", "kind": "agent", "scopes": asks, "may_call": ["elsewhere"]}
    none = {"name": "none", "kind": "service", "scopes": asks, "may_call": []}
    own = {"name": "own", "kind": "service", "scopes": [*asks, "a2a:call"], "may_call": ["echo"]}
    one = await rig.start(clients=[ADA, BUILDER, eve, other, none, own])
    turn = {"agent": "echo", "text": "slow 8"}
    accepted = (await one.http.post("/v1/turns", json=turn, headers=key("ada"))).json()
    ended = {"agent": "echo", "text": "hello"}
    done = (await one.http.post("/v1/turns", json=ended, headers=key("ada"))).json()
    unknown = accepted["taskId"][:-4] + "zzzz"

    async def try_to_ask(who: str, task: str) -> tuple[int, str, str]:
        body = {
            "taskId": task,
            "actionType": "command",
            "subject": {"command": "ls"},
            "dedupeKey": f"{who}-{task}",
        }
        headers = {"Authorization": f"Bearer {who}-key"}
        answer = await one.http.post("/v1/approvals", json=body, headers=headers)
        refusal = answer.json()
        return (
            answer.status_code,
            refusal.get("code", ""),
            str(refusal.get("detail", "")).replace(task, ""),
        )

    tasks = (accepted["taskId"], done["taskId"], unknown, "task_nonsense")
    for who, status in (("eve", 403), ("other", 404), ("none", 404)):
        answers = {await try_to_ask(who, task) for task in tasks}
        assert [answer[0] for answer in answers] == [status], answers
    assert (await try_to_ask("builder", accepted["taskId"]))[0] == 201
    assert (await try_to_ask("own", accepted["taskId"]))[0] == 201
