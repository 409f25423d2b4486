"""Peers over gRPC: cases that the suite for all transports does not cover."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
import pytest
from a2a.types import (
    GetTaskRequest,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)

from passerelle.core.peer import (
    Answered,
    Malformed,
    Peer,
    RefusedByPeer,
    StreamOutcome,
    Unknown,
    Unreached,
)
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.trace import read_trace
from passerelle.peers.config import PeerConfig, Tls
from passerelle.peers.credential import Bearer
from passerelle.runtime.common.breaker import FAILURES
from passerelle.runtime.common.carried import TRACE
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import MemoryRoom
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import read_all, say, task_of
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tls import CertificateAuthority
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass
class Dialled(a2a_pb2_grpc.A2AServiceServicer):
    """Records the metadata of calls; a stream sends one frame, then nothing until it is released."""

    metadata: list[dict[str, str | bytes]] = field(default_factory=list["dict[str, str | bytes]"])
    silence: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""
    """The operation that raises, if any."""
    size: int = 0
    """Length of the text."""

    async def SendMessage(  # noqa: N802  generated code has this name
        self, request: SendMessageRequest, context: Context
    ) -> SendMessageResponse:
        self.metadata.append(dict(context.invocation_metadata() or ()))
        await asyncio.sleep(0)
        if self.fault:
            raise RuntimeError(self.fault)
        return SendMessageResponse(task=_make(request, self.size))

    async def SendStreamingMessage(  # noqa: N802  generated code has this name
        self, request: SendMessageRequest, context: Context
    ) -> AsyncGenerator[StreamResponse, None]:
        del context
        yield StreamResponse(task=_make(request, self.size))
        if self.fault:
            raise RuntimeError(self.fault)
        await self.silence.wait()

    async def GetTask(  # noqa: N802  generated code has this name
        self, request: GetTaskRequest, context: Context
    ) -> Task:
        del request, context
        await asyncio.sleep(0)
        raise RuntimeError(self.fault)


def _make(request: SendMessageRequest, size: int = 0) -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    if size:
        status.message.parts.add(text="x" * size)
    return Task(id="t", context_id=request.message.context_id or "c", status=status)


@asynccontextmanager
async def serve(
    dialled: Dialled, credentials: grpc.ServerCredentials | None = None
) -> AsyncGenerator[tuple[grpc.aio.Server, int]]:
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(dialled, server)  # type: ignore[no-untyped-call]
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    try:
        yield server, port
    finally:
        dialled.silence.set()
        await server.stop(0)


@asynccontextmanager
async def serve_without_status(http_status: bytes) -> AsyncGenerator[int]:
    """A bare HTTP/2 server (RFC 9113) that ends every request with ``http_status``, without a gRPC status."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
            writer.write(_frame(_SETTINGS, 0, 0))
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
                if kind == _SETTINGS and not flags & _ACK:
                    writer.write(_frame(_SETTINGS, _ACK, 0))
                if stream and kind in {_DATA, _HEADERS} and flags & _END_STREAM:
                    fields = b"\x08\x03" + http_status + b"\x0f\x10\x10application/grpc"
                    writer.write(_frame(_HEADERS, _END_HEADERS, stream, fields))
                    trailer = b"\x00\x01a\x01b"
                    writer.write(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, trailer))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    answering: list[asyncio.Task[None]] = []
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*answering)


_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def connect(scripted: ScriptedPeer, clients: Clients, origin: str, **more: object) -> Peer:
    interface: JsonObject = {
        "url": origin.partition("://")[2],
        "protocolBinding": "GRPC",
        "protocolVersion": "1.0",
        "tenant": "blue",
    }
    scripted.card = {**scripted.card, "supportedInterfaces": [interface]}
    config = PeerConfig("dialled", scripted.url, allowed_origins=frozenset({origin}), **more)  # type: ignore[arg-type]
    return clients.connect(config)


async def test_credential_version_and_trace_travel_as_metadata(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    dialled = Dialled()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with serve(dialled) as (_, port):
        auth = Bearer(Secret("t0p"))
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}", auth=auth)
        token = TRACE.set(read_trace(trace, "vendor=1"))
        task = task_of(await peer.send(say("hello", contextId="ours")))
        TRACE.reset(token)
        await clients.close()
    assert task["contextId"] == "ours"
    (metadata,) = dialled.metadata
    assert metadata["authorization"] == "Bearer t0p"
    assert metadata["a2a-version"] == "1.0"
    assert metadata["traceparent"] == trace
    assert metadata["tracestate"] == "vendor=1"


async def test_missing_listener_is_unreached_without_a_wait(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    peer = connect(scripted, clients, origin)
    async with asyncio.timeout(10):
        assert isinstance(await peer.send(say("hello")), Unreached)
        assert isinstance((await read_all(peer.stream(say("hello"))))[-1], Unreached)


async def test_server_that_dies_in_the_middle_of_a_stream_leaves_it_unknown(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with serve(Dialled()) as (server, port):
        stream = connect(scripted, clients, f"http://127.0.0.1:{port}").stream(say("hello"))
        assert isinstance(await anext(stream), Answered)
        await server.stop(0)
        assert isinstance((await read_all(stream))[-1], Unknown)
        await clients.close()


@pytest.mark.parametrize("operation", ["send", "stream"])
async def test_executor_that_raises_has_received_and_refused_the_message(
    scripted: ScriptedPeer, clients: Clients, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A traceback that is kept would keep the server alive.
    caplog.set_level(logging.CRITICAL, "grpc._cython.cygrpc")
    async with serve(Dialled(fault="the tool broke")) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
        said = say("hello")
        outcomes = [await peer.send(said)] if operation == "send" else []
        last = (outcomes or await read_all(peer.stream(said)))[-1]
        await clients.close()
    assert isinstance(last, RefusedByPeer)
    assert (last.code, last.http_status, last.is_bare) == (-32603, 500, False)
    assert "the tool broke" in last.message


async def test_an_agent_whose_program_raises_each_time_is_not_paused(
    scripted: ScriptedPeer, clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "grpc._cython.cygrpc")
    dialled = Dialled(fault="the tool broke")
    async with serve(dialled) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
        outcomes = [await peer.send(say("hello")) for _ in range(FAILURES * 2)]
        await clients.close()
    assert all(isinstance(one, RefusedByPeer) for one in outcomes)
    assert len(dialled.metadata) == FAILURES * 2


async def test_query_that_makes_an_executor_raise_may_be_repeated(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with serve(Dialled(fault="the tool broke")) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
        outcome = await peer.get("t")
        await clients.close()
    assert isinstance(outcome, Unknown)


@pytest.mark.parametrize("http_status", [b"200", b"408"])
async def test_end_without_a_status_of_the_agent_is_unknown(
    scripted: ScriptedPeer, clients: Clients, http_status: bytes
) -> None:
    """Intermediaries end requests like this; the gRPC library reports the same status as for an agent that raised."""
    async with serve_without_status(http_status) as port:
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
        assert await peer.send(say("hello")) == Unknown("gRPC UNKNOWN")
        await clients.close()


async def test_silent_stream_is_unknown_after_its_idle_time(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with serve(Dialled()) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}", idle_timeout_s=0.2)
        first, last = await read_all(peer.stream(say("hello")))
        assert isinstance(first, Answered)
        assert last == Unknown("no answer in time")
        await clients.close()


async def test_mutual_tls_sends_the_client_certificate(
    scripted: ScriptedPeer, clients: Clients, tmp_path: Path
) -> None:
    authority = CertificateAuthority(tmp_path)
    theirs, ours = authority.issue("localhost"), authority.issue("us")
    root = authority.root.read_bytes()
    credentials = grpc.ssl_server_credentials(
        [(theirs.key.read_bytes(), theirs.cert.read_bytes())], root, require_client_auth=True
    )
    async with serve(Dialled(), credentials) as (_, port):
        origin, ca = f"https://localhost:{port}", str(authority.root)
        shown = Tls(ca, str(ours.cert), str(ours.key))
        peer = connect(scripted, clients, origin, tls=shown)
        assert isinstance(await peer.send(say("hello")), Answered)
        plain = connect(scripted, clients, origin.replace("https", "http"))
        assert not isinstance(await plain.send(say("hello")), Answered)
        await clients.close()


@pytest.mark.parametrize("operation", ["send", "stream"])
async def test_large_message_uses_the_memory_budget_until_it_is_released(
    scripted: ScriptedPeer, clients: Clients, operation: str
) -> None:
    room = clients.memory = MemoryRoom(Budget(8 * MIB))
    async with serve(Dialled(size=MIB)) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
        others = [room.bind("body", f"caller:{name}") for name in ("ada", "bob")]
        for one in others:
            one.take(room.budget.share)

        async def receive() -> list[StreamOutcome]:
            if operation == "send":
                return [await peer.send(say("hello"))]
            async with aclosing(peer.stream(say("hello"))) as outcomes:
                return [await anext(outcomes)]

        receiving = asyncio.create_task(receive())
        await wait_until(lambda: room.waiting == 1, 10, "it waits for room")
        assert not receiving.done()
        others[0].give_back(room.budget.share)
        received = await receiving
        assert isinstance(received[0], Answered)
        assert 2 * MIB < room.held["answer"] < 3 * MIB
        received.clear()
        del receiving
        await wait_until(lambda: not room.held["answer"], 10, "it is given back")
        await clients.close()


@pytest.mark.parametrize("operation", ["send", "stream"])
async def test_bytes_that_are_no_message_are_malformed(
    scripted: ScriptedPeer, clients: Clients, operation: str
) -> None:
    async def babble(_request: bytes, context: Context) -> bytes:
        await context.send_initial_metadata(())
        return b"\xff\xff"

    async def babble_on(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        yield await babble(request, context)

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "SendMessage": grpc.unary_unary_rpc_method_handler(babble),
        "SendStreamingMessage": grpc.unary_stream_rpc_method_handler(babble_on),
    }
    name = "lf.a2a.v1.A2AService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peer = connect(scripted, clients, f"http://127.0.0.1:{port}")
    said = say("hello")
    last = await peer.send(said) if operation == "send" else (await read_all(peer.stream(said)))[-1]
    await clients.close()
    await server.stop(0)
    assert isinstance(last, Malformed)
    assert last.raw == b"\xff\xff"
