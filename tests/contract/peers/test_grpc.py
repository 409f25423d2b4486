"""Peers over gRPC: what the suite of all transports does not ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
from a2a.types import (
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)

from passerelle.core.json import JsonObject
from passerelle.core.peer import Answered, Peer, Unknown, Unreached
from passerelle.core.trace import read_trace
from passerelle.gateway.peers.carried import TRACE
from passerelle.gateway.peers.config import PeerConfig, Tls
from passerelle.gateway.peers.credential import Bearer
from passerelle.gateway.secret import Secret
from tests.contract.peers.conftest import Clients
from tests.contract.peers.test_peer_suite import read_all, say, task_of
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass
class Dialled(a2a_pb2_grpc.A2AServiceServicer):
    """Notes the metadata of calls; a stream gives one frame, and then nothing until it is let go."""

    metadata: list[dict[str, str | bytes]] = field(default_factory=list["dict[str, str | bytes]"])
    silence: asyncio.Event = field(default_factory=asyncio.Event)

    async def SendMessage(  # noqa: N802  generated code has this name
        self, request: SendMessageRequest, context: Context
    ) -> SendMessageResponse:
        self.metadata.append(dict(context.invocation_metadata() or ()))
        await asyncio.sleep(0)
        return SendMessageResponse(task=_make(request))

    async def SendStreamingMessage(  # noqa: N802  generated code has this name
        self, request: SendMessageRequest, context: Context
    ) -> AsyncGenerator[StreamResponse, None]:
        del context
        yield StreamResponse(task=_make(request))
        await self.silence.wait()


def _make(request: SendMessageRequest) -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
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


async def test_nobody_who_listens_is_unreached_without_a_wait(
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


async def test_silent_stream_is_unknown_after_its_idle_time(
    scripted: ScriptedPeer, clients: Clients
) -> None:
    async with serve(Dialled()) as (_, port):
        peer = connect(scripted, clients, f"http://127.0.0.1:{port}", idle_timeout_s=0.2)
        first, last = await read_all(peer.stream(say("hello")))
        assert isinstance(first, Answered)
        assert last == Unknown("no answer in time")
        await clients.close()


async def test_mutual_tls_shows_our_certificate(
    scripted: ScriptedPeer, clients: Clients, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
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
