"""A question goes out to people: links, pushes, receivers, and what is recorded of each (CHN-6, EXT-8)."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import httpx
import orjson
import pytest
import websockets

from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemClock
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, read, say
from tests.support.engine import ask as command
from tests.support.paired_device import PairedDevice
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("unhurried")

ADA_KEY = Principal("ada").key


@dataclass
class PushService:
    """The service as a test sees it."""

    made: dict[str, str]
    http: httpx.AsyncClient

    @property
    def subscription(self) -> JsonObject:
        """As a browser gives it."""
        keys: JsonObject = {"p256dh": self.made["p256dh"], "auth": self.made["auth"]}
        said: JsonObject = {
            "endpoint": self.made["endpoint"],
            "expirationTime": None,
            "keys": keys,
        }
        return {"subscription": said}

    async def read_seen(self) -> list[JsonObject]:
        return cast("list[JsonObject]", (await self.http.get("/seen")).json())

    async def answer(self, status: int) -> None:
        await self.http.post(f"/answer/{status}")


@asynccontextmanager
async def run_push_service() -> AsyncGenerator[PushService]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.push_service", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        made = orjson.loads(await asyncio.wait_for(process.stdout.readline(), 20))
        async with httpx.AsyncClient(base_url=made["origin"]) as http:
            yield PushService(made, http)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
async def push(anyio_backend: str) -> AsyncGenerator[PushService]:
    async with run_push_service() as service:
        yield service


async def start(rig: Rig, *allowed: str, **settings: object) -> Instance:
    hooks = {"webhooks": {"allow": list(allowed)}} if allowed else {}
    return await rig.start(clients=[ADA, BOB], **hooks, **settings)


async def subscribe(at: Instance, push: PushService, who: str = "ada") -> PairedDevice:
    phone = PairedDevice(at.http)
    await phone.pair(f"{who}-key")
    body = push.subscription
    path = f"/v1/devices/{phone.device_id}/push"
    set_ = await at.http.put(path, json=body, headers=phone.headers)
    assert set_.status_code == 200, set_.text
    return phone


async def read_told(at: Instance, view: JsonObject) -> list[JsonObject]:
    events = await at.read_session(str(view["sessionId"]))
    return [
        cast("JsonObject", event["payload"])
        for event in events
        if event["type"] == "channel.permission_forwarded" and event["actionId"] == view["actionId"]
    ]


async def wait_told(at: Instance, view: JsonObject, count: int = 1) -> list[JsonObject]:
    async def enough() -> list[JsonObject] | None:
        told = await read_told(at, view)
        return told if len(told) >= count else None

    found = await wait_until(enough, 10, "the question was forwarded")
    assert found is not None
    return found


def run_due(rig: Rig, view: JsonObject, row: str) -> None:
    """Makes a row of a question due now, whatever its time is."""
    shard = str(view["actionId"]).partition("_")[2][:2]
    command(rig.url, "ZADD", f"{{{shard}}}:due", "XX", "1", f"{row}")


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_that_nobody_can_be_told_is_a_fact_and_decides_nothing(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert (told["transport"], told["outcome"], told["askingPeer"]) == ("none", "no_device", "echo")
    assert (told["appliesTo"], told["channelScoped"]) == ("session", False)
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_a_phone_that_nobody_looks_at_gets_an_encrypted_push_and_its_end(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals={"push_contact": "mailto:ops@example.com"})
    phone = await subscribe(at, push)
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert (told["transport"], told["outcome"], told["deviceId"]) == (
        "webpush",
        "sent",
        phone.device_id,
    )
    (seen,) = await push.read_seen()
    assert (seen["scheme"], seen["encoding"], seen["urgency"]) == ("vapid", "aes128gcm", "high")
    assert (seen["contact"], len(str(seen["topic"]))) == ("mailto:ops@example.com", 32)
    assert cast("int", seen["size"]) < 3_000
    assert 0 < cast("int", seen["ttl"]) <= 3_600
    assert seen["message"] == {
        "actionId": view["actionId"],
        "rev": 1,
        "state": "pending",
        "title": view["title"],
        "risk": "medium",
        "expiresAt": view["expiresAt"],
    }
    key = (await at.http.get("/v1/devices/push-key", headers=phone.headers)).json()["publicKey"]
    assert key == seen["key"]
    # Answered elsewhere: what the phone shows is replaced.
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200

    async def is_replaced() -> bool:
        return len(await push.read_seen()) == 2

    await wait_until(is_replaced, 10, "the shown question is replaced")
    last = (await push.read_seen())[1]
    assert last["topic"] == seen["topic"]
    assert cast("JsonObject", last["message"])["state"] == "allowed"


@pytest.mark.requirement("CHN-6")
async def test_who_looks_at_a_device_is_pushed_to_only_when_no_answer_comes(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"])
    phone = await subscribe(at, push)
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    async with websockets.connect(
        url, subprotocols=[websockets.Subprotocol("passerelle.v1+json")]
    ) as socket:
        hello = {"t": "hello", "v": 1, "device": "desk", "role": "ui", "token": "ada-key"}
        await socket.send(orjson.dumps(hello).decode())
        assert orjson.loads(await socket.recv())["t"] == "welcome"
        await socket.send(orjson.dumps({"t": "presence", "state": "active"}).decode())

        async def is_active() -> bool:
            return bool(await at.gateway.store.presences.list_present(ADA_KEY))

        await wait_until(is_active, 10, "the desk is looked at")
        view = await ask(at)
        told = await wait_told(at, view, 2)
        assert [(one["transport"], one["outcome"]) for one in told] == [
            ("ws", "queued"),
            ("webpush", "suppressed"),
        ]
        assert await push.read_seen() == []
        run_due(rig, view, f"notify:{view['actionId']}:2")
        at.gateway.duties.due.look_again()
        *_, second = await wait_told(at, view, 3)
        assert (second["outcome"], second["attempt"], second["deviceId"]) == (
            "sent",
            2,
            phone.device_id,
        )


@pytest.mark.requirement("CHN-6")
async def test_who_has_seen_a_question_is_not_pushed_to_for_want_of_an_answer(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"])
    await push.answer(503)
    await subscribe(at, push)
    view = await ask(at)
    await wait_told(at, view)
    path = f"/v1/approvals/{view['actionId']}/seen"
    stale = await at.http.post(path, json={"rev": 2}, headers=bearer("ada"))
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_revision")
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("bob"))).status_code == 404, (
        "whose it is not sees nothing"
    )
    for _ in range(2):
        seen = await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))
        assert (seen.status_code, seen.json()["seenBy"]) == (200, ["ada"]), seen.text
    await push.answer(201)
    before = len(await push.read_seen())
    run_due(rig, view, f"notify:{view['actionId']}:2")
    at.gateway.duties.due.look_again()
    told = await wait_told(at, view, 3)
    assert [(one["outcome"], one.get("reason")) for one in told] == [
        ("failed", "http_503"),
        ("seen", None),
        ("suppressed", "seen"),
    ]
    assert len(await push.read_seen()) == before
    now = await read(at, "ada", view["actionId"])
    assert (now["state"], now["rev"], now["seenBy"]) == ("pending", 1, ["ada"])
    assert not (await verify_store(at.gateway.store)).problems


def make_quiet(minutes: int) -> dict[str, object]:
    """Hours that began a while ago and end in so many minutes."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    begin, end = now - timedelta(minutes=20), now + timedelta(minutes=minutes)
    return {"quiet": [{"begin": f"{begin:%H:%M}", "end": f"{end:%H:%M}"}]}


@pytest.mark.requirement("CHN-6")
async def test_in_quiet_hours_pushes_wait_for_their_end_unless_it_is_grave(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(20))
    await subscribe(at, push)
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert (told["outcome"], told["reason"]) == ("suppressed", "quiet")
    shard = str(view["actionId"]).partition("_")[2][:2]
    row = f"notify:{view['actionId']}:q"
    due_ms = cast("float", command(rig.url, "ZSCORE", f"{{{shard}}}:due", row))
    assert 15 < (due_ms - SystemClock().now_ms()) / 60_000 <= 20
    assert await push.read_seen() == []
    grave = await ask(at, "high")
    (told,) = await wait_told(at, grave)
    assert told["outcome"] == "sent"


async def test_who_is_still_left_alone_when_a_wait_ends_waits_again(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(20))
    await subscribe(at, push)
    view = await ask(at)
    await wait_told(at, view)
    shard = str(view["actionId"]).partition("_")[2][:2]
    for ended, owed in (("q", "q1"), ("q1", "q2")):
        name = f"notify:{view['actionId']}:"
        run_due(rig, view, name + ended)
        at.gateway.duties.due.look_again()
        told = await wait_told(at, view, 2 if ended == "q" else 3)
        assert (told[-1]["outcome"], told[-1]["attempt"]) == ("suppressed", 4)
        rows = [command(rig.url, "ZSCORE", f"{{{shard}}}:due", name + one) for one in (ended, owed)]
        assert rows[0] is None
        assert rows[1] is not None
    assert await push.read_seen() == []


async def test_what_would_expire_in_quiet_hours_is_pushed_without_a_sound(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(5 * 60))
    await subscribe(at, push)
    (told,) = await wait_told(at, await ask(at))
    assert told["outcome"] == "sent"
    (seen,) = await push.read_seen()
    assert cast("JsonObject", seen["message"])["silent"] is True


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_a_device_that_is_connected_and_says_nothing_of_itself_is_told(rig: Rig) -> None:
    at = await start(rig)
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    async with websockets.connect(
        url, subprotocols=[websockets.Subprotocol("passerelle.v1+json")]
    ) as socket:
        hello = {"t": "hello", "v": 1, "device": "desk", "role": "ui", "token": "ada-key"}
        await socket.send(orjson.dumps(hello).decode())
        welcome = orjson.loads(await socket.recv())
        (told,) = await wait_told(at, await ask(at))
        assert (told["transport"], told["outcome"], told["deviceId"], told["channelId"]) == (
            "ws",
            "queued",
            "desk",
            welcome["channel"],
        )


async def test_a_subscription_that_has_ended_is_forgotten_and_the_failure_is_told(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    await push.answer(410)
    (told,) = await wait_told(at, await ask(at))
    assert (told["outcome"], told["reason"]) == ("failed", "gone")
    (device,) = (await at.http.get("/v1/devices", headers=bearer("ada"))).json()["devices"]
    assert "push" not in device
    (told,) = await wait_told(at, await ask(at))
    assert told["outcome"] == "no_device"


async def test_a_push_service_that_fails_is_tried_again(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    await push.answer(503)
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert (told["outcome"], told["reason"]) == ("failed", "http_503")
    await push.answer(201)
    run_due(rig, view, f"notify:{view['actionId']}:2")
    at.gateway.duties.due.look_again()
    both = await wait_told(at, view, 2)
    assert [one["outcome"] for one in both] == ["failed", "sent"]


async def test_an_endpoint_inside_our_network_is_never_called(rig: Rig, push: PushService) -> None:
    at = await start(rig)
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    body = push.subscription
    refused = await at.http.put(
        f"/v1/devices/{phone.device_id}/push", json=body, headers=phone.headers
    )
    assert refused.status_code == 400
    assert await push.read_seen() == []


async def test_a_question_that_stays_open_for_long_is_warned_of(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    run_due(rig, view, f"stalled:{view['actionId']}")
    at.gateway.duties.due.look_again()

    async def is_warned() -> bool:
        events = await at.read_session(str(view["sessionId"]))
        warnings = [event["payload"] for event in events if event["type"] == "runtime.warning"]
        return any(one["code"] == "approval_stalled" for one in warnings)

    await wait_until(is_warned, 10, "somebody could notice")
    assert not (await verify_store(at.gateway.store)).problems
