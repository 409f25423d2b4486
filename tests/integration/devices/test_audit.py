"""Every decision leaves a trace: the facts of an approval are its audit, including refused attempts (CHN-14)."""

import hashlib
from typing import cast

import pytest

from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.json import Json, JsonObject
from passerelle.delegation.verification.walk import verify_store
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, say
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.stored_events import rewrite_stream
from tests.support.waiting import wait_until

EYE: dict[str, object] = {"name": "eye", "kind": "person", "scopes": ["approvals:read"]}


async def start(rig: Rig, **settings: object) -> Instance:
    return await rig.start(clients=[ADA, BOB, EYE], **settings)


async def audit(at: Instance, action: object = None, who: str = "ada") -> JsonObject:
    params = {"actionId": str(action)} if action else {}
    answer = await at.http.get("/v1/audit", params=params, headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return cast("JsonObject", answer.json())


def list_facts(answer: JsonObject) -> list[JsonObject]:
    return [cast("JsonObject", one["fact"]) for one in cast("list[JsonObject]", answer["facts"])]


@pytest.mark.requirement("CHN-14", "CHN-6")
async def test_audit_of_a_decision_runs_from_the_evaluation_to_the_signed_answer(
    rig: Rig,
) -> None:
    at = await start(rig)
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at, "high")
    assert (
        await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    ).status_code == 200
    trail = await audit(at, view["actionId"])
    types = [str(fact["type"]) for fact in list_facts(trail)]
    for wanted in (
        "permission.evaluated",
        "action.required",
        "permission.requested",
        "permission.resolved",
        "action.resolved",
        "channel.permission_returned",
    ):
        assert wanted in types
    assert types.index("permission.evaluated") < types.index("action.required")
    (resolved,) = [one for one in list_facts(trail) if one["type"] == "action.resolved"]
    decision = cast("JsonObject", cast("JsonObject", resolved["payload"])["decision"])
    assert (decision["decidedBy"], decision["device"]) == ("ada", phone.device_id)
    assert decision["signature"] is not None
    returned = [
        cast("JsonObject", one["payload"])
        for one in list_facts(trail)
        if one["type"] == "channel.permission_returned"
    ]
    assert {"source": "answer", "accepted": True}.items() <= returned[0].items()
    proof = cast("JsonObject", trail["proof"])
    assert (proof["state"], proof["sessionId"]) == ("whole", view["sessionId"])
    events = {event["sequence"]: event for event in await at.read_session(str(view["sessionId"]))}
    for one in cast("list[JsonObject]", trail["facts"]):
        assert one["fact"] == events[one["sequence"]]
        assert len(str(one["sha256"])) == len(hashlib.sha256().hexdigest())
    assert not (await verify_store(at.gateway.store)).problems
    assert await page_back(at, view["actionId"], 2) == trail["facts"]


async def page_back(at: Instance, action: object, size: int) -> list[Json]:
    """Returns all facts of an approval, read from the newest page to the first."""
    found: list[Json] = []
    token = ""
    while True:
        params: dict[str, str | int] = {
            "actionId": str(action),
            "pageSize": size,
            "pageToken": token,
        }
        answer = await at.http.get("/v1/audit", params=params, headers=bearer("ada"))
        page: JsonObject = answer.json()
        facts = cast("list[Json]", page["facts"])
        assert 0 < len(facts) <= size
        assert page["more"] is bool(page["nextPageToken"])
        found = [*facts, *found]
        token = str(page["nextPageToken"])
        if not token:
            return found


@pytest.mark.requirement("CHN-14")
async def test_a_decision_removed_from_the_record_breaks_the_proof(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    (resolved,) = [
        one
        for one in list_facts(await audit(at, view["actionId"]))
        if one["type"] == "action.resolved"
    ]
    stream = StreamRef(StreamKind.SESSION, str(view["sessionId"]))
    place = resolved["sequence"]
    rewrite_stream(rig.url, stream, lambda entry: None if entry.sequence == place else entry)
    trail = await audit(at, view["actionId"])
    assert cast("JsonObject", trail["proof"])["state"] == "broken"
    kinds = {problem.kind for problem in (await verify_store(at.gateway.store)).problems}
    assert kinds & {"gap", "chain"}


@pytest.mark.requirement("CHN-6", "CHN-14")
async def test_refused_attempts_are_recorded_once_a_minute_and_decide_nothing(rig: Rig) -> None:
    tier = {"risk": "low", "who": ["ada", "bob"], "allow_self": False}
    at = await start(rig, policy={"approvers": [tier]})
    view = await ask(at)
    for _ in range(3):
        assert (await say(at, bearer("ada"), make_answer(view))).status_code == 403
    stale = await say(at, bearer("bob"), {**make_answer(view), "digest": "sha256:00"})
    assert stale.status_code == 412
    refused = [
        cast("JsonObject", one["payload"])
        for one in list_facts(await audit(at, view["actionId"]))
        if one["type"] == "channel.permission_returned"
    ]
    said = [(one["principal"], one["source"], one["reason"], one["accepted"]) for one in refused]
    assert said == [
        ("ada", "auth_failure", "self_approval", False),
        ("bob", "answer", "digest_mismatch", False),
    ]
    assert (await say(at, bearer("bob"), make_answer(view))).status_code == 200
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-14")
async def test_device_changes_are_facts_in_the_home_session_of_their_principal(rig: Rig) -> None:
    at = await start(rig)
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")

    async def is_recorded() -> bool:
        facts = list_facts(await audit(at))
        acts = [cast("JsonObject", one["payload"]).get("act") for one in facts]
        return acts[-4:] == ["offered", "claimed", "proven", "confirmed"]

    await wait_until(is_recorded, 10, "the pairing is recorded")
    assert cast("JsonObject", (await audit(at))["proof"])["state"] == "whole"
    assert list_facts(await audit(at, who="bob")) == []


async def test_caller_that_may_not_read_an_approval_may_not_read_its_audit(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    params = {"actionId": str(view["actionId"])}
    stranger = await at.http.get("/v1/audit", params=params, headers=bearer("bob"))
    unscoped = await at.http.get("/v1/audit", params=params, headers=bearer("eye"))
    assert (stranger.status_code, unscoped.status_code) == (404, 403)
