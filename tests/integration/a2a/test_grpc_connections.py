"""Idle gRPC connections: closed after the same time as over HTTP, and limited in number."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
import pytest
from a2a.types import a2a_pb2 as a2a

from passerelle.gateway.connections import ConnectionTable
from passerelle.gateway.grpc import server
from passerelle.gateway.grpc.connections import GrpcConnections
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.proxies import Proxies
from passerelle.gateway.request_bounds import HEAD_S
from passerelle.gateway.server import KEEP_ALIVE_S
from tests.integration.a2a.test_grpc import Wire

if TYPE_CHECKING:
    from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio
LOOPBACK: Final = "127.0.0.1"
WITHIN_S: Final = 10.0
APART: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Each channel has its own connection."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"


async def start(
    rig: Rig, connections: int | None = None, kept: GrpcConnections | None = None
) -> server.GrpcServer:
    face = GrpcFace(rig.face.operations, rig.face.parts, None, kept or GrpcConnections())
    return await server.start_grpc(face, LOOPBACK, 0, connections=connections)


async def open_silent(
    stack: AsyncExitStack, port: int, begun: bytes = b"", address: str = LOOPBACK
) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, local_addr=(address, 0))
    stack.callback(writer.close)
    writer.write(begun)
    return reader


async def read_end(reader: asyncio.StreamReader) -> None:
    """Reads until the server closes."""
    async with asyncio.timeout(WITHIN_S):
        while await reader.read(65_536):
            pass


def test_timeouts_equal_those_of_http() -> None:
    assert (server.HANDSHAKE_MS, server.IDLE_MS) == (HEAD_S * 1_000, KEEP_ALIVE_S * 1_000)


@pytest.mark.parametrize("begun", [b"", PREFACE[:9], PREFACE])
async def test_stalled_handshake_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_MS", 300)
    made = await start(rig)
    async with AsyncExitStack() as stack:
        await read_end(await open_silent(stack, made.port, begun))
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel:
            wire = Wire(rig, channel)
            assert (await wire.call("SendMessage", wire.ask("hello")))["task"]
    await made.stop()


async def test_connection_without_a_call_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_MS", 300)
    made = await start(rig)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel:
        wire = Wire(rig, channel)
        assert (await wire.call("SendMessage", wire.ask("hello")))["task"]
        # The channel leaves READY when the server sends GOAWAY, and reconnects for the next call.
        async with asyncio.timeout(WITHIN_S):
            while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
        assert (await wire.call("SendMessage", wire.ask("again")))["task"]
    await made.stop()


async def test_newest_connection_over_the_limit_is_closed(rig: Rig) -> None:
    made = await start(rig, connections=3)
    async with (
        AsyncExitStack() as stack,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel,
    ):
        wire = Wire(rig, channel)
        assert (await wire.call("SendMessage", wire.ask("hello")))["task"]
        for _ in range(2):
            await open_silent(stack, made.port)
        for _ in range(20):
            await read_end(await open_silent(stack, made.port))
        assert (await wire.call("SendMessage", wire.ask("again")))["task"]
    await made.stop()


async def test_metadata_is_read_like_headers(rig: Rig) -> None:
    """Repeated list entries are joined; a single-valued entry may occur once."""
    made = await start(rig)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel:
        wire = Wire(rig, channel)
        send = channel.unary_unary(
            "/lf.a2a.v1.A2AService/SendMessage",
            request_serializer=a2a.SendMessageRequest.SerializeToString,
            response_deserializer=a2a.SendMessageResponse.FromString,
        )
        lines = (("a2a-extensions", "urn:a"), ("a2a-extensions", "urn:b"))
        assert (await send(wire.ask("hello"), metadata=(*wire.metadata(), *lines))).task.id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(
                wire.ask("hello"), metadata=(*wire.metadata(), ("authorization", "Bearer x"))
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "authorization" in str(refused.value.details())
    await made.stop()


def exempt_none(_proxies: Proxies, _address: str) -> bool:
    """Not even this machine."""
    return False


async def is_over(reader: asyncio.StreamReader) -> bool:
    """Whether the server has closed or closes within 0.3 s."""
    try:
        await asyncio.wait_for(read_end(reader), 0.3)
    except TimeoutError:
        return False
    return True


async def test_unauthenticated_connections_over_the_address_limit_are_closed_and_callers_stay(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxies, "is_exempt", exempt_none)
    kept = GrpcConnections(ConnectionTable(), 3)
    made = await start(rig, kept=kept)
    async with (
        AsyncExitStack() as stack,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}", APART) as idle,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}", APART) as busy,
    ):
        idler, caller = Wire(rig, idle), Wire(rig, busy)
        asked = (await idler.call("SendMessage", idler.ask("ask which?")))["task"]
        reading = caller.stream(
            "SubscribeToTask", a2a.SubscribeToTaskRequest(tenant="echo", id=asked["id"])
        )
        assert "INPUT_REQUIRED" in str(await asyncio.wait_for(reading.read(), WITHIN_S))
        first = [await open_silent(stack, made.port, PREFACE + SETTINGS) for _ in range(6)]
        elsewhere = [
            await open_silent(stack, made.port, PREFACE + SETTINGS, "127.0.0.2") for _ in range(3)
        ]
        for reader in (*first, *elsewhere):
            await reader.readexactly(9)  # the server's SETTINGS frame
        await kept.look(made.port)
        ended = [await is_over(reader) for reader in first]
        assert ended.count(False) == 1
        assert not any([await is_over(reader) for reader in elsewhere])
        newest = await open_silent(stack, made.port, PREFACE + SETTINGS)
        await newest.readexactly(9)
        await kept.look(made.port)
        assert all([await is_over(reader) for reader in first])
        assert not await is_over(newest), "the oldest stranger goes first"
        assert idle.get_state() is grpc.ChannelConnectivity.READY
        await idler.call("CancelTask", a2a.CancelTaskRequest(tenant="echo", id=asked["id"]))
        assert "CANCELED" in str(await asyncio.wait_for(reading.read(), WITHIN_S))
    await made.stop()


async def test_connection_with_a_call_stays_and_an_idle_one_is_closed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxies, "is_exempt", exempt_none)
    kept = GrpcConnections(ConnectionTable(), 1)
    made = await start(rig, kept=kept)
    async with (
        AsyncExitStack() as stack,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}", APART) as idle,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}", APART) as busy,
    ):
        idler, caller = Wire(rig, idle), Wire(rig, busy)
        asked = (await idler.call("SendMessage", idler.ask("ask which?")))["task"]
        request = a2a.SubscribeToTaskRequest(tenant="echo", id=asked["id"])
        reading = caller.stream("SubscribeToTask", request)
        await asyncio.wait_for(reading.read(), WITHIN_S)
        stack.callback(asyncio.create_task(kept.watch(made.port)).cancel)
        async with asyncio.timeout(WITHIN_S):
            while (state := idle.get_state()) is grpc.ChannelConnectivity.READY:
                await idle.wait_for_state_change(state)
        # The channel reconnects for the next call, in time for the stream to continue.
        await idler.call("CancelTask", a2a.CancelTaskRequest(tenant="echo", id=asked["id"]))
        assert "CANCELED" in str(await asyncio.wait_for(reading.read(), WITHIN_S))
    await made.stop()


async def test_calls_through_a_proxy_count_for_its_clients(rig: Rig) -> None:
    proxies = Proxies([ip_network("127.0.0.0/8")], "X-Forwarded-For")
    made = await start(rig, kept=GrpcConnections(ConnectionTable(10, 1, proxies)))
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel:
        wire = Wire(rig, channel)
        asked = (await wire.call("SendMessage", wire.ask("ask which?")))["task"]
        request = a2a.SubscribeToTaskRequest(tenant="echo", id=asked["id"])
        mine, other = "203.0.113.1, 192.0.2.1", "192.0.2.1, 192.0.2.2"
        reading = wire.stream("SubscribeToTask", request, x_forwarded_for=mine)
        await asyncio.wait_for(reading.read(), WITHIN_S)
        get = a2a.GetTaskRequest(tenant="echo", id=asked["id"])
        status, _ = await wire.refuse("GetTask", get, x_forwarded_for=mine)
        assert status == "RESOURCE_EXHAUSTED"
        assert await wire.call("GetTask", get, x_forwarded_for=other)
        await wire.call("CancelTask", a2a.CancelTaskRequest(tenant="echo", id=asked["id"]))
        while await asyncio.wait_for(reading.read(), WITHIN_S) is not grpc.aio.EOF:
            continue
        assert await wire.call("GetTask", get, x_forwarded_for=mine)
    await made.stop()
