"""Chooses the HTTP protocol class: ours if it works on the installed uvicorn, else a simpler one.

Known heads, request bounds and one-write answers use uvicorn internals, which may change in any release. The package
limits uvicorn's version, but an installation may have another one. So before the first connection is accepted, this
module sends test requests through pairs of sockets, and skips a protocol class that does not answer them.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

import structlog
import uvicorn

from passerelle.gateway.a2a.heads import ServerExtensions, find_server_extensions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Any

    from starlette.types import Receive, Scope, Send

TRIAL_S: Final = 10.0
"""Limit for a trial that hangs; a working one takes milliseconds, and one that raises ends at once."""
_SHORT_S: Final = 0.02
"""Replaces the time limit of a head in the trial of that limit."""
_PROTOCOLS: Final = (
    ("passerelle.gateway.known_heads", "KnownHeads", ""),
    ("passerelle.gateway.request_bounds", "BoundedRequests", "known heads"),
)
"""Module, class, and what is lost if the entries before it do not work; the first that works is used."""
_SOCKETS: Final = "passerelle.gateway.request_bounds"
_PLAIN: Final = "known heads, limits of requests and sockets, and connection limits"
_HEAD: Final = b"POST /trial HTTP/1.1\r\nHost: trial\r\nContent-Length: 3\r\n\r\n"
_UPGRADE: Final = (
    b"GET /trial HTTP/1.1\r\nHost: trial\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_FRAME: Final = b"\x81\x02ok"
_LONG_HEAD: Final = b"GET / HTTP/1.1\r\nHost: trial\r\nX: %b\r\n\r\n" % (b"x" * 70_000)
_HALF_HEAD: Final = b"GET / HTTP/1.1\r\nHost:"


class TrialFailed(Exception):
    """A protocol class does not serve as it should; the message states why."""


async def settle_protocol(
    config: uvicorn.Config, members: Mapping[str, object], frame_bytes: int
) -> None:
    """Sets the best working protocol classes in ``config``, which must not be loaded yet.

    ``members`` are further members of the connection class; ``frame_bytes`` limits an A2A frame on a socket.
    """
    faults: list[str] = []
    for module, name, lost in _PROTOCOLS:
        try:
            found = cast("type[asyncio.Protocol]", getattr(import_module(module), name))
            sockets = import_module(_SOCKETS).make_socket_protocol(frame_bytes)
            await _try(found, sockets)
        except Exception as error:  # noqa: BLE001  whatever another version of a library does
            faults.append(f"{name}: {_explain(error)}")
            continue
        config.http = type("Connections", (found,), dict(members))
        config.ws = sockets
        if faults:
            _log_faults(faults, lost)
        return
    _log_faults(faults, _PLAIN)


def _explain(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return f"{type(error).__name__}: {error}"


def _log_faults(faults: list[str], lost: str) -> None:
    structlog.get_logger("passerelle").error(
        "server.plain",
        uvicorn=uvicorn.__version__,
        reason="; ".join(faults),
        lost=lost,
        advice="install the uvicorn that this version asks for",
    )


class _Application:
    """Echoes the request body, once in each of the ways that an application has."""

    def __init__(self) -> None:
        self.served = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": "ok"})
            await receive()
            return
        self.served += 1
        offer = find_server_extensions(scope)
        if self.served == 1 or offer is None:
            await self._serve(receive, send)
        else:
            # From here on the head is a known one.
            offer.kept.parsed = cast("Any", self)
            body = offer.take_body()
            if body is None:
                await self._serve(receive, send)
            elif not offer.write_at_once(200, b"", body):
                raise TrialFailed("a whole answer could not be written at once")

    def handle_sync(
        self,
        offer: ServerExtensions,
        body: bytes,
        _receive: Any,  # noqa: ANN401  as ``CachedHeadApp``
        _send: Any,  # noqa: ANN401  the same
    ) -> bool:
        """Answers every other request here, and leaves the rest to ``handle_async``."""
        self.served += 1
        return self.served % 2 == 0 and offer.write_at_once(200, b"", body)

    async def handle_async(
        self,
        _offer: ServerExtensions,
        _scope: Any,  # noqa: ANN401  as ``CachedHeadApp``
        receive: Any,  # noqa: ANN401  the same
        send: Any,  # noqa: ANN401  the same
    ) -> None:
        """Uses ASGI messages."""
        await self._serve(receive, send)

    @staticmethod
    async def _serve(receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += cast("bytes", message.get("body", b""))
            more = bool(message.get("more_body"))
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _try(protocol: type[asyncio.Protocol], sockets: type[asyncio.Protocol]) -> None:
    faults: list[Exception] = []
    tried = _watch(protocol, faults)
    # Short once a part of the head has arrived: a connection without any bytes is closed without an answer.
    head_s = property(lambda one: _SHORT_S if one._unread_bytes else TRIAL_S)  # noqa: SLF001
    short = type("Short", (tried,), {"head_s": head_s})
    watched = _watch(sockets, faults)
    try:
        async with asyncio.timeout(TRIAL_S), asyncio.TaskGroup() as trials:
            trials.create_task(_try_requests(tried, watched))
            trials.create_task(_try_sockets(tried, watched))
            trials.create_task(_try_refusal(tried, watched, _LONG_HEAD, b" 431 "))
            trials.create_task(_try_refusal(short, watched, _HALF_HEAD, b" 408 "))
    finally:
        # asyncio reports the end of an aborted connection in the next loop iteration.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if faults:
            raise faults[0]


def _watch(protocol: type[asyncio.Protocol], faults: list[Exception]) -> type[asyncio.Protocol]:
    """The same class, but exceptions that the loop would log are collected, and end the connection."""

    def guard(name: str) -> Callable[..., object]:
        real = cast("Callable[..., object]", getattr(protocol, name))

        def call(connection: Any, *arguments: Any) -> object:  # noqa: ANN401  of any version
            try:
                return real(connection, *arguments)
            except Exception as error:  # noqa: BLE001  whatever another version of a library does
                faults.append(error)
                transport = arguments[0] if name == "connection_made" else connection.transport
                transport.abort()
                return None

        return call

    calls = ("connection_made", "data_received", "connection_lost", "eof_received")
    return type("Tried", (protocol,), {name: guard(name) for name in calls})


async def _try_requests(protocol: type[asyncio.Protocol], sockets: type[asyncio.Protocol]) -> None:
    async with _connect(protocol, sockets) as (reader, writer):
        for piece in (b"one", b"two", b"six", b"ten"):
            writer.write(_HEAD + piece)
            await _expect(reader, piece)
        writer.write(_HEAD + b"one" + _HEAD + b"two")
        await _expect(reader, b"one")
        await _expect(reader, b"two")
        writer.write(_HEAD + b"t")
        await asyncio.sleep(0)
        writer.write(b"en")
        await _expect(reader, b"ten")


async def _expect(reader: asyncio.StreamReader, body: bytes) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or b"content-length: 3\r\n" not in head.lower():
        raise TrialFailed(f"a request was answered with {head[:40]!r}")
    if (found := await reader.readexactly(3)) != body:
        raise TrialFailed(f"a request was answered with the body {found!r}")


async def _try_sockets(protocol: type[asyncio.Protocol], sockets: type[asyncio.Protocol]) -> None:
    async with _connect(protocol, sockets) as (reader, writer):
        writer.write(_UPGRADE)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head or await reader.readexactly(len(_FRAME)) != _FRAME:
            raise TrialFailed("a WebSocket was not opened")


async def _try_refusal(
    protocol: type[asyncio.Protocol],
    sockets: type[asyncio.Protocol],
    request: bytes,
    status: bytes,
) -> None:
    async with _connect(protocol, sockets) as (reader, writer):
        writer.write(request)
        if status not in await reader.readuntil(b"\r\n"):
            raise TrialFailed(f"a head out of bounds was not refused with{status.decode()}")


@asynccontextmanager
async def _connect(
    protocol: type[asyncio.Protocol],
    sockets: type[asyncio.Protocol],
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to this process itself; ``protocol`` serves the other end."""
    config = uvicorn.Config(
        _Application(),
        interface="asgi3",
        http=protocol,
        ws=sockets,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        ws_ping_interval=None,
    )
    config.load()
    state, loop = uvicorn.Server(config).server_state, asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def make() -> asyncio.Protocol:
        return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

    async with AsyncExitStack() as stack:
        stack.callback(ours.close)
        transport, _ = await loop.connect_accepted_socket(make, theirs)
        stack.callback(transport.abort)
        reader, writer = await asyncio.open_connection(sock=ours)
        stack.callback(writer.transport.abort)
        yield reader, writer
