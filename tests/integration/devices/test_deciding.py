"""Who may decide which approval, from which device, and with which proof, through a whole gateway (CHN-8)."""

from typing import cast

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import (
    ADA,
    BOB,
    CLEO,
    DAN,
    ask,
    bearer,
    list_pending,
    make_answer,
    read,
    say,
)
from tests.support.paired_device import Keys, PairedDevice, sign_decision
from tests.support.waiting import wait_until

TIERS: list[dict[str, object]] = [{"risk": "high", "who": ["ada", "bob", "cleo"], "need": 2}]
FOUR_EYES = {"risk": "critical", "who": ["ada", "bob"], "allow_self": False}
_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS


async def start(rig: Rig, **settings: object) -> Instance:
    return await rig.start(clients=[ADA, BOB, CLEO, DAN], **settings)


async def prove(at: Instance) -> None:
    problems = (await verify_store(at.gateway.store)).problems
    assert not problems


@pytest.mark.requirement("CHN-8", "CHN-6")
@pytest.mark.parametrize("algorithm", ["Ed25519", "ES256"])
async def test_approval_at_high_risk_requires_and_keeps_a_device_signature(
    rig: Rig, algorithm: str
) -> None:
    at = await start(rig)
    device = PairedDevice(at.http, Keys("ES256" if algorithm == "ES256" else "Ed25519"))
    await device.pair("ada-key")
    view = await ask(at, "high")
    for headers in (bearer("ada"), device.headers):
        refused = await say(at, headers, make_answer(view))
        assert (refused.status_code, refused.json()["code"]) == (403, "signature_required")
    won = await say(at, device.headers, sign_decision(device, make_answer(view)))
    assert won.status_code == 200, won.text
    decision = won.json()["decision"]
    assert decision["assurance"] == ["bearer", "signature"]
    assert (decision["device"], decision["deviceName"]) == (device.device_id, "phone")
    assert decision["signature"]["keyId"].startswith("key_")
    await prove(at)


@pytest.mark.requirement("CHN-8")
@pytest.mark.parametrize(
    "changed",
    [
        {"optionId": "no"},
        {"rev": 2},
        {"digest": "sha256:00"},
        {"decisionId": "dec_other"},
        {"actionId": "act_other"},
        {"deviceId": "dev_other"},
        {"iat": 1},
        {"contentDigest": "sha256:00"},
        {"v": 2},
    ],
)
async def test_a_signature_over_one_changed_byte_is_refused(
    rig: Rig, changed: dict[str, object]
) -> None:
    at = await start(rig)
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    view = await ask(at, "high")
    refused = await say(at, device.headers, sign_decision(device, make_answer(view), **changed))
    assert (refused.status_code, refused.json()["code"]) == (403, "bad_signature")
    assert (await read(at, "ada", view["actionId"]))["state"] == "pending"


@pytest.mark.requirement("CHN-8")
@pytest.mark.parametrize("ahead_ms", [-_DAY_MS, -6 * _MINUTE_MS, 6 * _MINUTE_MS, _DAY_MS])
async def test_a_signing_time_before_the_approval_or_in_the_future_is_refused(
    rig: Rig, ahead_ms: int
) -> None:
    at = await start(rig)
    device = PairedDevice(at.http, clock_ahead_ms=ahead_ms)
    await device.pair("ada-key")
    view = await ask(at, "high")
    refused = await say(at, device.headers, sign_decision(device, make_answer(view)))
    assert (refused.status_code, refused.json()["code"]) == (403, "signature_time")
    assert "signature.iat" in refused.json()["detail"]
    assert (await read(at, "ada", view["actionId"]))["state"] == "pending"
    await prove(at)


@pytest.mark.requirement("CHN-8")
@pytest.mark.parametrize("ahead_ms", [-4 * _MINUTE_MS, 4 * _MINUTE_MS])
async def test_a_clock_skew_of_minutes_is_accepted(rig: Rig, ahead_ms: int) -> None:
    at = await start(rig)
    device = PairedDevice(at.http, clock_ahead_ms=ahead_ms)
    await device.pair("ada-key")
    view = await ask(at, "high")
    won = await say(at, device.headers, sign_decision(device, make_answer(view)))
    assert won.status_code == 200, won.text


async def test_rejections_and_low_risk_approvals_need_no_signature(rig: Rig) -> None:
    at = await start(rig)
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    stopped = await say(at, bearer("ada"), make_answer(await ask(at, "critical"), "no"))
    allowed = await say(at, bearer("ada"), make_answer(await ask(at, "medium")))
    assert (stopped.status_code, allowed.status_code) == (200, 200)


async def test_a_caller_without_the_high_risk_scope_may_reject_high_risk_and_approve_the_rest(
    rig: Rig,
) -> None:
    at = await start(rig)
    high_risk = await ask(at, "high", "dan")
    refused = await say(at, bearer("dan"), make_answer(high_risk))
    assert (refused.status_code, refused.json()["scope"]) == (403, "approvals:decide-high")
    assert (await say(at, bearer("dan"), make_answer(high_risk, "no"))).status_code == 200
    medium_risk = await ask(at, "medium", "dan")
    assert (await say(at, bearer("dan"), make_answer(medium_risk))).status_code == 200


async def test_a_person_without_a_device_decides_at_high_risk_unless_signatures_are_required(
    rig: Rig,
) -> None:
    at = await start(rig)
    assert (await say(at, bearer("ada"), make_answer(await ask(at, "high")))).status_code == 200
    strict = await start(rig, approvals={"signatures": "always"})
    refused = await say(strict, bearer("ada"), make_answer(await ask(strict, "high")))
    assert refused.json()["code"] == "signature_required"


async def test_a_bearer_may_sign_with_a_device_of_its_own_only(
    rig: Rig,
) -> None:
    at = await start(rig)
    mine, others = PairedDevice(at.http), PairedDevice(at.http)
    await mine.pair("ada-key", "key")
    await others.pair("bob-key", "phone")
    view = await ask(at, "high")
    refused = await say(at, bearer("ada"), sign_decision(others, make_answer(view)))
    assert refused.json()["code"] == "device_revoked"
    won = await say(at, bearer("ada"), sign_decision(mine, make_answer(view)))
    assert won.json()["decision"]["deviceName"] == "key"


@pytest.mark.requirement("CHN-8")
async def test_a_limited_device_may_approve_low_risk_and_reject_everything(rig: Rig) -> None:
    at = await start(rig)
    watch = PairedDevice(at.http)
    await watch.pair("ada-key", "watch", options=["allow_once"], riskUpTo="medium")
    high = await ask(at, "high")
    refused = await say(at, watch.headers, sign_decision(watch, make_answer(high)))
    assert (refused.status_code, refused.json()["code"]) == (403, "device_scope")
    assert (await say(at, watch.headers, make_answer(high, "no"))).status_code == 200
    assert (await say(at, watch.headers, make_answer(await ask(at)))).status_code == 200


@pytest.mark.requirement("CHN-8")
async def test_two_votes_decide_together_and_all_inboxes_agree(rig: Rig) -> None:
    at = await start(rig, policy={"approvers": TIERS})
    view = await ask(at, "high")
    assert (view["quorum"], view["audience"]) == (
        {"need": 2, "veto": True},
        [["ada", "bob", "cleo"]],
    )

    async def all_see_it() -> bool:
        seen = [await list_pending(at, name) for name in ("ada", "bob", "cleo")]
        return all([one["actionId"] for one in views] == [view["actionId"]] for views in seen)

    await wait_until(all_see_it, 10, "all three are asked")
    first = await say(at, bearer("ada"), make_answer(view))
    assert (first.status_code, first.json()["outcome"], first.json()["votes"]) == (
        202,
        "vote_recorded",
        1,
    )
    again = await say(at, bearer("ada"), make_answer(view))
    assert again.status_code == 202
    second = await say(at, bearer("bob"), make_answer(view))
    outcome = second.json()
    assert (second.status_code, outcome["outcome"]) == (200, "won")
    assert (outcome["votes"], outcome["need"]) == (2, 2)
    late = await say(at, bearer("cleo"), make_answer(view, "no"))
    assert (late.status_code, late.json()["winner"]["decidedBy"]) == (409, "bob")

    async def none_sees_it() -> bool:
        return not any([await list_pending(at, name) for name in ("ada", "bob", "cleo")])

    await wait_until(none_sees_it, 10, "no inbox has it")
    await prove(at)


@pytest.mark.requirement("CHN-8")
async def test_the_requester_cannot_be_the_second_approver(rig: Rig) -> None:
    at = await start(rig, policy={"approvers": [FOUR_EYES]})
    view = await ask(at, "critical")
    refused = await say(at, bearer("ada"), make_answer(view))
    assert (refused.status_code, refused.json()["code"]) == (403, "self_approval")
    stranger = await say(at, bearer("cleo"), make_answer(view))
    assert stranger.status_code == 404
    assert (await say(at, bearer("bob"), make_answer(view))).status_code == 200


@pytest.mark.requirement("CHN-8")
async def test_votes_of_a_revoked_device_are_withdrawn(rig: Rig) -> None:
    at = await start(rig, policy={"approvers": TIERS})
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at, "high")
    voted = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert voted.status_code == 202, voted.text
    gone = await at.http.delete(f"/v1/devices/{phone.device_id}", headers=bearer("ada"))
    assert gone.json()["withdrawn"] == 1
    assert "votes" not in await read(at, "ada", view["actionId"])
    assert (await say(at, bearer("bob"), make_answer(view))).status_code == 202
    assert (await say(at, bearer("cleo"), make_answer(view))).status_code == 200
    await prove(at)


async def test_revoking_lists_the_recent_decisions_of_the_device(rig: Rig) -> None:
    at = await start(rig)
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at)
    assert (await say(at, phone.headers, make_answer(view))).status_code == 200

    gone = await at.http.delete(f"/v1/devices/{phone.device_id}", headers=bearer("ada"))
    (decided,) = cast("list[JsonObject]", gone.json()["decisions"])
    assert (decided["actionId"], decided["optionId"]) == (view["actionId"], "yes")


@pytest.mark.requirement("CHN-8")
async def test_an_escalation_lets_more_people_decide(rig: Rig) -> None:
    tier = {"risk": "high", "who": ["bob"], "escalate": [{"after": "10ms", "to": ["cleo"]}]}
    at = await start(rig, policy={"approvers": [tier]})
    view = await ask(at, "high")

    async def cleo_sees_it() -> bool:
        return bool(await list_pending(at, "cleo"))

    await wait_until(cleo_sees_it, 10, "the next ones are asked")
    assert (await read(at, "cleo", view["actionId"]))["step"] == 1
    owner = await say(at, bearer("ada"), make_answer(view))
    assert (owner.status_code, owner.json()["code"]) == (403, "not_in_audience")
    assert (await say(at, bearer("cleo"), make_answer(view))).status_code == 200
    await prove(at)
