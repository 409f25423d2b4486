"""Devices that follow, lose their network and reconnect, against the whole product."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from passerelle.client.channel import ChannelClient
from passerelle.core.event_type import EventType
from passerelle.core.wire.json import Json, JsonObject
from passerelle.demo.devices import DemoDevice, open_device
from passerelle.demo.network import open_network
from passerelle.demo.processes import GatewayProcess
from passerelle.protocol.frames import SUBPROTOCOL
from tests.support.processes import AGENT, Caller, count_stored, read_stored
from tests.support.raw_channel import open_channel
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

CUTS: Final = 40
RELEASED: Final = 5

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def open_eager_device(url: str, token: str) -> AsyncGenerator[DemoDevice]:
    """A device that reconnects at once, so that a test may cut it often."""
    address = f"{url.replace('http', 'ws', 1)}/v1/channel"
    async with ChannelClient(address, token=token, device="eager", jitter=lambda: 0.0) as client:
        device = DemoDevice("eager", client)
        await device.await_welcome()
        yield device
        await device.leave()


async def begin_held(caller: Caller, peer: ScriptedPeer, text: str) -> tuple[str, str]:
    """A task whose peer waits after WORKING; returns its id and the stream of its session."""
    peer.hold()
    peer.release(2)
    task = await caller.begin(text)
    record = await caller.read_record(task["id"])
    return task["id"], f"session:{record['sessionId']}"


@pytest.mark.requirement("CHN-3")
async def test_repeatedly_cut_device_has_every_event_once(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    chunks = CUTS * RELEASED
    task_id, stream = await begin_held(caller, peer, f"chunks {chunks}")
    async with (
        open_network(gateway.port) as network,
        open_eager_device(network.url, gateway.token) as device,
    ):
        device.follow(stream)
        await device.await_event(stream, "task.started")
        points = itertools.cycle((1, 4, 0, 3, 2, 5))
        for _, further in zip(range(CUTS), points, strict=False):
            seen = len(device.events[stream])
            peer.release(RELEASED)
            await wait_until(
                lambda goal=seen + further: len(device.events[stream]) >= goal,  # type: ignore[misc]
                10,
                f"{further} more events",
            )
            network.pull_out()
            network.plug_in()
        peer.release_all()
        await caller.await_end(task_id)
        await device.await_event(stream, "task.completed")
        assert device.client.welcome is not None
        assert device.client.welcome.generation > CUTS // 2
        assert device.gaps == []
        assert device.events[stream] == read_stored(gateway, stream.removeprefix("session:"))
        wanted = "".join(f"chunk-{number} " for number in range(1, chunks + 1))
        assert device.read_artifact(stream) == wanted


@pytest.mark.requirement("CHN-9")
async def test_task_continues_without_devices_and_its_result_waits(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    task_id, stream = await begin_held(caller, peer, "chunks 3")
    async with open_network(gateway.port) as network:
        async with (
            open_device(network.url, gateway.token, "laptop") as laptop,
            open_device(network.url, gateway.token, "phone") as phone,
        ):
            for device in (laptop, phone):
                device.follow(stream)
                await device.await_event(stream, "task.started")
            network.pull_out()
        peer.release_all()
        task = await caller.await_end(task_id)
        network.plug_in()
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        types = [event["type"] for event in read_stored(gateway, stream.removeprefix("session:"))]
        assert not {"task.failed", "task.cancelled", "task.lost"} & set(types)
        async with open_device(network.url, gateway.token, "laptop") as laptop:
            laptop.follow(stream)
            await laptop.await_event(stream, "task.completed")
            assert laptop.read_artifact(stream) == "chunk-1 chunk-2 chunk-3 "


@pytest.mark.requirement("CHN-13")
async def test_frames_resent_after_a_reconnect_create_no_new_turn(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    turns: list[JsonObject] = [
        {
            "t": "rpc",
            "id": str(number),
            "m": "submit_turn",
            "idem": f"turn-{number}",
            "d": {"agent": AGENT, "parts": [{"text": f"turn {number}"}]},
        }
        for number in range(10)
    ]
    beats: list[JsonObject] = [{"t": "hb", "n": number} for number in range(10)]
    frames = [frame for pair in zip(turns, beats, strict=True) for frame in pair]
    async with open_channel(gateway.url) as channel:
        await channel.greet(gateway.token)
        for frame in frames:
            await channel.send(frame)
        first = [(await channel.expect("ok", id=str(number)))["d"] for number in range(10)]
        channel.abort()
    for answer in first:
        await wait_until(partial(is_completed, caller, answer["taskId"]), 10, "the turn is done")
    before = count_stored(gateway)
    async with open_channel(gateway.url) as channel:
        await channel.greet(gateway.token)
        for frame in frames:
            await channel.send(frame)
        again = [(await channel.expect("ok", id=str(number)))["d"] for number in range(10)]
    assert again == [{**answer, "repeated": True} for answer in first]
    assert count_stored(gateway) == before
    assert sorted(peer.texts) == sorted(f"turn {number}" for number in range(10))


async def is_completed(caller: Caller, task_id: str) -> bool:
    return bool((await caller.read_record(task_id))["status"] == "completed")


@pytest.mark.requirement("ID-14")
async def test_device_sees_normalized_events_without_the_peers_ids(
    gateway: GatewayProcess, caller: Caller, peer: ScriptedPeer
) -> None:
    known = set(peer.tasks)
    asked = await caller.send("ask Which one?")
    await caller.send("that one", taskId=asked["id"])
    record = await caller.read_record(asked["id"])
    stream = f"session:{record['sessionId']}"
    async with open_device(gateway.url, gateway.token, "laptop") as device:
        device.follow(stream)
        await device.await_event(stream, "task.completed")
        types = {str(event["type"]) for event in device.events[stream]}
        assert types <= {kind.value for kind in EventType}
        (native,) = set(peer.tasks) - known
        reported = orjson.dumps([without_names(event) for event in device.events[stream]])
        assert native.encode() not in reported
        assert peer.tasks[native].context_id.encode() not in reported


def without_names(value: Json) -> Json:
    """The event without the members that name a remote task, context or message."""
    if isinstance(value, dict):
        return {
            name: without_names(member)
            for name, member in value.items()
            if name not in {"remoteTaskId", "remoteContextId", "messageId"}
        }
    return [without_names(item) for item in value] if isinstance(value, list) else value


async def test_channel_is_not_compressed_on_request(
    gateway: GatewayProcess,
) -> None:
    url = f"{gateway.url.replace('http', 'ws', 1)}/v1/channel"
    async with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None) as socket:
        assert socket.protocol.extensions == []


async def test_page_opens_a_channel_with_a_ticket_and_no_bearer_token(
    gateway: GatewayProcess, caller: Caller
) -> None:
    page = gateway.url
    answer = await caller.http.post(
        "/v1/tickets", json={"device": "browser"}, headers={"Origin": page}
    )
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    given = answer.json()
    assert given["expiresIn"] == 30
    hello: JsonObject = {
        "t": "hello",
        "v": 1,
        "device": "browser",
        "role": "ui",
        "ticket": given["ticket"],
    }
    async with open_channel(gateway.url, page) as channel:
        await channel.send(hello)
        await channel.expect("welcome")
    async with open_channel(gateway.url, page) as channel:
        await channel.send(hello)
        assert await channel.read_close() == 4500
    bare = dict.fromkeys(gateway.authorization, "")
    refused = await caller.http.post("/v1/tickets", json={"device": "browser"}, headers=bare)
    assert refused.status_code == 401


async def test_a_session_is_followed_over_plain_http_from_the_cursor_of_its_state(
    caller: Caller,
) -> None:
    asked = await caller.send("echo one")
    stream = f"session:{(await caller.read_record(asked['id']))['sessionId']}"
    state = await caller.read(f"/v1/streams/{stream}/snapshot")
    assert [task["status"] for task in state["snapshot"]["tasks"]] == ["completed"]
    await caller.send("echo two", contextId=asked["contextId"])
    page = await caller.read(f"/v1/streams/{stream}/events?wait=5&after={state['cursor']}")
    first = page["events"][0]
    assert first["sequence"] == int(state["cursor"].split(".")[1]) + 1
    headers = {"Accept": "text/event-stream", "Last-Event-ID": page["cursor"]}
    path = f"/v1/streams/{stream}/events"
    async with caller.http.stream("GET", path, headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                assert line.removeprefix("id: ") == page["cursor"]
                break
    acked = await caller.http.post(
        f"/v1/streams/{stream}/ack", json={"device": "cron", "cursor": page["cursor"]}
    )
    assert acked.json()["cursor"] == page["cursor"]
