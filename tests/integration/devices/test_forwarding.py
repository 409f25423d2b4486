"""An approval is forwarded to people over links, pushes and receivers, and each attempt is recorded (CHN-6, EXT-8)."""

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
    """A fake push service, as the test controls it."""

    made: dict[str, str]
    http: httpx.AsyncClient

    @property
    def subscription(self) -> JsonObject:
        """The subscription as a browser sends it."""
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


async def read_forwarded(at: Instance, view: JsonObject) -> list[JsonObject]:
    events = await at.read_session(str(view["sessionId"]))
    return [
        cast("JsonObject", event["payload"])
        for event in events
        if event["type"] == "channel.permission_forwarded" and event["actionId"] == view["actionId"]
    ]


async def await_forwarded(at: Instance, view: JsonObject, count: int = 1) -> list[JsonObject]:
    async def enough() -> list[JsonObject] | None:
        forwarded = await read_forwarded(at, view)
        return forwarded if len(forwarded) >= count else None

    found = await wait_until(enough, 10, "the question was forwarded")
    assert found is not None
    return found


def run_due(rig: Rig, view: JsonObject, row: str) -> None:
    """Makes a row of an approval due now."""
    shard = str(view["actionId"]).partition("_")[2][:2]
    command(rig.url, "ZADD", f"{{{shard}}}:due", "XX", "1", f"{row}")


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_an_approval_without_a_reachable_device_is_recorded_and_stays_open(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    (forwarded,) = await await_forwarded(at, view)
    assert (forwarded["transport"], forwarded["outcome"], forwarded["askingPeer"]) == (
        "none",
        "no_device",
        "echo",
    )
    assert (forwarded["appliesTo"], forwarded["channelScoped"]) == ("session", False)
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_an_inactive_phone_gets_an_encrypted_push_and_an_update_at_the_end(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals={"push_contact": "mailto:ops@example.com"})
    phone = await subscribe(at, push)
    view = await ask(at)
    (forwarded,) = await await_forwarded(at, view)
    assert (forwarded["transport"], forwarded["outcome"], forwarded["deviceId"]) == (
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
    # Answered on another device: the notification on the phone is replaced.
    assert (await say(at, bearer("ada"), make_answer(view))).status_code == 200

    async def is_replaced() -> bool:
        return len(await push.read_seen()) == 2

    await wait_until(is_replaced, 10, "the shown question is replaced")
    last = (await push.read_seen())[1]
    assert last["topic"] == seen["topic"]
    assert cast("JsonObject", last["message"])["state"] == "allowed"


@pytest.mark.requirement("CHN-6")
async def test_active_person_is_pushed_to_only_without_an_answer(
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
        forwarded = await await_forwarded(at, view, 2)
        assert [(one["transport"], one["outcome"]) for one in forwarded] == [
            ("ws", "queued"),
            ("webpush", "suppressed"),
        ]
        assert await push.read_seen() == []
        run_due(rig, view, f"notify:{view['actionId']}:2")
        at.gateway.duties.due.look_again()
        *_, second = await await_forwarded(at, view, 3)
        assert (second["outcome"], second["attempt"], second["deviceId"]) == (
            "sent",
            2,
            phone.device_id,
        )


@pytest.mark.requirement("CHN-6")
async def test_a_seen_approval_is_not_pushed_again(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"])
    await push.answer(503)
    await subscribe(at, push)
    view = await ask(at)
    await await_forwarded(at, view)
    path = f"/v1/approvals/{view['actionId']}/seen"
    stale = await at.http.post(path, json={"rev": 2}, headers=bearer("ada"))
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_revision")
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("bob"))).status_code == 404, (
        "another caller cannot see it"
    )
    for _ in range(2):
        seen = await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))
        assert (seen.status_code, seen.json()["seenBy"]) == (200, ["ada"]), seen.text
    await push.answer(201)
    before = len(await push.read_seen())
    run_due(rig, view, f"notify:{view['actionId']}:2")
    at.gateway.duties.due.look_again()
    forwarded = await await_forwarded(at, view, 3)
    assert [(one["outcome"], one.get("reason")) for one in forwarded] == [
        ("failed", "http_503"),
        ("seen", None),
        ("suppressed", "seen"),
    ]
    assert len(await push.read_seen()) == before
    now = await read(at, "ada", view["actionId"])
    assert (now["state"], now["rev"], now["seenBy"]) == ("pending", 1, ["ada"])
    assert not (await verify_store(at.gateway.store)).problems


def make_quiet(minutes: int) -> dict[str, object]:
    """Returns quiet hours that began 20 minutes ago and end in ``minutes``."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    begin, end = now - timedelta(minutes=20), now + timedelta(minutes=minutes)
    return {"quiet": [{"begin": f"{begin:%H:%M}", "end": f"{end:%H:%M}"}]}


@pytest.mark.requirement("CHN-6")
async def test_pushes_in_quiet_hours_wait_for_their_end_except_at_high_risk(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(20))
    await subscribe(at, push)
    view = await ask(at)
    (forwarded,) = await await_forwarded(at, view)
    assert (forwarded["outcome"], forwarded["reason"]) == ("suppressed", "quiet")
    shard = str(view["actionId"]).partition("_")[2][:2]
    row = f"notify:{view['actionId']}:q"
    due_ms = cast("float", command(rig.url, "ZSCORE", f"{{{shard}}}:due", row))
    assert 15 < (due_ms - SystemClock().now_ms()) / 60_000 <= 20
    assert await push.read_seen() == []
    high = await ask(at, "high")
    (forwarded,) = await await_forwarded(at, high)
    assert forwarded["outcome"] == "sent"


async def test_a_push_due_in_further_quiet_hours_waits_again(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(20))
    await subscribe(at, push)
    view = await ask(at)
    await await_forwarded(at, view)
    shard = str(view["actionId"]).partition("_")[2][:2]
    for ended, owed in (("q", "q1"), ("q1", "q2")):
        name = f"notify:{view['actionId']}:"
        run_due(rig, view, name + ended)
        at.gateway.duties.due.look_again()
        forwarded = await await_forwarded(at, view, 2 if ended == "q" else 3)
        assert (forwarded[-1]["outcome"], forwarded[-1]["attempt"]) == ("suppressed", 4)
        rows = [command(rig.url, "ZSCORE", f"{{{shard}}}:due", name + one) for one in (ended, owed)]
        assert rows[0] is None
        assert rows[1] is not None
    assert await push.read_seen() == []


async def test_an_approval_expiring_in_quiet_hours_is_pushed_silently(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(5 * 60))
    await subscribe(at, push)
    (forwarded,) = await await_forwarded(at, await ask(at))
    assert forwarded["outcome"] == "sent"
    (seen,) = await push.read_seen()
    assert cast("JsonObject", seen["message"])["silent"] is True


@pytest.mark.requirement("CHN-6", "EXT-8")
async def test_a_connected_device_without_presence_gets_the_approval(rig: Rig) -> None:
    at = await start(rig)
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    async with websockets.connect(
        url, subprotocols=[websockets.Subprotocol("passerelle.v1+json")]
    ) as socket:
        hello = {"t": "hello", "v": 1, "device": "desk", "role": "ui", "token": "ada-key"}
        await socket.send(orjson.dumps(hello).decode())
        welcome = orjson.loads(await socket.recv())
        (forwarded,) = await await_forwarded(at, await ask(at))
        assert (
            forwarded["transport"],
            forwarded["outcome"],
            forwarded["deviceId"],
            forwarded["channelId"],
        ) == (
            "ws",
            "queued",
            "desk",
            welcome["channel"],
        )


async def test_an_expired_subscription_is_removed_and_its_failure_recorded(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    await push.answer(410)
    (forwarded,) = await await_forwarded(at, await ask(at))
    assert (forwarded["outcome"], forwarded["reason"]) == ("failed", "gone")
    (device,) = (await at.http.get("/v1/devices", headers=bearer("ada"))).json()["devices"]
    assert "push" not in device
    (forwarded,) = await await_forwarded(at, await ask(at))
    assert forwarded["outcome"] == "no_device"


async def test_a_failing_push_service_is_retried(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    await push.answer(503)
    view = await ask(at)
    (forwarded,) = await await_forwarded(at, view)
    assert (forwarded["outcome"], forwarded["reason"]) == ("failed", "http_503")
    await push.answer(201)
    run_due(rig, view, f"notify:{view['actionId']}:2")
    at.gateway.duties.due.look_again()
    both = await await_forwarded(at, view, 2)
    assert [one["outcome"] for one in both] == ["failed", "sent"]


async def test_a_push_endpoint_in_the_private_network_is_refused(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig)
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    body = push.subscription
    refused = await at.http.put(
        f"/v1/devices/{phone.device_id}/push", json=body, headers=phone.headers
    )
    assert refused.status_code == 400
    assert await push.read_seen() == []


async def test_an_approval_open_for_long_raises_a_warning(rig: Rig) -> None:
    at = await start(rig)
    view = await ask(at)
    run_due(rig, view, f"stalled:{view['actionId']}")
    at.gateway.duties.due.look_again()

    async def is_warned() -> bool:
        events = await at.read_session(str(view["sessionId"]))
        warnings = [event["payload"] for event in events if event["type"] == "runtime.warning"]
        return any(one["code"] == "approval_stalled" for one in warnings)

    await wait_until(is_warned, 10, "the warning is stored")
    assert not (await verify_store(at.gateway.store)).problems
