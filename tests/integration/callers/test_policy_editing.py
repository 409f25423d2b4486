"""Rules edited at running gateways: one of two concurrent edits wins, all instances apply it, its event names who."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.permission_bridge.governing.rule_edits import HOME, PolicyEditing
from passerelle.runtime.common import refresh as news_following
from passerelle.store import keys
from tests.integration.callers.test_policy_verbs import run
from tests.support.engine import ask
from tests.support.proof import prove_session
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import httpx

    from passerelle.core.batch import Loaded
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

EDITOR: Final = {
    "name": "ada",
    "kind": "person",
    "scopes": ["a2a:call", "tasks:read", "approvals:read", "policy:write"],
}
READER: Final = {"name": "bob", "scopes": ["a2a:call", "audit:read"]}
CLOSED: Final = {"name": "closed", "effect": "deny", "about": ["delegations"]}
OPEN: Final = {"name": "open", "effect": "allow", "about": ["delegations"], "when": "true"}
MINE: Final = {"name": "mine", "effect": "ask", "when": "action.tool == 'pay'", "owner": "ada"}


async def put(
    one: Instance,
    *rules: dict[str, Any],
    read: int,
    who: str = "ada",
    key: str = "",
    **more: object,
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {who}-key", "If-Match": f'"{read}"'}
    if key:
        headers["Idempotency-Key"] = key
    return await one.http.put("/v1/policy", json={"rules": [*rules], **more}, headers=headers)


async def get(one: Instance, who: str = "ada") -> httpx.Response:
    return await one.http.get("/v1/policy", headers={"Authorization": f"Bearer {who}-key"})


async def read_state(one: Instance) -> str:
    """Returns the state of a task that Bob sends now."""
    answered = (await one.send("bob-key")).json()["result"]["task"]
    return str(answered["status"]["state"])


async def until_applied(one: Instance, version: str) -> None:
    def is_applied() -> bool:
        return one.gateway.terms.find_rules().version == version

    await wait_until(is_applied, 20, "the other instance has the rules")


@pytest.mark.requirement("EXT-3")
async def test_edit_applies_here_at_once_then_at_all_instances_and_after_a_restart(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 3_600.0)
    first = await rig.start(clients=[EDITOR, READER])
    second = await rig.start(clients=[EDITOR, READER])
    before = await get(first)
    assert (before.json()["rev"], before.headers["ETag"]) == (1, '"1"')
    assert before.json()["edited"] == {"rules": []}
    assert await read_state(second) == "TASK_STATE_COMPLETED"
    done = await put(first, CLOSED, MINE, read=1)
    assert (done.status_code, done.headers["ETag"]) == (200, '"2"')
    assert await read_state(first) == "TASK_STATE_REJECTED"
    await until_applied(second, done.json()["version"])
    assert await read_state(second) == "TASK_STATE_REJECTED"
    third = await rig.start(clients=[EDITOR, READER])
    assert await read_state(third) == "TASK_STATE_REJECTED"
    shown = (await get(third)).json()
    assert shown["version"] == done.json()["version"]
    assert shown["edited"]["editedBy"] == "ada"
    assert [rule["name"] for rule in shown["edited"]["rules"]] == ["closed", "mine"]
    assert (await put(third, read=2)).json()["version"] == before.json()["version"]
    await until_applied(first, before.json()["version"])
    assert await read_state(first) == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("EXT-3")
async def test_each_edit_is_a_fact_with_the_editor_and_the_rules(rig: Rig) -> None:
    one = await rig.start(clients=[EDITOR])
    before = one.gateway.terms.find_rules().version
    done = (await put(one, CLOSED, read=1)).json()
    changed = (await one.read_home("owner"))[-1]
    assert changed["type"] == "policy.changed"
    assert changed["payload"] == {
        "change": "rules",
        "actor": "ada",
        "version": done["version"],
        "previous": before,
        "mode": "normal",
        "revision": 2,
        "rules": [{**CLOSED, "argv": [], "grantable": False}],
    }
    assert changed["timestamp"]
    await prove_session(one.gateway.store.log, one.gateway.parts.contents, HOME)
    assert (
        (await one.send("ada-key")).json()["result"]["task"]["status"]["state"].endswith("REJECTED")
    )
    (session,) = [name for name in rig.list_sessions() if name != HOME]
    (judged,) = [
        event["payload"]
        for event in await one.read_session(session)
        if event["type"] == "permission.evaluated" and event["payload"]["decision"] == "deny"
    ]
    assert (judged["policyVersion"], judged["rules"]) == (done["version"], ["edited:closed"])


async def test_one_concurrent_edit_wins_and_the_others_get_a_version_mismatch(rig: Rig) -> None:
    two = [await rig.start(clients=[EDITOR]), await rig.start(clients=[EDITOR])]
    names = [f"r{number}" for number in range(8)]
    answers = await asyncio.gather(
        *(
            put(two[place % 2], {"name": name, "effect": "deny"}, read=1)
            for place, name in enumerate(names)
        )
    )
    won = [place for place, answer in enumerate(answers) if answer.status_code == 200]
    assert len(won) == 1
    for place, answer in enumerate(answers):
        if place not in won:
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (412, "version_mismatch")
            assert (problem["expected"], problem["actual"]) == (1, 2)
    for one in two:
        (rule,) = (await get(one)).json()["edited"]["rules"]
        assert rule["name"] == names[won[0]]
    assert (await put(two[0], OPEN, read=1)).status_code == 412
    facts = [
        event for event in await two[0].read_home("owner") if event["type"] == "policy.changed"
    ]
    assert len(facts) == 1


@pytest.mark.requirement("CMD-30")
async def test_repeated_edit_is_executed_once(rig: Rig) -> None:
    one = await rig.start(clients=[EDITOR])
    first = (await put(one, CLOSED, read=1, key="k1")).json()
    again = await put(one, CLOSED, read=1, key="k1")
    assert (again.status_code, again.json()["repeated"]) == (200, True)
    assert (again.json()["rev"], again.json()["version"]) == (2, first["version"])
    assert (await put(one, OPEN, read=1, key="k1")).status_code == 409
    assert (await get(one)).json()["rev"] == 2


async def test_an_invalid_rule_writes_nothing_and_is_named(rig: Rig) -> None:
    one = await rig.start(clients=[EDITOR])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**OPEN, "when": "peer.nome == 'x'"}, "rules.1.when"),
        ({**OPEN, "effect": "maybe"}, "rules.1.effect"),
        ({**OPEN, "approvers": {"who": ["ada"]}}, "rules.1.approvers"),
        (CLOSED, "rules.1.name"),
        ({**CLOSED, "name": "Not a name"}, "rules.1.name"),
    ]
    for rule, field in wrong:
        refused = await put(one, CLOSED, rule, read=1)
        assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await get(one)).json()["edited"] == {"rules": []}
    assert await one.read_home("owner") == []


async def test_edit_without_a_version_or_the_scope_is_refused(rig: Rig) -> None:
    agent = {**EDITOR, "name": "eve", "kind": "service", "scopes": ["audit:read"]}
    one = await rig.start(clients=[EDITOR, READER, agent])
    headers = {"Authorization": "Bearer ada-key"}
    blind = await one.http.put("/v1/policy", json={"rules": []}, headers=headers)
    assert (blind.status_code, blind.json()["field"]) == (400, "version")
    for who in ("bob", "eve"):
        refused = await put(one, CLOSED, read=1, who=who)
        assert (refused.status_code, refused.json()["scope"]) == (403, "policy:write")
    assert (await put(one, CLOSED, MINE, read=1)).status_code == 200
    shown = (await get(one, "bob")).json()
    assert "edited" not in shown
    assert [rule["name"] for rule in shown["rules"]] == ["closed"]


async def test_edited_rule_cannot_allow_what_the_configuration_denies(rig: Rig) -> None:
    one = await rig.start(clients=[EDITOR, READER], policy={"rules": [CLOSED]})
    done = await put(one, OPEN, {**OPEN, "name": "closed"}, read=1)
    assert done.status_code == 200
    assert await read_state(one) == "TASK_STATE_REJECTED"


async def test_dry_run_reports_changed_decisions_for_all_callers_and_writes_nothing(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[EDITOR, READER], policy={"rules": [OPEN]})
    assert await read_state(one) == "TASK_STATE_COMPLETED"
    sent: dict[str, Any] = {}

    async def look() -> bool:
        sent.update((await put(one, CLOSED, read=1, dryRun=True)).json())
        return bool(sent["tried"]["changed"])

    # The list of Bob's tasks, which the dry run reads, is briefly out of date.
    await wait_until(look, 20, "bob's work is looked at")
    (case,) = sent["tried"]["cases"]
    assert (case["before"], case["now"], case["rules"]) == (
        "allow",
        "deny",
        ["open", "edited:closed"],
    )
    assert (sent["dryRun"], sent["rev"], sent["tried"]["version"]) == (True, 1, sent["version"])
    assert (await get(one)).json()["rev"] == 1
    assert await read_state(one) == "TASK_STATE_COMPLETED"
    assert (await put(one, CLOSED, read=2, dryRun=True)).status_code == 412
    done = (await put(one, CLOSED, read=1)).json()
    assert done["version"] == sent["version"]
    assert done["tried"]["changed"] >= 1
    assert (await put(one, OPEN, read=2, tries=0)).json()["tried"]["lookedAt"] == 0


async def test_lost_change_notification_delays_the_edit_by_one_refresh(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 0.2)
    first, second = await rig.start(clients=[EDITOR]), await rig.start(clients=[EDITOR])

    async def lose(_home: str) -> None:
        return

    monkeypatch.setattr(first.gateway.store.rule_news, "publish", lose)
    done = (await put(first, CLOSED, read=1)).json()
    await until_applied(second, done["version"])


@pytest.mark.requirement("EXT-1")
async def test_unreadable_stored_rules_deny_everything_and_are_reported(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 0.1)
    one = await rig.start(clients=[EDITOR, READER])
    assert (await put(one, OPEN, read=1)).status_code == 200
    key = keys.entity(EntityRef(EntityKind.RULES, HOME))
    stored = cast("bytes", ask(rig.url, "HGET", key, "s")).decode()
    ask(rig.url, "HSET", key, "s", stored.replace('"effect":"allow"', '"effect":"later"'))
    await wait_until(lambda: one.gateway.terms.rulebook.fault is not None, 20, "the fault is seen")
    assert await read_state(one) == "TASK_STATE_REJECTED"
    shown = (await get(one)).json()
    assert "the edited rules cannot be read" in shown["unsound"]
    refused = await put(one, read=2)
    assert (refused.status_code, refused.json()["code"]) == (409, "unsupported_operation")
    ask(rig.url, "HSET", key, "s", stored.replace('"when":"true"', '"when":"peer.mood == 1"'))
    broken = await get(one)
    assert "rules.0.when" in broken.json()["unsound"]
    mended = await put(one, OPEN, read=int(broken.json()["rev"]))
    assert mended.status_code == 200
    assert "unsound" not in (await get(one)).json()
    assert await read_state(one) == "TASK_STATE_COMPLETED"


async def test_evaluation_reads_no_rules_from_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await rig.start(clients=[EDITOR, READER])
    assert (await put(one, OPEN, read=1)).status_code == 200
    read, load = list[EntityRef](), one.gateway.store.log.load

    async def note(refs: Sequence[EntityRef]) -> list[Loaded]:
        read.extend(ref for ref in refs if ref.kind is EntityKind.RULES)
        return await load(refs)

    async def skip(*_: object) -> None:
        return

    monkeypatch.setattr(PolicyEditing, "refresh", skip)
    monkeypatch.setattr(one.gateway.store.log, "load", note)
    assert await read_state(one) == "TASK_STATE_COMPLETED"
    assert read == []


async def test_rules_in_a_file_are_tried_and_stored_by_a_command(rig: Rig, tmp_path: Path) -> None:
    one = await rig.start(clients=[EDITOR, READER], policy={"rules": [OPEN]})
    assert await read_state(one) == "TASK_STATE_COMPLETED"
    file = tmp_path / "rules.yaml"
    owned = {"rules": [{"name": "no-shell", "effect": "deny", "argv": ["rm"]}]}
    file.write_text(json.dumps({"policy": {"rules": [CLOSED], "owners": {"bob": owned}}}))
    tried = await run(one, "set-rules", str(file), "--rev", "1", "--dry-run")
    assert "nothing written: rev 1" in tried
    assert "in force: rev 2" in await run(one, "set-rules", str(file), "--rev", "1", "--tries", "0")
    shown = await run(one, "rules")
    assert re.search(r"open +allow +delegations +configuration +everybody", shown)
    assert re.search(r"closed +deny +delegations +edited +everybody", shown)
    assert re.search(r"no-shell +deny +asks +edited +bob", shown)
    assert "rev 2, edited by ada at " in shown
    assert "read it again" in await run(one, "set-rules", str(file), "--rev", "1", status=5)
    assert await read_state(one) == "TASK_STATE_REJECTED"


async def test_file_with_an_invalid_part_edits_nothing(rig: Rig, tmp_path: Path) -> None:
    one = await rig.start(clients=[EDITOR])
    file = tmp_path / "rules.yaml"
    wrong = {
        "{}": "has no rules",
        "rules:": "rules is no list",
        "rules: [deny]": "rules.0 is no rule",
        "{rules: [], mode: auto}": "mode is allowed only in the configuration",
        "{owners: {bob: {rules: [], mode: auto}}}": "owners.bob has rules and nothing else",
        "rules: [{name: a, effect: maybe}]": "rules.0.effect",
    }
    for content, complaint in wrong.items():
        file.write_text(content)
        assert complaint in await run(one, "set-rules", str(file), "--rev", "1", status=2)
    assert (await get(one)).json()["rev"] == 1


@pytest.mark.parametrize("lost", [OPEN, MINE | {"effect": "allow"}])
async def test_edit_that_allows_without_a_condition_is_refused(
    rig: Rig, lost: dict[str, Any]
) -> None:
    one = await rig.start(clients=[EDITOR, READER])
    rule = {name: value for name, value in lost.items() if name != "when"}
    for dry in (False, True):
        refused = await put(one, CLOSED, rule, read=1, dryRun=dry)
        assert (refused.status_code, refused.json()["field"]) == (400, "rules.1.when")
        assert 'write when: "true"' in refused.json()["reason"]
    assert (await get(one)).json()["rev"] == 1


@pytest.mark.requirement("PRS-12")
async def test_stored_rule_without_its_condition_is_skipped_and_reported_until_mended(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news_following, "ROUND_S", 0.1)
    closed = {**CLOSED, "effect": "ask", "when": "caller.name == 'bob'"}
    wide = {**OPEN, "name": "wide", "about": ["asks", "delegations"]}
    one = await rig.start(clients=[EDITOR, READER])
    assert (await put(one, closed, wide, read=1)).status_code == 200
    key = keys.entity(EntityRef(EntityKind.RULES, HOME))
    stored = cast("bytes", ask(rig.url, "HGET", key, "s")).decode()
    ask(rig.url, "HSET", key, "s", stored.replace(',"when":"true"', ""))
    book = one.gateway.terms.rulebook
    await wait_until(lambda: book.skipped == ("wide",), 20, "the rule is seen without its line")
    assert book.fault is None
    shown = (await get(one)).json()
    assert shown["skipped"] == ["wide"]
    assert [rule["name"] for rule in shown["rules"]] == ["closed"]
    ready = (await one.http.get("/readyz")).json()
    assert ready["status"] == "ready"
    assert "wide" in ready["policy"]
    metric = "passerelle_policy_rules_skipped 1.0"
    await wait_until(
        lambda: metric in one.gateway.metrics.render().decode(), 20, "the rule is counted"
    )
    mended = await put(one, closed, wide, read=int(shown["rev"]))
    assert mended.status_code == 200
    assert "policy" not in (await one.http.get("/readyz")).json()
    assert not (await get(one)).json().get("skipped")


async def test_dry_run_compares_with_the_rules_in_force_and_not_with_history(rig: Rig) -> None:
    one = await rig.start(clients=[EDITOR, READER], policy={"rules": [OPEN]})
    assert await read_state(one) == "TASK_STATE_COMPLETED"
    assert (await put(one, CLOSED, read=1)).status_code == 200
    sent: dict[str, Any] = {}
    new = {"name": "later", "effect": "deny", "when": "action.tool == 'drop'"}

    async def look() -> bool:
        sent.update((await put(one, CLOSED, new, read=2, dryRun=True)).json())
        return bool(sent["tried"]["lookedAt"])

    await wait_until(look, 20, "bob's work is looked at")
    assert (sent["tried"]["changed"], sent["tried"].get("cases", [])) == (0, [])
    opened = (await put(one, new, read=2, dryRun=True)).json()
    assert [(case["before"], case["now"]) for case in opened["tried"]["cases"]] == [
        ("deny", "allow")
    ]
