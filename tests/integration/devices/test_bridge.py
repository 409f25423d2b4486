"""The permission bridge as a whole: three devices, four sources of an answer, and workers of this machine."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson
import pytest
import websockets

from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemClock
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, asks, bearer, make_answer, say
from tests.support.paired_device import PairedDevice, sign_decision
from tests.support.waiting import wait_until

WORKER: dict[str, object] = {"name": "worker", "kind": "agent", "scopes": ["approvals:ask"]}


class Socket:
    """A device on a channel that follows its inbox."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self.frames: list[dict[str, Any]] = []

    async def call(self, method: str, data: JsonObject, idem: str) -> dict[str, Any]:
        frame = {"t": "rpc", "id": idem, "m": method, "idem": idem, "d": data}
        await self._socket.send(orjson.dumps(frame).decode())
        return await self.receive(lambda one: one.get("id") == idem)

    async def send(self, frame: JsonObject) -> None:
        await self._socket.send(orjson.dumps(frame).decode())

    async def receive(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                for frame in self.frames:
                    if wanted(frame):
                        return frame
                # One message can contain several frames, one per line.
                lines = (await self._socket.recv()).splitlines()
                self.frames += [orjson.loads(line) for line in lines]

    async def receive_event(self, kind: str, action: object) -> dict[str, Any]:
        def is_it(frame: dict[str, Any]) -> bool:
            said = frame.get("d", {})
            return bool(
                frame["t"] == "ev" and said.get("type") == kind and said.get("actionId") == action
            )

        return cast("dict[str, Any]", (await self.receive(is_it))["d"])


@asynccontextmanager
async def connect(at: Instance, device: PairedDevice) -> AsyncGenerator[Socket]:
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    protocol = websockets.Subprotocol("passerelle.v1+json")
    async with websockets.connect(url, subprotocols=[protocol]) as socket:
        hello = {
            "t": "hello",
            "v": 1,
            "device": device.device_id,
            "role": "device",
            "token": device.token,
            "subs": [{"s": "inbox", "from": "live"}],
        }
        await socket.send(orjson.dumps(hello).decode())
        opened = Socket(socket)
        await opened.receive(lambda frame: frame["t"] == "sub")
        yield opened


async def read_sources(at: Instance, action: object) -> list[tuple[str, str, bool]]:
    """Returns source, channel and acceptance of each recorded answer."""
    audit = await at.http.get("/v1/audit", params={"actionId": str(action)}, headers=bearer("ada"))
    assert audit.status_code == 200, audit.text
    facts = [one["fact"] for one in audit.json()["facts"]]
    return [
        (
            fact["payload"]["source"],
            fact["payload"].get("channelId", ""),
            fact["payload"]["accepted"],
        )
        for fact in facts
        if fact["type"] == "channel.permission_returned"
        and fact["payload"]["direction"] == "answer"
    ]


@pytest.mark.requirement("CHN-8", "CHN-7")
async def test_any_of_three_devices_answers_and_the_others_get_the_decider(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    phone, desk, watch = (PairedDevice(at.http) for _ in range(3))
    await phone.pair("ada-key", "phone")
    await desk.pair("ada-key", "desk")
    await watch.pair("ada-key", "watch", options=["allow_once"], riskUpTo="medium")
    async with connect(at, phone) as first, connect(at, desk) as second, connect(at, watch) as last:
        view = await ask(at, "high")
        for socket in (first, second, last):
            asked = await socket.receive_event("action.required", view["actionId"])
            # An approval is an approval on every device, and not a message.
            assert asked["payload"]["request"]["digest"] == view["digest"]
        refused = await last.call("respond_action", sign_decision(watch, make_answer(view)), "w-1")
        assert (refused["t"], refused["code"]) == ("err", "device_scope")
        won = await second.call("respond_action", sign_decision(desk, make_answer(view)), "d-1")
        assert (won["t"], won["d"]["outcome"]) == ("ok", "won")
        for socket in (first, second, last):
            ended = await socket.receive_event("action.resolved", view["actionId"])
            decision = ended["payload"]["decision"]
            assert (decision["decidedBy"], decision["deviceName"]) == ("ada", "desk")
        late = await first.call(
            "respond_action", sign_decision(phone, make_answer(view, "no")), "p-1"
        )
        assert (late["code"], late["d"]["winner"]["deviceName"]) == ("already_resolved", "desk")
    messages = [one["type"] for one in await at.read_session(str(view["sessionId"]))]
    assert messages.count("turn.submitted") == 1
    assert not (await verify_store(at.gateway.store)).problems


@pytest.mark.requirement("CHN-6")
async def test_the_audit_records_the_source_of_each_answer(rig: Rig) -> None:
    rules = [{"name": "never", "effect": "deny", "when": "action.risk == 'critical'"}]
    at = await rig.start(clients=[ADA, BOB], policy={"rules": rules})
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    answered = await ask(at)
    unsigned = await ask(at, "high")
    refused = await say(at, phone.headers, make_answer(unsigned))
    assert refused.status_code == 403
    assert (await say(at, phone.headers, make_answer(answered))).status_code == 200
    assert await read_sources(at, answered["actionId"]) == [("answer", phone.device_id, True)]
    assert await read_sources(at, unsigned["actionId"]) == [
        ("auth_failure", phone.device_id, False)
    ]
    soon = format_ms(SystemClock().now_ms() + 20)
    sources: dict[str, str] = {}
    for action, text in (
        ("timeout", asks("low", "act_soon", expires_at=soon)),
        ("policy_deny", asks("critical", "act_never")),
    ):
        sent = await at.send("ada-key", text)
        assert sent.status_code == 200, sent.text
        sources[action] = await find_action(at, sent.json()["result"]["task"]["id"])
    for wanted, found in sources.items():

        async def is_recorded(action: str = found, source: str = wanted) -> bool:
            return await read_sources(at, action) == [(source, "", True)]

        await wait_until(is_recorded, 10, f"the record says {wanted}")


async def find_action(at: Instance, task: str) -> str:
    """Returns the approval of a task, open or closed."""
    record = (await at.http.get(f"/v1/tasks/{task}", headers=bearer("ada"))).json()
    events = await at.read_session(record["sessionId"])
    return next(str(one["actionId"]) for one in events if one["type"] == "action.required")


@pytest.mark.requirement("CHN-7", "CHN-6")
async def test_a_workers_request_is_forwarded_to_devices_as_an_approval(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB, WORKER])
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    turn = {"agent": "echo", "text": "slow 8"}
    accepted = (await at.http.post("/v1/turns", json=turn, headers=bearer("ada"))).json()
    async with connect(at, phone) as socket:
        asked = await at.http.post(
            "/v1/approvals",
            json={
                "taskId": accepted["taskId"],
                "actionType": "command",
                "subject": {"command": "make install"},
                "dedupeKey": "w-1",
            },
            headers={**bearer("worker"), "Idempotency-Key": "w-1"},
        )
        assert asked.status_code in {200, 201}, asked.text
        action = asked.json()["action"]["actionId"]
        event = await socket.receive_event("action.required", action)
        assert event["payload"]["request"]["origin"]["askedBy"] == "worker"

        async def is_forwarded() -> bool:
            events = await at.read_session(accepted["sessionId"])
            return any(
                one["type"] == "channel.permission_forwarded"
                and one["payload"]["transport"] == "ws"
                for one in events
            )

        await wait_until(is_forwarded, 10, "the approval is forwarded to the phone")
        # A textual "yes" is a message and allows nothing.
        words = {"agent": "echo", "text": "yes", "taskId": accepted["taskId"]}
        await at.http.post("/v1/turns", json=words, headers=bearer("ada"))
        shown = await at.http.get(f"/v1/approvals/{action}", headers=bearer("ada"))
        assert shown.json()["state"] == "pending"
