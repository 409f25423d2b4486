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
from tests.support.house import ADA, BOB

if TYPE_CHECKING:
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.grants import GrantService
    from tests.support.house import House

pytestmark = pytest.mark.anyio

ALWAYS: Final = make_policy(grants=GrantTerms("owner"))
HOUR_MS: Final = 3_600_000


def granting(house: House) -> GrantService:
    return house.parts.permissions.granting


async def list_grants(house: House) -> list[JsonObject]:
    return cast("list[JsonObject]", (await house.service.read(ADA, ListGrants()))["grants"])


async def grant(house: House, *, tool: str = "pay") -> str:
    """Answers a request with "always", and creates the grant."""
    accepted, _ = await house.talk(asks(tool))
    view = await house.question(accepted)
    decision_id = f"dec_{view['actionId']}"
    answered = await house.respond(view, decision_id, option_id="always")
    await house.until(accepted, Status.COMPLETED)
    await house.come_due("mint", str(view["actionId"]), after_ms=0)
    assert answered.decision is not None
    assert answered.decision.grant_id is not None
    return answered.decision.grant_id


async def read_home(house: House) -> list[str]:
    home = name_home(ADA)
    house.remember(home)
    entries = await house.entries(home)
    return [decode_event(one.data, one.frame, one.facade).type for one in entries]


async def find_evaluated(house: House, accepted: TurnAccepted) -> PermissionEvaluated:
    found = [event.fact.payload for event in await house.events(accepted)]
    return [one for one in found if isinstance(one, PermissionEvaluated)][-1]


@pytest.mark.requirement("EXT-1", "PRS-3", "EXT-3")
async def test_always_allows_once_at_the_agent_and_answers_the_next_request(
    house: House,
) -> None:
    house.rules = ALWAYS
    written = await grant(house)
    assert read_answer(house.peer.messages[-1])["option_id"] == "yes"
    accepted = await house.send(asks("pay"))
    await house.until(accepted, Status.COMPLETED)
    assert read_answer(house.peer.messages[-1])["option_id"] == "yes"
    evaluated = await find_evaluated(house, accepted)
    assert (evaluated.decision, evaluated.source) == ("allow", "grant")
    resolved = [e.fact.payload for e in await house.events(accepted)]
    [closed] = [one for one in resolved if isinstance(one, ActionResolved)]
    assert (closed.decision.cause, closed.decision.grant_id) == ("grant", written)
    [shown] = await list_grants(house)
    assert (shown["grantId"], shown["uses"], shown["state"]) == (written, 1, "live")
    assert await read_home(house) == [
        "session.created",
        "policy.changed",
        "policy.changed",
    ]


async def test_always_option_states_its_terms_and_is_offered_only_if_configured(
    house: House,
) -> None:
    first, _ = await house.talk(asks("pay"))
    options = cast("list[JsonObject]", (await house.question(first))["options"])
    assert [option["optionId"] for option in options] == ["yes", "no"]
    house.rules = make_policy(grants=GrantTerms("session", "tool", HOUR_MS, 3))
    second, _ = await house.talk(asks("pay"))
    options = cast("list[JsonObject]", (await house.question(second))["options"])
    assert options[-1] == {
        "optionId": "always",
        "name": "Always in this session",
        "kind": "allow_always",
        "grant": {"scope": "session", "ttlMs": HOUR_MS, "tool": "pay", "maxUses": 3},
    }


async def test_five_concurrent_mints_create_one_grant(house: House) -> None:
    house.rules = ALWAYS
    accepted, _ = await house.talk(asks("pay"))
    view = await house.question(accepted)
    await house.respond(view, option_id="always")
    ref = EntityRef(EntityKind.ACTION, str(view["actionId"]))
    action = (await house.parts.writes.load([ref]))[ref].record
    assert isinstance(action, ActionRecord)
    await asyncio.gather(*(granting(house).mint(action) for _ in range(5)))
    assert len(await list_grants(house)) == 1
    assert (await read_home(house)).count("policy.changed") == 1
    await house.until(accepted, Status.COMPLETED)


async def test_last_use_of_a_grant_counts_once_and_the_other_request_asks(house: House) -> None:
    house.rules = make_policy(grants=GrantTerms("owner", max_uses=1))
    await grant(house)
    both = await asyncio.gather(*(house.send(asks("pay")) for _ in range(2)))

    await asyncio.gather(*(house.hear(one) for one in both))
    sources = sorted([(await find_evaluated(house, one)).source for one in both])
    assert sources == ["default", "grant"]
    [shown] = await list_grants(house)
    assert (shown["uses"], shown["state"]) == (1, "used_up")


@pytest.mark.requirement("PRS-3")
async def test_revoked_and_expired_and_forbidden_grants_are_not_used(
    house: House,
) -> None:
    house.rules = ALWAYS
    written = await grant(house)
    house.rules = make_policy((Rule("no", "deny"),), grants=ALWAYS.grants)
    denied = await house.send(asks("pay"))
    await house.until(denied, Status.COMPLETED)
    assert (await find_evaluated(house, denied)).source == "rule"
    house.rules = make_policy((Rule("ask", "ask"),), grants=ALWAYS.grants)
    asked, _ = await house.talk(asks("pay"))
    assert (await find_evaluated(house, asked)).decision == "ask"
    [shown] = await list_grants(house)
    assert shown["uses"] == 0
    house.rules = ALWAYS
    with pytest.raises(NotFound):
        await house.service.execute(BOB, RevokeGrant(written), None)
    for outcome in ("revoked", "gone"):
        done = await house.service.execute(ADA, RevokeGrant(written), None)
        assert getattr(done, "outcome", None) == outcome
    revoked, _ = await house.talk(asks("pay"))
    assert (await find_evaluated(house, revoked)).decision == "ask"
    with pytest.raises(UnsupportedOperation, match="revoked"):
        await granting(house).use(ADA, written, "eval_1")
    await grant(house, tool="look")
    house.clock.ahead_ms += 9 * HOUR_MS
    expired, _ = await house.talk(asks("look"))
    assert (await find_evaluated(house, expired)).decision == "ask"
    assert {str(one["state"]) for one in await list_grants(house)} == {"revoked", "expired"}


async def test_grant_revoked_between_evaluation_and_use_is_not_used(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.rules = ALWAYS
    written = await grant(house)
    stale = await granting(house).read(ADA)
    await house.service.execute(ADA, RevokeGrant(written), None)

    async def read(_self: object, _owner: object) -> Grants | None:
        return stale

    monkeypatch.setattr(type(granting(house)), "read", read)
    accepted, _ = await house.talk(asks("pay"))
    assert (await find_evaluated(house, accepted)).decision == "ask"


@pytest.mark.requirement("EXT-3")
async def test_bypass_allows_for_its_duration_and_is_reported(house: House) -> None:
    with pytest.raises(Forbidden):
        await house.service.execute(replace(ADA, kind="agent"), SetBypass(60), None)
    await house.service.execute(ADA, SetBypass(60), None)
    first = await house.send(asks("pay"))
    await house.until(first, Status.COMPLETED)
    evaluated = await find_evaluated(house, first)
    assert (evaluated.decision, evaluated.source, evaluated.trail[0].ref) == (
        "allow",
        "mode",
        "bypass",
    )
    assert (await house.service.read(ADA, ListGrants()))["bypassUntil"]
    house.clock.ahead_ms += 61_000
    second, _ = await house.talk(asks("pay"))
    assert (await find_evaluated(house, second)).decision == "ask"
    assert "bypassUntil" not in await house.service.read(ADA, ListGrants())
    assert "policy.changed" in await read_home(house)


@pytest.mark.requirement("SNAP-9")
async def test_permissions_of_a_thread_list_pending_approvals_and_grants(house: House) -> None:
    house.rules = ALWAYS
    await grant(house)
    accepted, _ = await house.talk(asks("look"))
    await house.service.execute(ADA, SetBypass(60), None)
    found = await house.service.read(ADA, GetPermissions(accepted.thread_id))
    [pending] = cast("list[JsonObject]", found["pending"])
    view = await house.question(accepted)
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
        await house.service.read(BOB, GetPermissions(accepted.thread_id))


@pytest.mark.requirement("CMD-30")
async def test_revoking_a_grant_and_setting_a_mode_are_idempotent_by_key(house: House) -> None:
    house.rules = ALWAYS
    written = await grant(house)
    before = len(await read_home(house))
    for key, command in (
        ("end", RevokeGrant(written)),
        ("on", SetBypass(60)),
        ("off", SetBypass(0)),
    ):
        first = await house.service.execute(ADA, command, key)
        house.clock.ahead_ms += 1_000
        again = await house.service.execute(ADA, command, key)
        assert isinstance(first, GrantRevoked | BypassSet)
        assert again == replace(first, repeated=True), "the first result is returned"
        before += 1
        assert len(await read_home(house)) == before
    with pytest.raises(IdempotencyConflict):
        await house.service.execute(ADA, SetBypass(30), "on")
