"""Channel clients in a separate process, so that their CPU time is measured separately.

Reads one order per line from standard input, answers each with one line, and exits at the end of its input. Every
client checks that it gets each event of each of its streams once, in order, without a gap. A violation ends the order
with an error: a server that loses or duplicates events has not been measured. All times are from the machine's clock.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, assert_never

import orjson
import uvloop
from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,  # pyright: ignore[reportUnknownVariableType] - its further arguments have no types
)

ServerKind = Literal["passerelle", "nchan", "socketio"]
MARK: Final = re.compile(rb"#([0-9]+) ([0-9]+) ([0-9]+)#")
"""Fields of every published event: stream, number within it, publication time in ns."""
WITHIN_S: Final = 60.0
BEAT_S: Final = 10.0
SETTLES_S: Final = 0.5
"""Nchan accepts a socket before it has subscribed in Redis; events published in between are not delivered."""
_AT_ONCE: Final = 64
_EVENT: Final = b'{"t":"ev"'
_NAMED: Final = 50
"""Bytes of an event that identify its stream."""
_LAST_PLACE: Final = re.compile(rb'"s":"([^"]+)","o":([0-9]+),"p":[0-9]+,"h":"([0-9a-f]{8})"')
_CURSOR: Final = re.compile(rb'"t":"(?:sub|live)",(?:"ok":true,)?"s":"([^"]+)"[^\n]*?"c":"([^"]+)"')
_LAST_ID: Final = re.compile(rb"^id: ?([0-9:,\[\]-]+)", re.MULTILINE)
_OFFSET: Final = re.compile(rb',"([0-9]+-[0-9]+)"\]$')


@dataclass(frozen=True, slots=True)
class ChannelOrder:
    """An order for a group of clients, which is addressed by name.

    ``open`` connects clients, each to the next ``each`` of ``streams``. ``await`` waits until all have received
    ``events`` on each stream since the group was opened, and returns the delays since the last report. ``drop`` cuts
    all connections. ``resume`` reconnects the clients from their positions, and waits as ``await`` does.
    """

    kind: Literal["open", "await", "drop", "resume", "close"]
    group: str
    wire: ServerKind = "passerelle"
    url: str = ""
    token: str = ""
    streams: list[str] = field(default_factory=list[str])
    each: int = 1
    clients: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class ChannelResult:
    """``seconds`` that an order took, the event delays, and the number of deliveries since the last report."""

    seconds: float = 0.0
    deliveries: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    error: str | None = None


class DeliveryError(Exception):
    """An event was lost, duplicated or out of order, or a server did not behave as expected."""


class LoadClient(WSListener):
    """One client and its position in each stream; it survives reconnects."""

    def __init__(self, group: ClientGroup, number: int, streams: Sequence[str], first: int) -> None:
        self.group = group
        self.number = number
        self.streams = streams
        self.reached = dict.fromkeys(range(first, first + len(streams)), 0)
        self.cursors: dict[str, str] = {}
        self.session = ""
        self.latest: dict[bytes, bytes] = {}
        self.waits_for = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.transport: WSTransport | None = None

    async def connect(self) -> None:
        """Opens a socket, and returns when every stream is followed."""
        self.ready = asyncio.get_running_loop().create_future()
        url, headers = _address(self)
        async with asyncio.timeout(WITHIN_S):
            await ws_connect(
                lambda: self,
                url,
                extra_headers=headers,
                websocket_handshake_timeout=WITHIN_S,
                read_buffer_init_size=4_096,
            )
            await self.ready

    def send(self, message: bytes) -> None:
        """Sends a text message."""
        if self.transport is not None:
            self.transport.send(WSMsgType.TEXT, message)

    def drop(self) -> None:
        """Aborts the socket without a close handshake."""
        if self.transport is not None:
            self.transport.disconnect(graceful=False)
            self.transport = None

    def be_ready(self) -> None:
        """Records that every stream is followed."""
        if not self.ready.done():
            self.ready.set_result(None)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        _greet(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            data = frame.get_payload_as_bytes()
            self.take_events(data)
            _take(self, data)
        elif frame.msg_type == WSMsgType.CLOSE:
            self.group.fail(f"closed with {frame.get_close_code()} {frame.get_close_reason()}")
            transport.disconnect()

    def take_events(self, data: bytes) -> None:
        """Checks the events in a message and records their delays."""
        now = time.monotonic_ns()
        group, reached = self.group, self.reached
        for stream, number, sent in MARK.findall(data):
            place, count = int(stream), int(number)
            if count != reached[place] + 1:
                group.fail(f"client {self.number}: {count} came after {reached[place]}")
            reached[place] = count
            group.delays.append(now - int(sent))
            if count == group.wanted:
                group.note_whole(1)


class ClientGroup:
    """Clients of one server."""

    def __init__(self, order: ChannelOrder) -> None:
        self.name = order.group
        self.wire: ServerKind = order.wire
        self.url = order.url
        self.token = order.token
        self.delays: list[int] = []
        self.wanted = 0
        self.missing = 0
        self.whole = asyncio.Event()
        self.error: str | None = None
        count = len(order.streams)
        self.clients = [
            LoadClient(self, number, order.streams[first : first + order.each], first)
            for number in range(order.clients)
            for first in [number * order.each % count]
        ]

    def fail(self, reason: str) -> None:
        """Keeps the first fault, and wakes up the waiting order."""
        self.error = self.error or reason
        self.whole.set()

    def note_whole(self, streams: int) -> None:
        """Counts client streams that are complete."""
        self.missing -= streams
        if self.missing <= 0:
            self.whole.set()

    async def connect(self) -> None:
        """Connects every client, with bounded concurrency."""
        waiting = iter(self.clients)

        async def work() -> None:
            for client in waiting:
                await client.connect()

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())

    def want(self, events: int) -> None:
        """Sets the target: clients are complete when each of their streams has ``events`` events."""
        self.wanted = events
        self.whole.clear()
        reached = [count for client in self.clients for count in client.reached.values()]
        self.missing = sum(1 for count in reached if count < events)
        if self.missing == 0 or self.error is not None:
            self.whole.set()

    async def await_whole(self) -> ChannelResult:
        """Waits until all clients are complete.

        Raises:
            DeliveryError: an event was lost, duplicated or too late.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(WITHIN_S):
                await self.whole.wait()
        except TimeoutError:
            raise DeliveryError(f"{self.missing} streams did not get everything") from None
        if self.error is not None:
            raise DeliveryError(self.error)
        delays, self.delays = sorted(self.delays), []
        if not delays:
            return ChannelResult(time.monotonic() - started)
        return ChannelResult(
            time.monotonic() - started,
            len(delays),
            delays[len(delays) // 2] / 1e6,
            delays[len(delays) * 99 // 100] / 1e6,
        )

    async def resume(self, events: int) -> ChannelResult:
        """Reconnects all clients at once and waits for the events that they missed."""
        self.want(events)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.connect())
        outcome = await self.await_whole()
        return ChannelResult(time.monotonic() - started, outcome.deliveries)

    def drop(self) -> None:
        """Cuts all connections."""
        for client in self.clients:
            client.drop()

    def beat(self) -> None:
        """Sends heartbeats of all clients, where the protocol requires them."""
        if self.wire == "passerelle":
            for client in self.clients:
                client.send(b'{"t":"hb","n":1}')


def _address(client: LoadClient) -> tuple[str, dict[str, str]]:
    url = client.group.url
    match client.group.wire:
        case "passerelle":
            return url, {"Sec-WebSocket-Protocol": "passerelle.v1+json"}
        case "nchan":
            last = _LAST_ID.search(client.latest.get(b"", b""))
            query = f"&last_event_id={last[1].decode()}" if last else ""
            headers = {"Sec-WebSocket-Protocol": "ws+meta.nchan"}
            return f"{url}?id={client.streams[0]}{query}", headers
        case "socketio":
            return f"{url}?EIO=4&transport=websocket", {}
        case _:
            assert_never(client.group.wire)


def _greet(client: LoadClient) -> None:
    match client.group.wire:
        case "passerelle":
            _note_latest(client)
            client.waits_for = len(client.streams)
            subs = [
                {"s": name, "c": client.cursors[name]}
                if name in client.cursors
                else {"s": name, "from": "live"}
                for name in client.streams
            ]
            hello = {
                "t": "hello",
                "v": 1,
                "token": client.group.token,
                "device": f"{client.group.name}-{client.number}",
                "role": "device",
                "sdk": "bench",
                "caps": [],
                "subs": subs,
            }
            client.send(orjson.dumps(hello))
        case "nchan":
            client.be_ready()
        case "socketio":
            pass  # the server sends first
        case _:
            assert_never(client.group.wire)


def _take(client: LoadClient, data: bytes) -> None:
    match client.group.wire:
        case "passerelle":
            _take_passerelle(client, data)
        case "nchan":
            client.latest[b""] = data  # parsed only when needed, as for the gateway
        case "socketio":
            _take_socketio(client, data)
        case _:
            assert_never(client.group.wire)


def _take_passerelle(client: LoadClient, data: bytes) -> None:
    for frame in data.split(b"\n"):
        if frame.startswith(_EVENT):
            # Parsed only when needed, so that a delivery costs the clients of all servers the same.
            client.latest[frame[:_NAMED]] = frame
        else:
            _take_other(client, frame)


def _take_other(client: LoadClient, frame: bytes) -> None:
    _note_latest(client)
    _note_cursors(client, frame)
    if frame.startswith((b'{"t":"error"', b'{"t":"gap"')):
        client.group.fail(frame[:300].decode(errors="replace"))
    if client.waits_for and frame.startswith(b'{"t":"live"'):
        client.waits_for -= 1
        if client.waits_for == 0:
            client.be_ready()


def _note_latest(client: LoadClient) -> None:
    """Before newer positions are recorded: the position would move backwards."""
    for data in client.latest.values():
        _note_cursors(client, data)
    client.latest.clear()


def _note_cursors(client: LoadClient, data: bytes) -> None:
    for name, cursor in _CURSOR.findall(data):
        client.cursors[name.decode()] = cursor.decode()
    for name, sequence, chain in _LAST_PLACE.findall(data):
        epoch = client.cursors[name.decode()][:8]
        client.cursors[name.decode()] = f"{epoch}.{sequence.decode()}.{chain.decode()}"


def _take_socketio(client: LoadClient, data: bytes) -> None:
    if data == b"2":
        client.send(b"3")
    elif data.startswith(b"0"):
        last = _OFFSET.search(client.latest.get(b"", b""))
        back = {"pid": client.session, "offset": last[1].decode() if last else None}
        client.send(b"40" + (orjson.dumps(back) if client.session else b""))
    elif data.startswith(b"40"):
        client.session = orjson.loads(data[2:])["pid"]
        client.be_ready()
    elif data.startswith(b"42"):
        client.latest[b""] = data  # as with Nchan


async def _obey(order: ChannelOrder, groups: dict[str, ClientGroup]) -> ChannelResult:
    started = time.monotonic()
    match order.kind:
        case "open":
            group = groups[order.group] = ClientGroup(order)
            await group.connect()
            took = time.monotonic() - started
            if order.wire == "nchan":
                await asyncio.sleep(SETTLES_S)
            return ChannelResult(took)
        case "await":
            groups[order.group].want(order.events)
            return await groups[order.group].await_whole()
        case "drop":
            groups[order.group].drop()
        case "resume":
            return await groups[order.group].resume(order.events)
        case "close":
            groups.pop(order.group).drop()
        case _:
            assert_never(order.kind)
    return ChannelResult()


async def _beat(groups: dict[str, ClientGroup]) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        for group in tuple(groups.values()):
            group.beat()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    groups: dict[str, ClientGroup] = {}
    beating = asyncio.create_task(_beat(groups))
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        try:
            outcome = await _obey(ChannelOrder(**orjson.loads(line)), groups)
        except* Exception as group:  # noqa: BLE001  whatever went wrong is the answer
            first = group.exceptions[0]
            outcome = ChannelResult(error=f"{type(first).__name__}: {first}")
        sys.stdout.buffer.write(orjson.dumps(asdict(outcome)) + b"\n")
        sys.stdout.buffer.flush()
    beating.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
