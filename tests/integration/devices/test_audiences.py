"""Roles and paired devices in audiences: a caller outside the audience finds the approval nowhere (CHN-8)."""

from typing import cast

import orjson
import pytest
import websockets

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
from tests.integration.devices.test_bridge import Socket, connect
from tests.integration.devices.test_forwarding import await_forwarded
from tests.integration.devices.test_notifiers import STATED
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

ONCALL = {"roles": {"oncall": ["bob", "cleo"]}}
PAIRED = [
    {"risk": "high", "who": ["bob"], "devices": "paired"},
    {"risk": "critical", "who": ["bob"]},
]


async def start(rig: Rig, policy: dict[str, object], **more: object) -> Instance:
    return await rig.start(clients=[ADA, BOB, CLEO, DAN], policy=policy, **more)


async def wait_listed(at: Instance, headers: dict[str, str], view: JsonObject) -> None:
    async def is_listed() -> bool:
        reply = await at.http.get("/v1/approvals", headers=headers)
        return view["actionId"] in [one["actionId"] for one in reply.json()["pending"]]

    await wait_until(is_listed, 20, "the approval is in the list")


async def find_nothing(at: Instance, headers: dict[str, str], view: JsonObject) -> None:
    """Every endpoint answers like for an unknown approval."""
    known, unknown = str(view["actionId"]), f"{str(view['actionId'])[:-4]}0000"
    for path in ("", "/explanation", "/audit"):
        there = await at.http.get(f"/v1/approvals/{known}{path}", headers=headers)
        nowhere = await at.http.get(f"/v1/approvals/{unknown}{path}", headers=headers)
        assert (there.status_code, nowhere.status_code) == (404, 404), path
        assert there.text.replace(known, "*") == nowhere.text.replace(unknown, "*")
    answer = make_answer(view)
    reply = await say(at, headers, answer)
    other = await say(at, headers, {**answer, "actionId": unknown})
    assert (reply.status_code, other.status_code) == (404, 404)
    assert reply.text.replace(known, "*") == other.text.replace(unknown, "*")
    seen = await at.http.post(
        f"/v1/approvals/{known}/seen",
        json={"rev": view["rev"]},
        headers={**headers, "Idempotency-Key": "seen"},
    )
    assert seen.status_code == 404
    listed = await at.http.get("/v1/approvals", headers=headers)
    assert known not in listed.text


@pytest.mark.requirement("CHN-8")
async def test_an_approval_for_a_role_is_visible_only_to_its_members(rig: Rig) -> None:
    tier = {"risk": "high", "who": ["@oncall"], "need": 2}
    at = await start(rig, {**ONCALL, "approvers": [tier]})
    view = await ask(at, "high")
    assert (view["audience"], view["audienceRoles"]) == ([["bob", "cleo"]], [["oncall"]])
    for name in ("bob", "cleo"):
        await wait_listed(at, bearer(name), view)
    await find_nothing(at, bearer("dan"), view)
    # The owner still sees the approval, but may not decide it.
    assert (await say(at, bearer("ada"), make_answer(view))).json()["code"] == "not_in_audience"
    assert (await say(at, bearer("bob"), make_answer(view))).status_code == 202
    won = await say(at, bearer("cleo"), make_answer(view))
    assert (won.status_code, won.json()["outcome"]) == (200, "won")
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-8")
async def test_an_escalation_to_a_role_lets_its_members_decide(rig: Rig) -> None:
    later = {"after": "10ms", "to": ["@oncall"]}
    tier = {"risk": "high", "who": ["dan"], "escalate": [later]}
    at = await start(rig, {**ONCALL, "approvers": [tier]})
    view = await ask(at, "high")
    await wait_listed(at, bearer("cleo"), view)
    assert (await read(at, "cleo", view["actionId"]))["audienceRoles"] == [[], ["oncall"]]
    assert (await say(at, bearer("cleo"), make_answer(view))).status_code == 200


async def test_a_changed_role_applies_to_later_approvals(rig: Rig) -> None:
    tier = {"risk": "high", "who": ["@oncall"]}
    before = await start(rig, {**ONCALL, "approvers": [tier]})
    after = await start(rig, {"roles": {"oncall": ["dan"]}, "approvers": [tier]})
    old, new = await ask(before, "high"), await ask(after, "high")
    assert (old["audience"], new["audience"]) == ([["bob", "cleo"]], [["dan"]])
    assert old["policyVersion"] != new["policyVersion"]
    assert (await say(after, bearer("bob"), make_answer(old))).status_code == 200
    await find_nothing(after, bearer("bob"), new)


@pytest.mark.requirement("CHN-8")
async def test_an_approval_for_paired_devices_is_hidden_from_the_persons_bearer_key(
    rig: Rig,
) -> None:
    at = await start(rig, {"approvers": PAIRED})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    view = await ask(at, "high")
    assert view["audienceDevices"] == ["paired"]
    await wait_listed(at, phone.headers, view)
    await find_nothing(at, bearer("bob"), view)
    seen = await phone.get(f"/v1/approvals/{view['actionId']}")
    assert (seen.status_code, seen.json()["digest"]) == (200, view["digest"])
    won = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert (won.status_code, won.json()["decision"]["device"]) == (200, phone.device_id)
    await find_nothing(at, bearer("bob"), view)
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-8")
async def test_a_channel_without_a_paired_device_gets_no_event_of_an_approval_for_paired_ones(
    rig: Rig,
) -> None:
    at = await start(rig, {"approvers": PAIRED})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    # The same device id on a channel proves nothing: the token counts.
    key = PairedDevice(at.http, device_id="dev_key", token="bob-key")
    async with connect(at, phone) as paired, connect(at, key) as plain:
        hidden = await ask(at, "high")
        await paired.receive_event("action.required", hidden["actionId"])
        won = await say(at, phone.headers, sign_decision(phone, make_answer(hidden)))
        assert won.status_code == 200, won.text
        await paired.receive_event("action.resolved", hidden["actionId"])
        shown = await ask(at, "critical")
        # The inbox is ordered: once a later event has arrived, none of the hidden approval can follow.
        await plain.receive_event("action.required", shown["actionId"])
        assert str(hidden["actionId"]) not in orjson.dumps(plain.frames).decode()
        again = await replay(at, key, shown)
        assert str(hidden["actionId"]) not in orjson.dumps(again).decode()


async def test_reconnect_without_a_paired_device_does_not_report_its_approval_as_waiting(
    rig: Rig,
) -> None:
    at = await start(rig, {"approvers": PAIRED})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    await wait_listed(at, phone.headers, await ask(at, "high"))

    async def reconnect(headers: dict[str, str], device: str) -> object:
        reply = await at.http.post(
            "/v1/streams/inbox/reconnect",
            json={"device": device},
            headers={**headers, "Idempotency-Key": device},
        )
        assert reply.status_code == 200, reply.text
        return reply.json()["recovery"]

    assert await reconnect(phone.headers, phone.device_id) == "waiting"
    assert await reconnect(bearer("bob"), "dev_key") == "idle"
    shown = await ask(at, "critical")
    await wait_listed(at, bearer("bob"), shown)
    assert await reconnect(bearer("bob"), "dev_key-2") == "waiting"


async def replay(at: Instance, device: PairedDevice, until: JsonObject) -> list[JsonObject]:
    """Returns all frames of the inbox from its first event to the opening of the approval ``until``."""
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    protocol = websockets.Subprotocol("passerelle.v1+json")
    async with websockets.connect(url, subprotocols=[protocol]) as socket:
        hello: JsonObject = {
            "t": "hello",
            "v": 1,
            "device": f"{device.device_id}-2",
            "role": "device",
            "token": device.token,
            "subs": [{"s": "inbox", "from": "start"}],
        }
        await socket.send(orjson.dumps(hello).decode())
        received = Socket(socket)
        await received.receive_event("action.required", until["actionId"])
        return cast("list[JsonObject]", received.frames)


@pytest.mark.requirement("CHN-6", "CHN-8")
async def test_an_approval_for_paired_devices_is_forwarded_nowhere_else(rig: Rig) -> None:
    async with WebhookReceiver() as receiver:
        pager = {
            "name": "pager",
            "url": f"{receiver.url}/pager",
            "people": ["bob"],
            "secret": STATED,
        }
        at = await start(rig, {"approvers": PAIRED}, approvals={"notifiers": [pager]})
        phone = PairedDevice(at.http)
        await phone.pair("bob-key")
        key = PairedDevice(at.http, device_id="dev_key", token="bob-key")
        async with connect(at, phone), connect(at, key):
            reply = await await_forwarded(at, await ask(at, "high"))
            assert [(one["transport"], one.get("deviceId")) for one in reply] == [
                ("ws", phone.device_id)
            ]
            shown = await ask(at, "critical")
            reply = await await_forwarded(at, shown, 3)
        assert {str(one.get("deviceId")) for one in reply} >= {phone.device_id, "dev_key"}
        (notice,) = await receiver.until("/pager", 1)
        open_ = notice.body["questions"] if notice.body["kind"] == "open" else [notice.body]
        assert [one["actionId"] for one in open_] == [shown["actionId"]]


async def test_the_owner_sees_an_approval_from_every_device_and_decides_on_a_paired_one(
    rig: Rig,
) -> None:
    tier = {"risk": "high", "who": ["@caller"], "devices": "paired"}
    at = await start(rig, {"approvers": [tier]})
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at, "high")
    assert view["actionId"] in [one["actionId"] for one in await list_pending(at, "ada")]
    refused = await say(at, bearer("ada"), make_answer(view))
    assert (refused.status_code, refused.json()["code"]) == (403, "not_in_audience")
    won = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert won.status_code == 200, won.text


async def test_a_policy_shows_the_roles_and_devices_of_its_approvers(rig: Rig) -> None:
    tier = {"risk": "high", "who": ["@oncall"], "devices": "paired"}
    at = await start(rig, {**ONCALL, "approvers": [tier]})
    found = await at.http.get("/v1/policy", headers=bearer("ada"))
    (shown,) = found.json()["approvers"]
    assert shown["steps"] == [
        {"principals": ["bob", "cleo"], "afterMs": 0, "roles": ["oncall"], "devices": "paired"}
    ]


@pytest.mark.requirement("CHN-8")
async def test_approvers_of_a_rule_apply_and_a_stricter_tier_stays(rig: Rig) -> None:
    rule = {
        "name": "pay",
        "effect": "ask",
        "when": "peer.name == 'echo'",
        "approvers": {"who": ["@oncall"], "devices": "paired"},
    }
    tier = {"risk": "critical", "who": ["bob", "cleo", "dan"], "need": 2}
    at = await start(rig, {**ONCALL, "rules": [rule], "approvers": [tier]})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    view, critical = await ask(at), await ask(at, "critical")
    assert (view["audienceRoles"], view["audienceDevices"]) == ([["oncall"]], ["paired"])
    await wait_listed(at, phone.headers, view)
    await find_nothing(at, bearer("dan"), view)
    await find_nothing(at, bearer("cleo"), view)
    assert (await say(at, phone.headers, make_answer(view))).status_code == 200
    assert (critical["audience"], cast("JsonObject", critical["quorum"])["need"]) == (
        [["bob", "cleo", "dan"]],
        2,
    )
    found = await at.http.get("/v1/policy", headers=bearer("ada"))
    assert found.json()["rules"][0]["approvers"]["steps"] == [
        {"principals": ["bob", "cleo"], "afterMs": 0, "roles": ["oncall"], "devices": "paired"}
    ]
