"""Standing approvals: created by an "always" answer, used instead of a request, ended by use, time or revocation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import Forbidden, IdempotencyConflict, NotFound, UnsupportedOperation
from passerelle.core.events import decode_event
from passerelle.core.payloads.approval import ActionResolved, PermissionEvaluated
from passerelle.core.policy.grant import Grants
from passerelle.core.policy.requests import (
    BypassSet,
    GetPermissions,
    GrantRevoked,
    ListGrants,
    RevokeGrant,
    SetBypass,
)
from passerelle.core.task.status import Status
from passerelle.permission_bridge.rules import GrantTerms, Rule, make_policy
from passerelle.runtime.records.places import name_home
from tests.integration.delegation.test_policy import asks, read_answer
from tests.support.harness import ADA, BOB

if TYPE_CHECKING:
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.grants import GrantService
    from tests.support.harness import Harness

pytestmark = pytest.mark.anyio

ALWAYS: Final = make_policy(grants=GrantTerms("owner"))
HOUR_MS: Final = 3_600_000


def granting(harness: Harness) -> GrantService:
    return harness.parts.permissions.granting


async def list_grants(harness: Harness) -> list[JsonObject]:
    return cast("list[JsonObject]", (await harness.service.read(ADA, ListGrants()))["grants"])


async def grant(harness: Harness, *, tool: str = "pay") -> str:
    """Answers a request with "always", and creates the grant."""
    accepted, _ = await harness.talk(asks(tool))
    view = await harness.question(accepted)
    decision_id = f"dec_{view['actionId']}"
    answered = await harness.respond(view, decision_id, option_id="always")
    await harness.until(accepted, Status.COMPLETED)
    await harness.run_due("mint", str(view["actionId"]), after_ms=0)
    assert answered.decision is not None
    assert answered.decision.grant_id is not None
    return answered.decision.grant_id


async def read_home(harness: Harness) -> list[str]:
    home = name_home(ADA)
    harness.remember(home)
    entries = await harness.entries(home)
    return [decode_event(one.data, one.frame, one.facade).type for one in entries]


async def find_evaluated(harness: Harness, accepted: TurnAccepted) -> PermissionEvaluated:
    found = [event.fact.payload for event in await harness.events(accepted)]
    return [one for one in found if isinstance(one, PermissionEvaluated)][-1]


@pytest.mark.requirement("EXT-1", "PRS-3", "EXT-3")
async def test_always_allows_once_at_the_agent_and_answers_the_next_request(
    harness: Harness,
) -> None:
    harness.rules = ALWAYS
    written = await grant(harness)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "yes"
    accepted = await harness.send(asks("pay"))
    await harness.until(accepted, Status.COMPLETED)
    assert read_answer(harness.peer.messages[-1])["option_id"] == "yes"
    evaluated = await find_evaluated(harness, accepted)
    assert (evaluated.decision, evaluated.source) == ("allow", "grant")
    resolved = [e.fact.payload for e in await harness.events(accepted)]
    [closed] = [one for one in resolved if isinstance(one, ActionResolved)]
    assert (closed.decision.cause, closed.decision.grant_id) == ("grant", written)
    [shown] = await list_grants(harness)
    assert (shown["grantId"], shown["uses"], shown["state"]) == (written, 1, "live")
    assert await read_home(harness) == [
        "session.created",
        "policy.changed",
        "policy.changed",
    ]


async def test_always_option_states_its_terms_and_is_offered_only_if_configured(
    harness: Harness,
) -> None:
    first, _ = await harness.talk(asks("pay"))
    options = cast("list[JsonObject]", (await harness.question(first))["options"])
    assert [option["optionId"] for option in options] == ["yes", "no"]
    harness.rules = make_policy(grants=GrantTerms("session", "tool", HOUR_MS, 3))
    second, _ = await harness.talk(asks("pay"))
    options = cast("list[JsonObject]", (await harness.question(second))["options"])
    assert options[-1] == {
        "optionId": "always",
        "name": "Always in this session",
        "kind": "allow_always",
        "grant": {"scope": "session", "ttlMs": HOUR_MS, "tool": "pay", "maxUses": 3},
    }


async def test_five_concurrent_mints_create_one_grant(harness: Harness) -> None:
    harness.rules = ALWAYS
    accepted, _ = await harness.talk(asks("pay"))
    view = await harness.question(accepted)
    await harness.respond(view, option_id="always")
    ref = EntityRef(EntityKind.ACTION, str(view["actionId"]))
    action = (await harness.parts.writes.load_one(ref)).record
    assert isinstance(action, ActionRecord)
    await asyncio.gather(*(granting(harness).mint(action) for _ in range(5)))
    assert len(await list_grants(harness)) == 1
    assert (await read_home(harness)).count("policy.changed") == 1
    await harness.until(accepted, Status.COMPLETED)


async def test_last_use_of_a_grant_counts_once_and_the_other_request_asks(harness: Harness) -> None:
    harness.rules = make_policy(grants=GrantTerms("owner", max_uses=1))
    await grant(harness)
    both = await asyncio.gather(*(harness.send(asks("pay")) for _ in range(2)))

    await asyncio.gather(*(harness.await_answer(one) for one in both))
    sources = sorted([(await find_evaluated(harness, one)).source for one in both])
    assert sources == ["default", "grant"]
    [shown] = await list_grants(harness)
    assert (shown["uses"], shown["state"]) == (1, "used_up")


@pytest.mark.requirement("PRS-3")
async def test_revoked_and_expired_and_forbidden_grants_are_not_used(
    harness: Harness,
) -> None:
    harness.rules = ALWAYS
    written = await grant(harness)
    harness.rules = make_policy((Rule("no", "deny"),), grants=ALWAYS.grants)
    denied = await harness.send(asks("pay"))
    await harness.until(denied, Status.COMPLETED)
    assert (await find_evaluated(harness, denied)).source == "rule"
    harness.rules = make_policy((Rule("ask", "ask"),), grants=ALWAYS.grants)
    asked, _ = await harness.talk(asks("pay"))
    assert (await find_evaluated(harness, asked)).decision == "ask"
    [shown] = await list_grants(harness)
    assert shown["uses"] == 0
    harness.rules = ALWAYS
    with pytest.raises(NotFound):
        await harness.service.execute(BOB, RevokeGrant(written), None)
    for outcome in ("revoked", "gone"):
        done = await harness.service.execute(ADA, RevokeGrant(written), None)
        assert getattr(done, "outcome", None) == outcome
    revoked, _ = await harness.talk(asks("pay"))
    assert (await find_evaluated(harness, revoked)).decision == "ask"
    with pytest.raises(UnsupportedOperation, match="revoked"):
        await granting(harness).use(ADA, written, "eval_1")
    await grant(harness, tool="look")
    harness.clock.ahead_ms += 9 * HOUR_MS
    expired, _ = await harness.talk(asks("look"))
    assert (await find_evaluated(harness, expired)).decision == "ask"
    assert {str(one["state"]) for one in await list_grants(harness)} == {"revoked", "expired"}


async def test_grant_revoked_between_evaluation_and_use_is_not_used(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.rules = ALWAYS
    written = await grant(harness)
    stale = await granting(harness).read(ADA)
    await harness.service.execute(ADA, RevokeGrant(written), None)

    async def read(_self: object, _owner: object) -> Grants | None:
        return stale

    monkeypatch.setattr(type(granting(harness)), "read", read)
    accepted, _ = await harness.talk(asks("pay"))
    assert (await find_evaluated(harness, accepted)).decision == "ask"


@pytest.mark.requirement("EXT-3")
async def test_bypass_allows_for_its_duration_and_is_reported(harness: Harness) -> None:
    with pytest.raises(Forbidden):
        await harness.service.execute(replace(ADA, kind="agent"), SetBypass(60), None)
    await harness.service.execute(ADA, SetBypass(60), None)
    first = await harness.send(asks("pay"))
    await harness.until(first, Status.COMPLETED)
    evaluated = await find_evaluated(harness, first)
    assert (evaluated.decision, evaluated.source, evaluated.trail[0].ref) == (
        "allow",
        "mode",
        "bypass",
    )
    assert (await harness.service.read(ADA, ListGrants()))["bypassUntil"]
    harness.clock.ahead_ms += 61_000
    second, _ = await harness.talk(asks("pay"))
    assert (await find_evaluated(harness, second)).decision == "ask"
    assert "bypassUntil" not in await harness.service.read(ADA, ListGrants())
    assert "policy.changed" in await read_home(harness)


@pytest.mark.requirement("SNAP-9")
async def test_permissions_of_a_thread_list_pending_approvals_and_grants(harness: Harness) -> None:
    harness.rules = ALWAYS
    await grant(harness)
    accepted, _ = await harness.talk(asks("look"))
    await harness.service.execute(ADA, SetBypass(60), None)
    found = await harness.service.read(ADA, GetPermissions(accepted.thread_id))
    [pending] = cast("list[JsonObject]", found["pending"])
    view = await harness.question(accepted)
    assert (pending["actionId"], pending["askedBy"], pending["risk"]) == (
        view["actionId"],
        "peer",
        "medium",
    )
    assert (found["mode"], found["policyVersion"], found["grants"]) == (
        "normal",
        ALWAYS.version,
        1,
    )
    assert found["bypassUntil"]
    marks = cast("JsonObject", found["marks"])
    assert set(marks) == {"sandbox", "violations"}
    with pytest.raises(NotFound):
        await harness.service.read(BOB, GetPermissions(accepted.thread_id))


@pytest.mark.requirement("CMD-30")
async def test_revoking_a_grant_and_setting_a_mode_are_idempotent_by_key(harness: Harness) -> None:
    harness.rules = ALWAYS
    written = await grant(harness)
    before = len(await read_home(harness))
    for key, command in (
        ("end", RevokeGrant(written)),
        ("on", SetBypass(60)),
        ("off", SetBypass(0)),
    ):
        first = await harness.service.execute(ADA, command, key)
        harness.clock.ahead_ms += 1_000
        again = await harness.service.execute(ADA, command, key)
        assert isinstance(first, GrantRevoked | BypassSet)
        assert again == replace(first, repeated=True), "the first result is returned"
        before += 1
        assert len(await read_home(harness)) == before
    with pytest.raises(IdempotencyConflict):
        await harness.service.execute(ADA, SetBypass(30), "on")
