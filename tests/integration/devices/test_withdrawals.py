"""A device that may no longer see an open approval gets its withdrawal; the approval stays open (CHN-8)."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.model import Settings
from tests.integration.callers.rig import Instance, Rig, describe
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, say
from tests.integration.devices.test_bridge import Socket, connect
from tests.support.paired_device import PairedDevice, sign_decision

PAIRED = [
    {"risk": "high", "who": ["bob"], "devices": "paired"},
    {"risk": "critical", "who": ["bob"]},
]


async def receive_withdrawn(socket: Socket) -> JsonObject:
    return cast("JsonObject", await socket.receive(lambda one: one["t"] == "action.withdrawn"))


def list_withdrawn(socket: Socket) -> list[object]:
    return [one["action"] for one in socket.frames if one["t"] == "action.withdrawn"]


async def answers_still(at: Instance, headers: dict[str, str], answer: JsonObject) -> None:
    won = await say(at, headers, answer)
    assert (won.status_code, won.json()["outcome"]) == (200, "won"), won.text


@pytest.mark.requirement("CHN-8")
async def test_a_link_that_loses_its_pairing_loses_the_approvals_for_paired_devices(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA, BOB], policy={"approvers": PAIRED})
    phone = PairedDevice(at.http)
    await phone.pair("bob-key")
    async with connect(at, phone) as socket:
        hidden, shown = await ask(at, "high"), await ask(at, "critical")
        for view in (hidden, shown):
            await socket.receive_event("action.required", view["actionId"])
        await socket.send({"t": "auth", "token": "bob-key"})
        withdrawn = await receive_withdrawn(socket)
        assert withdrawn == {
            "t": "action.withdrawn",
            "action": hidden["actionId"],
            "why": "pairing",
        }
        # The view of the inbox has changed: subscribe again.
        await socket.receive(lambda one: one["t"] == "unsub" and one["code"] == "forbidden")
        await socket.send({"t": "sub", "s": "inbox", "from": "snap", "id": "anew"})
        snapshot = await socket.receive(lambda one: one["t"] == "snap" and one.get("id") == "anew")
        assert [view["actionId"] for view in snapshot["d"]["pending"]] == [shown["actionId"]]
        assert list_withdrawn(socket) == [hidden["actionId"]]
    await answers_still(at, phone.headers, sign_decision(phone, make_answer(hidden)))


@pytest.mark.requirement("CHN-8")
async def test_a_credential_that_loses_its_scopes_loses_only_its_approvals_at_once(
    rig: Rig,
) -> None:
    at = await rig.start(
        clients=[ADA, BOB], policy={"approvers": [{"risk": "high", "who": ["bob"]}]}
    )
    key = PairedDevice(at.http, device_id="dev_bob", token="bob-key")
    owners = PairedDevice(at.http, device_id="dev_ada", token="ada-key")
    async with connect(at, key) as bob, connect(at, owners) as ada:
        view = await ask(at, "high")
        await bob.receive_event("action.required", view["actionId"])
        scopes = [one for one in cast("list[str]", BOB["scopes"]) if "approvals" not in one]
        fallen = [describe(ADA), describe({**BOB, "scopes": scopes})]
        given = at.settings.model_dump(exclude_unset=True) | {"clients": fallen}
        at.access.reload(Settings.model_validate(given))
        withdrawn = await receive_withdrawn(bob)
        assert (withdrawn["action"], withdrawn["why"]) == (view["actionId"], "scope")
        at.access.reload(at.settings)
        await answers_still(at, bearer("bob"), make_answer(view))
        await ada.receive_event("action.resolved", view["actionId"])
        assert list_withdrawn(ada) == []
        assert list_withdrawn(bob) == [view["actionId"]]
