"""Connections over gRPC on which nothing is said: they end in the time that HTTP gives, and are no more than may be."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio
import pytest
from a2a.types import a2a_pb2 as a2a

from passerelle.gateway.grpc import server
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.request_bounds import HEAD_S
from passerelle.gateway.server import KEEP_ALIVE_S
from tests.integration.a2a.test_grpc import Wire

if TYPE_CHECKING:
    from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio
LOOPBACK: Final = "127.0.0.1"
WITHIN_S: Final = 10.0
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


async def start(rig: Rig, connections: int | None = None) -> server.GrpcServer:
    face = GrpcFace(rig.face.operations, rig.face.parts, default_agent=None)
    return await server.start_grpc(face, LOOPBACK, 0, connections=connections)


async def open_silent(stack: AsyncExitStack, port: int, begun: bytes = b"") -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    stack.callback(writer.close)
    writer.write(begun)
    return reader


async def read_end(reader: asyncio.StreamReader) -> None:
    """Reads until the other side has closed."""
    async with asyncio.timeout(WITHIN_S):
        while await reader.read(65_536):
            pass


def test_time_is_that_of_http() -> None:
    assert (server.HANDSHAKE_MS, server.IDLE_MS) == (HEAD_S * 1_000, KEEP_ALIVE_S * 1_000)


@pytest.mark.parametrize("begun", [b"", PREFACE[:9], PREFACE])
async def test_handshake_that_does_not_go_on_ends(
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


async def test_connection_without_a_call_ends_and_one_with_a_call_does_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_MS", 300)
    made = await start(rig)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{made.port}") as channel:
        wire = Wire(rig, channel)
        assert (await wire.call("SendMessage", wire.ask("hello")))["task"]
        # The library says when its connection has been told to go, and opens another one for the next call.
        async with asyncio.timeout(WITHIN_S):
            while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
        assert (await wire.call("SendMessage", wire.ask("again")))["task"]
    await made.stop()


async def test_newest_connection_is_closed_where_there_are_as_many_as_may_be(rig: Rig) -> None:
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


async def test_metadata_is_read_as_headers_are(rig: Rig) -> None:
    """Lines of a list are joined, and what has one value stands there once."""
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
