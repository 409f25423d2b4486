"""Presence over two instances: a device that announces itself sees the others; it is kept only as an expiring row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from passerelle.channels.limits import ChannelLimits
from passerelle.core.ids import shard_of
from passerelle.core.ports.channels import Presence
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.store import keys
from passerelle.store.channels import RedisPresences
from passerelle.store.connection import pack
from passerelle.store.store import Store
from tests.integration.channels.rig import ADA, Rig, serve
from tests.support.batches import mint
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("PRS-9")]

QUICK = ChannelLimits(presence_interval_s=0.02)


class Device:
    """A device by hand; ``shown`` are the devices in its last presence frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.shown: list[JsonObject] | None = None
        self.times = 0
        self.rooms: set[str] = set()
        self._socket = socket

    async def say(self, **members: object) -> None:
        await self._socket.send(orjson.dumps({"t": "presence", **members}).decode())

    async def beat(self) -> None:
        await self._socket.send('{"t":"hb","n":1}')

    async def listen(self) -> None:
        async for message in self._socket:
            for line in str(message).split("\n"):
                frame = orjson.loads(line)
                if frame["t"] == "presence":
                    self.rooms.add(frame["s"])
                    self.shown = cast("list[JsonObject]", frame["devices"])
                    self.times += 1

    async def sees(self, **states: str) -> None:
        """Waits until it is shown exactly these devices."""

        def look() -> bool:
            return self.shown is not None and states == {
                str(one["device"]): one["state"] for one in self.shown
            }

        await wait_until(look, 15, f"is shown {states}")


@asynccontextmanager
async def device(rig: Rig, name: str, token: str = "ada-token") -> AsyncGenerator[Device]:
    subprotocols = [Subprotocol(SUBPROTOCOL)]
    async with connect(rig.url, subprotocols=subprotocols, proxy=None, compression=None) as socket:
        hello = {"t": "hello", "v": 1, "token": token, "device": name, "role": "ui", "sdk": "t"}
        await socket.send(orjson.dumps(hello).decode())
        assert orjson.loads(str(await socket.recv()).split("\n")[0])["t"] == "welcome"
        made = Device(socket)
        listening = asyncio.create_task(made.listen())
        try:
            yield made
        finally:
            listening.cancel()


async def test_devices_of_one_person_see_each_other_over_two_instances(
    store: Store, other_store: Store
) -> None:
    inbox = StreamRef(StreamKind.INBOX, ADA.key)
    async with (
        serve(store, QUICK) as rig,
        serve(other_store, QUICK) as elsewhere,
        device(rig, "phone") as phone,
        device(elsewhere, "desk") as desk,
        device(elsewhere, "quiet") as quiet,
        device(rig, "bobs", "bob-token") as bobs,
    ):
        before = await rig.store.log.read_head(inbox)
        await phone.say(state="active", focus=["task:task_1"])
        await phone.sees(phone="active")
        await desk.say(state="idle")
        await bobs.say(state="active")
        await desk.sees(phone="active", desk="idle")
        await phone.sees(phone="active", desk="idle")
        await bobs.sees(bobs="active")
        assert phone.shown is not None
        assert {"device": "phone", "state": "active", "focus": ["task:task_1"]} in phone.shown
        assert (phone.rooms, desk.rooms) == ({f"inbox:{ADA.key}"}, {f"inbox:{ADA.key}"})
        assert quiet.shown is None  # it has not announced itself
        present = await rig.store.presences.list_present(ADA.key)
        assert {one.presence.device for one in present} == {"phone", "desk"}
        assert await rig.store.log.read_head(inbox) == before
        assert rig.control.asked == []


async def test_device_that_leaves_is_removed_at_once_for_the_others(
    store: Store, other_store: Store
) -> None:
    async with (
        serve(store, QUICK) as rig,
        serve(other_store, QUICK) as elsewhere,
        device(rig, "phone") as phone,
    ):
        async with device(elsewhere, "desk") as desk:
            await desk.say(state="active")
            await phone.say(state="away")
            await phone.sees(phone="away", desk="active")
        await phone.sees(phone="away")


async def test_expired_presence_is_removed_without_a_notification(store: Store) -> None:
    short = RedisPresences(store.nodes, 300)
    async with serve(store, QUICK) as rig, device(rig, "phone") as phone:
        frozen = Presence(mint("ch", shard_of(ADA.key)), "frozen", None, "active")
        await short.announce(ADA.key, 1, frozen)
        await phone.say(state="idle")
        await phone.sees(phone="idle", frozen="active")
        await phone.sees(phone="idle")


async def test_presence_of_a_newer_version_does_not_hide_the_others(store: Store) -> None:
    async with serve(store, QUICK) as rig, device(rig, "phone") as phone:
        await phone.say(state="active")
        await phone.sees(phone="active")
        shard, unknown = shard_of(ADA.key), mint("ch", shard_of(ADA.key))
        # A later gateway, during a rolling upgrade, has a state that this version does not know.
        word = orjson.dumps(
            {"channelId": unknown, "device": "desk", "tab": None, "state": "presenting"}
        )
        row = b"9999999999999|1|" + word
        await store.nodes.write(shard, pack("HSET", keys.presence(shard, ADA.key), unknown, row))
        await phone.say(state="idle")
        await phone.sees(phone="idle")
        await phone.say(state="away")
        await phone.sees(phone="away")


async def test_heartbeat_announces_again_after_the_store_was_flushed(store: Store) -> None:
    async with serve(store, QUICK) as rig, device(rig, "phone") as phone:
        await phone.say(state="active")
        await phone.sees(phone="active")
        [present] = await rig.store.presences.list_present(ADA.key)
        channel = present.presence.channel_id
        newest = await rig.store.channels.read_generation(channel)
        await rig.store.presences.withdraw(ADA.key, channel, newest)
        await phone.sees()
        await phone.beat()
        await phone.sees(phone="active")


async def test_rapid_announcements_are_merged(store: Store) -> None:
    async with serve(store) as rig, device(rig, "phone") as phone:
        for number in range(20):
            await phone.say(state="idle" if number % 2 else "active")
        await phone.say(state="away")
        await phone.sees(phone="away")
        assert phone.times <= 2


async def test_client_announces_again_on_each_link(store: Store) -> None:
    shown: list[tuple[JsonObject, ...]] = []
    async with serve(store, QUICK) as rig, fault_proxy(f"127.0.0.1:{rig.port}") as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/channel"
        async with rig.client("phone", url=url, on_presence=shown.append) as client:
            client.say_presence("active", ["inbox"])
            await wait_until(lambda: shown, 15, "is shown itself")
            assert shown == [({"device": "phone", "state": "active", "focus": ["inbox"]},)]
            proxy.cut()
            await wait_until(lambda: len(shown) > 1, 15, "is shown itself over the next link")
            assert shown[-1] == shown[0]
