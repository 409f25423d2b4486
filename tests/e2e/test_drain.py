"""An instance is told to end while many devices follow: all of them go on at the other one, with nothing lost."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from passerelle.channels.client import ChannelClient
from passerelle.channels.client_items import Connected, Event, Gap, GapChoice, Item
from passerelle.gateway.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask, run_server
from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

DEVICES: Final = 60
ENDS_WITHIN_S: Final = 10.0
BACK_WITHIN_S: Final = 15.0

pytestmark = pytest.mark.anyio


class Follower:
    """One device that follows a session from its first event."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self.client = ChannelClient(url, token=token, device=name, on_gap=self.take_gap)
        self.sequences: list[int] = []
        self.gaps: list[Gap] = []
        self.connections: set[str] = set()

    async def take_gap(self, gap: Gap) -> GapChoice:
        self.gaps.append(gap)
        return "snapshot"

    async def follow(self, stream: str) -> None:
        async with self.client:
            async for item in self.client.stream(stream, start="start"):
                await self.take(item)

    async def take(self, item: Item) -> None:
        if self.client.welcome is not None and isinstance(self.client.status, Connected):
            self.connections.add(self.client.welcome.connection)
        if isinstance(item, Event):
            self.sequences.append(item.sequence)
            await item.ack()


@pytest.mark.requirement("CHN-3", "CHN-9", "I3", "I8")
async def test_devices_of_an_instance_that_ends_go_on_at_the_other_with_nothing_lost(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        gateways: list[GatewayProcess] = []
        for name in ("first", "second"):
            (tmp_path / name / "data").mkdir(parents=True, mode=0o700)
            if gateways:  # one owner at both
                shutil.copy(gateways[0].data_dir / "owner-token", tmp_path / name / "data")
            running = run_gateway(
                tmp_path / name,
                {AGENT: peer.url},
                redis_url=server.url,
                channels={"principal_connections": 2 * DEVICES},
            )
            gateways.append(await stack.enter_async_context(running))
        first, second = gateways
        address = await stack.enter_async_context(fault_proxy(f"127.0.0.1:{first.port}"))
        await play(address, first, second, server.url)


async def play(
    address: FaultProxy, first: GatewayProcess, second: GatewayProcess, redis: str
) -> None:
    async with open_caller(second) as caller:
        opened = await caller.send("echo begins")
        session = (await caller.read_record(opened["id"]))["sessionId"]
        url = f"ws://127.0.0.1:{address.port}/v1/channel"
        followers = [Follower(url, first.token, f"dev{number}") for number in range(DEVICES)]
        tasks = [asyncio.create_task(one.follow(f"session:{session}")) for one in followers]
        await wait_until(lambda: all(one.sequences for one in followers), 30, "all follow")
        assert all(len(one.connections) == 1 for one in followers)

        address.upstream = f"127.0.0.1:{second.port}"
        began_s = time.monotonic()
        ending = asyncio.create_task(first.stop())
        for number in range(3):
            await caller.send(f"echo {number}", contextId=opened["contextId"])
        assert await ending == 0
        assert time.monotonic() - began_s < ENDS_WITHIN_S

        def read_end() -> int:
            name = f"{{{session[3:5]}}}:s:{session}"
            stored = ask(redis, "HGET", name, "seq")
            assert isinstance(stored, bytes)
            return int(stored)

        def is_whole(one: Follower) -> bool:
            return one.sequences[-1] == read_end()

        await wait_until(
            lambda: all(is_whole(one) for one in followers),
            BACK_WITHIN_S,
            "all are back and have everything",
        )
        assert time.monotonic() - began_s < BACK_WITHIN_S
        for one in followers:
            assert one.sequences == list(range(1, read_end() + 1))
            assert not one.gaps
            assert len(one.connections) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
