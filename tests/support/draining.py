"""Devices of an instance that receives SIGTERM: some follow, others have stopped reading."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from passerelle.client.channel import ChannelClient
from passerelle.client.items import Connected, Event, Gap, GapChoice, Item
from passerelle.demo.processes import GatewayProcess
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask, run_server
from tests.support.processes import (
    AGENT,
    open_caller,
    run_gateway,
    share_owner,
    start_together,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

ENDS_WITHIN_S: Final = 10.0
BACK_WITHIN_S: Final = 15.0
_BEGINS_WITHIN_S: Final = 120.0
_TURNS: Final = 20
_TEXT: Final = 15_000
_SMALL: Final = 4_096


@dataclass(frozen=True, slots=True)
class Numbers:
    """Number of devices of each kind."""

    following: int
    lagging: int


class SessionFollower:
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


async def lag(port: int, token: str, name: str, stream: str) -> socket.socket:
    """A device that subscribes to everything and then reads nothing; closing it ends it."""
    loop = asyncio.get_running_loop()
    link = socket.socket()
    link.setblocking(False)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
    await loop.sock_connect(link, ("127.0.0.1", port))
    lines = (
        "GET /v1/channel HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
    )
    await loop.sock_sendall(link, "\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += await loop.sock_recv(link, 1)
    hello = orjson.dumps(
        {
            "t": "hello",
            "v": 1,
            "token": token,
            "device": name,
            "role": "device",
            "sdk": "test",
            "caps": [],
            "subs": [{"s": stream, "from": "start"}],
        }
    )
    await loop.sock_sendall(link, b"\x81\xfe" + len(hello).to_bytes(2) + bytes(4) + hello)
    return link


@asynccontextmanager
async def open_pair(
    folder: Path, devices: int, port: int | None = None
) -> AsyncGenerator[tuple[GatewayProcess, GatewayProcess, str]]:
    """Two gateways with one owner over one store, and its URL; the first also serves channels on ``port``."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        share_owner((folder / "first", folder / "second"))
        running = [
            run_gateway(
                folder / name,
                {AGENT: peer.url},
                redis_url=server.url,
                channels={"principal_connections": 4 * devices, **own},
            )
            for name, own in (("first", {"port": port} if port else {}), ("second", {}))
        ]
        first, second = await start_together(stack, running)
        yield first, second, server.url


async def play_drain(folder: Path, numbers: Numbers, port: int | None = None) -> None:
    """Sends SIGTERM to the first of two instances; raises AssertionError where a guarantee is broken.

    It exits within ten seconds even if devices lag, and within fifteen its followers have received everything from
    the second instance.
    """
    devices = numbers.following + numbers.lagging
    async with (
        open_pair(folder, devices, port) as (first, second, redis),
        fault_proxy(f"127.0.0.1:{port or first.port}") as address,
    ):
        drain = DrainRig(first, second, redis, address)
        await drain.play(numbers, port or first.port)


@dataclass
class DrainRig:
    """The two instances, their store, and the address that devices use."""

    first: GatewayProcess
    second: GatewayProcess
    redis: str
    address: FaultProxy
    session: str = ""

    async def play(self, numbers: Numbers, port: int) -> None:
        """All devices connect, the first instance ends, all reconnect to the second."""
        async with open_caller(self.second) as caller, AsyncExitStack() as stack:
            opened = await caller.send("echo begins")
            context = opened["contextId"]
            self.session = (await caller.read_record(opened["id"]))["sessionId"]
            stream = f"session:{self.session}"
            for _ in range(_TURNS if numbers.lagging else 0):
                await caller.send(f"echo {'x' * _TEXT}", contextId=context)
            followers = [self.make_follower(number) for number in range(numbers.following)]
            tasks = [asyncio.create_task(one.follow(stream)) for one in followers]
            for number in range(numbers.lagging):
                link = await lag(port, self.first.token, f"lagging{number}", stream)
                stack.callback(link.close)
            await wait_until(
                lambda: self.are_whole(followers),
                _BEGINS_WITHIN_S,
                "all follow",
            )
            assert all(len(one.connections) == 1 for one in followers), "a follower was cut before"

            self.address.upstream = f"127.0.0.1:{self.second.port}"
            began_s = time.monotonic()
            ending = asyncio.create_task(self.first.stop())
            for number in range(3):
                await caller.send(f"echo {number}", contextId=context)
            assert await ending == 0, "the first instance did not exit cleanly"
            took_s = time.monotonic() - began_s
            assert took_s < ENDS_WITHIN_S, f"the first instance took {took_s:.1f} s to end"
            await wait_until(
                lambda: self.are_whole(followers),
                BACK_WITHIN_S,
                "all are back and have everything",
            )
            took_s = time.monotonic() - began_s
            assert took_s < BACK_WITHIN_S, f"all were back after {took_s:.1f} s"
            stored = list(range(1, self.read_end() + 1))
            for one in followers:
                assert one.sequences == stored, "a follower lacks stored events"
                assert not one.gaps, "a follower saw a gap"
                assert len(one.connections) == 2, "a follower reconnected more than once"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def make_follower(self, number: int) -> SessionFollower:
        """A device that knows the address, but not the instance behind it."""
        url = f"ws://127.0.0.1:{self.address.port}/v1/channel"
        return SessionFollower(url, self.first.token, f"dev{number}")

    def read_end(self) -> int:
        """The sequence of the last stored event."""
        stored = ask(self.redis, "HGET", f"{{{self.session[3:5]}}}:s:{self.session}", "seq")
        assert isinstance(stored, bytes)
        return int(stored)

    def are_whole(self, followers: list[SessionFollower]) -> bool:
        """Whether all followers have received every stored event."""
        end = self.read_end()
        return all(one.sequences and one.sequences[-1] == end for one in followers)
