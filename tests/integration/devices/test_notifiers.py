"""Notifiers: the operator's receiver gets approvals in order, also those opened while it was unavailable."""

import base64
import hashlib
import hmac

import pytest

from passerelle.runtime.common import breaker
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, say
from tests.integration.devices.test_forwarding import await_forwarded
from tests.support.webhook_receiver import WebhookReceiver

SECRET = b"a secret of twenty-four bytes.."
STATED = f"whsec_{base64.b64encode(SECRET).decode()}"


async def start(rig: Rig, receiver: WebhookReceiver, **more: object) -> Instance:
    pager = {"name": "pager", "url": f"{receiver.url}/pager", "secret": STATED, **more}
    return await rig.start(clients=[ADA, BOB], approvals={"notifiers": [pager]})


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_a_receiver_gets_each_approval_and_its_end_signed(
    rig: Rig,
) -> None:
    async with WebhookReceiver() as receiver:
        at = await start(rig, receiver)
        view = await ask(at)
        (forwarded,) = await await_forwarded(at, view)
        assert (forwarded["transport"], forwarded["outcome"]) == ("webhook", "queued")
        (first,) = await receiver.until("/pager", 1)
        open_ = first.body["questions"] if first.body["kind"] == "open" else [first.body]
        assert open_[0]["actionId"] == view["actionId"]
        assert "peerMessage" not in open_[0]
        assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
        *_, last = await receiver.until("/pager", 2)
        assert last.body["kind"] == "question"
        assert (last.body["state"], last.body["decidedBy"]) == ("allowed", "ada")
        signed = b".".join(
            (
                last.headers["webhook-id"].encode(),
                last.headers["webhook-timestamp"].encode(),
                last.raw,
            )
        )
        made = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
        assert last.headers["webhook-signature"] == f"v1,{made}"


async def test_an_unavailable_receiver_gets_what_it_missed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PAUSE_MS", 1)
    async with WebhookReceiver() as receiver:
        receiver.answer("/pager", 503)
        at = await start(rig, receiver)
        view = await ask(at)
        (notice,) = await receiver.until("/pager", 1)
        assert str(view["actionId"]) in notice.raw.decode()


async def test_a_receiver_limited_to_people_gets_no_approval_of_others(rig: Rig) -> None:
    async with WebhookReceiver() as receiver:
        at = await start(rig, receiver, people=["bob"])
        (forwarded,) = await await_forwarded(at, await ask(at))
        assert forwarded["outcome"] == "no_device"
        hers = await ask(at, who="bob")
        await await_forwarded(at, hers)
        (notice,) = await receiver.until("/pager", 1)
        assert str(hers["actionId"]) in notice.raw.decode()
