"""A notification button answers once, as the device that received the push, and never at high risk (CHN-8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import httpx
import pytest

from passerelle.core.errors import CredentialExpired, Unauthenticated
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.devices.action_tokens import LIFE_MS, ActionTokens
from passerelle.runtime.common.clock import StoppedClock, SystemIds
from passerelle.runtime.common.sealer import make_sealer
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ask, bearer, list_pending, make_answer, read, say
from tests.integration.devices.test_forwarding import PushService, push, start, subscribe
from tests.support.approvals import NOW_MS, OWNER, Stream, make_request
from tests.support.waiting import wait_until

__all__ = ["push"]


@dataclass(frozen=True)
class Shown:
    """A notification as its device shows it, and its approval."""

    view: JsonObject
    answers: JsonObject

    async def press(self, at: Instance, option: str) -> httpx.Response:
        """Sends the request of a service worker: no credential but the token."""
        body = {"token": self.answers["token"], "optionId": option}
        return await at.http.post("/v1/approvals/answers", json=body)


async def show(at: Instance, push: PushService, risk: str = "medium") -> Shown:
    before = len(await push.read_seen())
    view = await ask(at, risk)

    async def is_pushed() -> bool:
        return len(await push.read_seen()) > before

    await wait_until(is_pushed, 10, "the question is pushed")
    message = cast("JsonObject", (await push.read_seen())[before]["message"])
    return Shown(view, cast("JsonObject", message.get("answers", {})))


@pytest.mark.requirement("CHN-8", "CMD-14")
async def test_a_button_decides_once_as_its_device(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"], approvals={"buttons": "medium"})
    phone = await subscribe(at, push)
    shown = await show(at, push)
    assert shown.answers["options"] == [
        {"optionId": "yes", "name": "Pay"},
        {"optionId": "no", "name": "Do not"},
    ]
    unknown = await shown.press(at, "always")
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_option")
    assert (await at.http.get("/v1/approvals/answers")).status_code in {401, 405}
    assert (await read(at, "ada", shown.view["actionId"]))["state"] == "pending"
    won = await shown.press(at, "no")
    assert (won.status_code, won.json()["outcome"]) == (200, "won"), won.text
    decision = won.json()["decision"]
    assert (decision["decidedBy"], decision["device"]) == ("ada", phone.device_id)
    assert (await shown.press(at, "no")).json()["outcome"] == "replayed"
    late = await shown.press(at, "yes")
    assert (late.status_code, late.json()["code"]) == (409, "already_resolved")
    assert (await read(at, "ada", shown.view["actionId"]))["state"] == "rejected"
    assert not (await verify_store(at.gateway.store)).problems


async def test_a_button_is_too_late_after_an_answer_and_invalid_after_its_device_is_revoked(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals={"buttons": "medium"})
    phone = await subscribe(at, push)
    first, second = await show(at, push), await show(at, push)
    assert (await say(at, bearer("ada"), make_answer(first.view))).status_code == 200
    assert (await first.press(at, "no")).status_code == 409
    await at.http.delete(f"/v1/devices/{phone.device_id}", headers=bearer("ada"))
    assert (await second.press(at, "yes")).status_code == 401
    forged = Shown(second.view, {"token": str(second.answers["token"])[:-4] + "AAA="})
    assert (await forged.press(at, "yes")).status_code == 401
    assert [one["actionId"] for one in await list_pending(at, "ada")] == [second.view["actionId"]]


@pytest.mark.parametrize("risk", ["medium", "high"])
async def test_approvals_above_low_risk_have_no_buttons_by_default(
    rig: Rig, push: PushService, risk: str
) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    assert (await show(at, push, risk)).answers == {}


def test_a_token_is_valid_for_minutes_and_only_with_its_key() -> None:
    sealer, ids = make_sealer([b"k" * 32], SystemIds().draw), SystemIds()
    stream = Stream()
    stream.open(make_request(risk="low"))
    offered = ActionTokens(sealer, StoppedClock(NOW_MS), ids).offer(stream.now, OWNER, "dev_1")
    assert offered is not None
    text = str(offered["token"])
    assert ActionTokens(sealer, StoppedClock(NOW_MS + LIFE_MS - 1), ids).read(text).rev == 1
    with pytest.raises(CredentialExpired):
        ActionTokens(sealer, StoppedClock(NOW_MS + LIFE_MS), ids).read(text)
    other = make_sealer([b"o" * 32], SystemIds().draw)
    for strange in (
        ActionTokens(other, StoppedClock(NOW_MS), ids),
        ActionTokens(None, StoppedClock(NOW_MS), ids),
    ):
        with pytest.raises(Unauthenticated):
            strange.read(text)
        assert strange.sealer is None or strange.offer(stream.now, OWNER, "dev_1") is not None
