"""Which protocol serves requests: ours if it works on the uvicorn that is installed, else a plainer one.

Known heads, bounds and answers in one write stand on parts of uvicorn that it promises to nobody. The package bounds
its version; an installation may have another one all the same. So before the first connection is accepted, requests
are served to ourselves over pairs of sockets, and what does not serve them is not used.
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
"""For what hangs; what works takes some milliseconds, and what raises ends at once."""
_SHORT_S: Final = 0.02
"""In place of the time that a head may take, for the trial of that bound."""
_WAYS: Final = (
    ("passerelle.gateway.known_heads", "KnownHeads", ""),
    ("passerelle.gateway.request_bounds", "BoundedRequests", "known heads"),
)
"""Module, class and what is lost where the ones before it do not work; the first that works is taken."""
_SOCKETS: Final = "passerelle.gateway.request_bounds"
_PLAIN: Final = "known heads, the bounds of requests and sockets, and limits of connections"
_HEAD: Final = b"POST /trial HTTP/1.1\r\nHost: trial\r\nContent-Length: 3\r\n\r\n"
_UPGRADE: Final = (
    b"GET /trial HTTP/1.1\r\nHost: trial\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_FRAME: Final = b"\x81\x02ok"
_LONG_HEAD: Final = b"GET / HTTP/1.1\r\nHost: trial\r\nX: %b\r\n\r\n" % (b"x" * 70_000)
_HALF_HEAD: Final = b"GET / HTTP/1.1\r\nHost:"


class TrialFailed(Exception):
    """A protocol does not serve as it should; the message says what."""


async def settle_protocol(
    config: uvicorn.Config, members: Mapping[str, object], frame_bytes: int
) -> None:
    """Gives ``config``, which has not been loaded, the best protocols that work.

    ``members`` are what the class of a connection has besides; ``frame_bytes`` bounds a frame of A2A on a socket.
    """
    faults: list[str] = []
    for module, name, lost in _WAYS:
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
            _say(faults, lost)
        return
    _say(faults, _PLAIN)


def _explain(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return f"{type(error).__name__}: {error}"


def _say(faults: list[str], lost: str) -> None:
    structlog.get_logger("passerelle").error(
        "server.plain",
        uvicorn=uvicorn.__version__,
        reason="; ".join(faults),
        lost=lost,
        advice="install the uvicorn that this version asks for",
    )


class _Application:
    """Answers with the body that it gets, once in each of the ways that an application has."""

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
            # From here on the head is one that is known.
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
        """Every other request is served in place of this."""
        self.served += 1
        return self.served % 2 == 0 and offer.write_at_once(200, b"", body)

    async def handle_async(
        self,
        _offer: ServerExtensions,
        _scope: Any,  # noqa: ANN401  as ``CachedHeadApp``
        receive: Any,  # noqa: ANN401  the same
        send: Any,  # noqa: ANN401  the same
    ) -> None:
        """Through the messages of ASGI."""
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
    # Short once something of the head is there: one that has brought nothing yet is closed without a word.
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
        # A connection that was aborted is told of its end by the next turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if faults:
            raise faults[0]


def _watch(protocol: type[asyncio.Protocol], faults: list[Exception]) -> type[asyncio.Protocol]:
    """The same, but what the loop would log as a fault of the process is noted, and ends the connection."""

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
    said: bytes,
    status: bytes,
) -> None:
    async with _connect(protocol, sockets) as (reader, writer):
        writer.write(said)
        if status not in await reader.readuntil(b"\r\n"):
            raise TrialFailed(f"a head out of bounds was not refused with{status.decode()}")


@asynccontextmanager
async def _connect(
    protocol: type[asyncio.Protocol],
    sockets: type[asyncio.Protocol],
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to ourselves, whose other end ``protocol`` has."""
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
