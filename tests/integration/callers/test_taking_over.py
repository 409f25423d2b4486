"""Settings reloaded while the gateway runs: keys, permissions, limits and rules, and the fact of each limit change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.gateway.reload import apply_settings
from passerelle.gateway.settings.model import Settings
from tests.integration.callers.rig import describe
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio
CLOSED: Final = {"rules": [{"name": "closed", "effect": "deny", "about": ["delegations"]}]}


async def change(one: Instance, **changes: object) -> None:
    """Reloads an instance with these settings in place of its own."""
    given = one.settings.model_dump() | changes
    if "clients" in changes:
        clients = cast("list[dict[str, object]]", changes["clients"])
        given["clients"] = [describe(client) for client in clients]
    new = Settings.model_validate(given)
    await apply_settings(one.gateway, one.access, one.settings, new)
    one.settings = new


@pytest.mark.requirement("EVC-17")
async def test_lowered_budget_is_one_fact_with_the_old_and_the_new_value(rig: Rig) -> None:
    quota = {"calls": 5, "per": "day"}
    first = await rig.start(clients=[{"name": "few", "quotas": [quota]}])
    second = await rig.start(clients=[{"name": "few", "quotas": [quota]}])
    for _ in range(2):
        assert (await first.send("few-key")).status_code == 200
    for one in (first, second):
        await change(one, clients=[{"name": "few", "quotas": [{"calls": 3, "per": "day"}]}])
    opened, changed = await first.read_home("few")
    assert (opened["type"], changed["type"]) == ("session.created", "limit.changed")
    assert changed["payload"] == {
        "limited": {"kind": "caller", "name": "few"},
        "kind": "quota",
        "unit": "calls",
        "old": 5,
        "new": 3,
        "actor": "configuration",
        "windowMs": 86_400_000,
    }

    async def is_admitted() -> bool:
        # What an instance had drawn of the old limit is returned within one round.
        return (await first.send("few-key")).status_code == 200

    assert await wait_until(is_admitted, 10, "the third call is let in")
    assert (await first.send("few-key")).status_code == 429


async def test_revoked_key_is_refused_from_the_next_request_on(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "old"}])
    assert (await one.send("old-key")).status_code == 200
    await change(one, clients=[{"name": "new"}])
    assert (await one.send("old-key")).status_code == 401
    assert (await one.send("new-key")).status_code == 200


async def test_changed_rate_applies_at_once(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "one", "limits": {"rate": "1/h"}}])
    assert (await one.send("one-key")).status_code == 200
    assert (await one.send("one-key")).status_code == 429
    await change(one, clients=[{"name": "one"}])
    assert (await one.send("one-key")).status_code == 200


async def test_new_quota_applies_from_the_next_call_on(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "few"}])
    assert (await one.send("few-key")).status_code == 200
    quota = {"calls": 1, "per": "day"}
    await change(one, clients=[{"name": "few", "quotas": [quota]}])
    assert [(await one.send("few-key")).status_code for _ in range(2)] == [200, 429]
    await change(one, clients=[{"name": "few"}])
    assert (await one.send("few-key")).status_code == 200


async def test_changed_retries_acceptance_and_rules_apply_to_the_next_message(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "any"}])
    agent: dict[str, object] = {"name": "echo", "url": rig.peer.url}

    async def send() -> list[object]:
        """Sends a message; returns its attempt limit, its number of acceptance criteria and its final status."""
        ref = EntityRef(EntityKind.TASK, (await one.send("any-key")).json()["result"]["task"]["id"])
        record = (await one.gateway.parts.writes.load_one(ref)).record
        assert isinstance(record, TaskRecord)
        [attempt] = record.attempts
        return [attempt.retry_policy.attempts, len(record.acceptance), record.status]

    assert await send() == [1, 0, Status.COMPLETED]
    await change(one, agents=[{**agent, "retry": {"attempts": 3}}])
    assert await send() == [3, 0, Status.COMPLETED]
    await change(one, agents=[{**agent, "acceptance": [{"artifact": {"count": 1}}]}])
    assert await send() == [1, 1, Status.COMPLETED]
    await change(one, agents=[agent], policy=CLOSED)
    assert await send() == [1, 0, Status.FAILED]
    await change(one, agents=[agent], policy={})
    assert await send() == [1, 0, Status.COMPLETED]


async def test_agents_can_be_added_and_removed(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "any"}])
    await change(one, agents=[{"name": "other", "url": rig.peer.url}])
    assert (await one.send("any-key")).status_code == 404
    key = {"Authorization": "Bearer any-key"}
    sent = await one.http.post("/agents/other/message:send", json=one.message("x"), headers=key)
    assert sent.status_code == 200


@pytest.mark.requirement("EXT-3")
async def test_changed_rules_are_one_fact_with_both_versions_and_apply_at_once(rig: Rig) -> None:
    first = await rig.start(clients=[{"name": "one"}])
    second = await rig.start(clients=[{"name": "one"}])
    before = first.gateway.terms.find_rules().version
    for one in (first, second):
        await change(one, policy=CLOSED)
        await change(one, log_level="warning")
    opened, changed = await first.read_home("owner")
    assert (opened["type"], changed["type"]) == ("session.created", "policy.changed")
    assert changed["payload"] == {
        "change": "rules",
        "actor": "configuration",
        "version": first.gateway.terms.find_rules().version,
        "previous": before,
        "mode": "normal",
    }
    answered = (await first.send("one-key")).json()["result"]["task"]
    assert answered["status"]["state"] == "TASK_STATE_REJECTED"
    assert rig.counted() == 0
