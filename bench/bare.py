"""Pass-through gateways: the cost of HTTP alone on this interpreter, the lower bound of any gateway.

``python -m bench.bare FORM AGENT`` listens on loopback and prints one JSON line with its URL. Nothing is checked,
stored, bounded or translated. ``asgi`` uses the gateway's server and client around an empty application. ``protocol``
replaces the server by a parser. ``callbacks`` also removes tasks and futures: two parsers and two writes per answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

import orjson

from bench.http_connection import HttpConnection
from passerelle.demo.peers.serving import HOST
from passerelle.gateway.server import Listener, Server, bind, run
from passerelle.peers.connection_pool import ConnectionPool
from passerelle.peers.request_head import close_head, write_head

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from passerelle.peers.sessions import AddressInfo

TOTAL_S: Final = 30.0
LIMIT_BYTES: Final = 1 << 20
_HEADERS: Final = {"Content-Type": "application/json", "A2A-Version": "1.0"}
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
_ASK: Final = (
    b"POST / HTTP/1.1\r\nhost: agent\r\ncontent-type: application/json\r\n"
    b"a2a-version: 1.0\r\ncontent-length: %d\r\n\r\n%b"
)


class InboundConnection(HttpConnection):
    """An inbound connection."""

    def __init__(self, pass_on: Callable[[InboundConnection, bytes], None]) -> None:
        super().__init__(asks=False)
        self._pass_on = pass_on

    def take(self, body: bytes) -> None:
        self._pass_on(self, body)

    def answer(self, body: bytes) -> None:
        """Forwards an answer."""
        self.write(_ANSWER % (len(body), body))


class OutboundConnection(HttpConnection):
    """An outbound connection. It serves one ``caller`` at a time and is among the ``idle`` ones otherwise."""

    def __init__(self, idle: list[OutboundConnection]) -> None:
        super().__init__(asks=True)
        self._idle = idle
        self._caller: InboundConnection | None = None

    def ask(self, caller: InboundConnection, body: bytes) -> None:
        """Forwards a request."""
        self._caller = caller
        self.write(_ASK % (len(body), body))

    def take(self, body: bytes) -> None:
        caller, self._caller = self._caller, None
        self._idle.append(self)
        if caller is not None:
            caller.answer(body)


class CallbackProxy:
    """Connections to the agent, driven by callbacks."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[OutboundConnection] = []
        self._opening = set[asyncio.Task[None]]()

    def take(self, caller: InboundConnection, body: bytes) -> None:
        """Forwards a request."""
        while self._idle:
            agent = self._idle.pop()
            if agent.is_open:
                agent.ask(caller, body)
                return
        opening = asyncio.get_running_loop().create_task(self._open(caller, body))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, caller: InboundConnection, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, agent = await loop.create_connection(
            lambda: OutboundConnection(self._idle), *self._address
        )
        agent.ask(caller, body)


class TaskProxy:
    """The gateway's client, with one task per request."""

    def __init__(self, pool: ConnectionPool, agent: str) -> None:
        self._pool = pool
        self._head = write_head("POST", f"{agent}/", _HEADERS)
        self._running = set[asyncio.Task[None]]()

    async def ask(self, body: bytes) -> bytes:
        """Forwards the body and returns that of the agent's answer."""
        asked = close_head(self._head, body)
        reply = await self._pool.ask(asked, connect_s=TOTAL_S, total_s=TOTAL_S)
        return reply.raw

    def take(self, caller: InboundConnection, body: bytes) -> None:
        """Forwards a request in a new task."""
        running = asyncio.get_running_loop().create_task(self._pass_on(caller, body))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _pass_on(self, caller: InboundConnection, body: bytes) -> None:
        caller.answer(await self.ask(body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI
        """The ASGI application."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = await self.ask(body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _serve_asgi(agent: str, listener: Listener) -> Coroutine[None, None, None]:
    return Server(TaskProxy(_make_pool(agent), agent), listener).serve(asyncio.Event())


def _serve_protocol(agent: str, listener: Listener) -> Coroutine[None, None, None]:
    return _listen(listener, TaskProxy(_make_pool(agent), agent).take)


def _serve_callbacks(agent: str, listener: Listener) -> Coroutine[None, None, None]:
    host, _, port = agent.removeprefix("http://").rpartition(":")
    return _listen(listener, CallbackProxy(host, int(port)).take)


FORMS: Final[dict[str, Callable[[str, Listener], Coroutine[None, None, None]]]] = {
    "asgi": _serve_asgi,
    "protocol": _serve_protocol,
    "callbacks": _serve_callbacks,
}


async def _listen(listener: Listener, take: Callable[[InboundConnection, bytes], None]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: InboundConnection(take), sock=listener.socket)
    async with server:
        await server.serve_forever()


def _make_pool(agent: str) -> ConnectionPool:
    return ConnectionPool(
        agent, None, idle_s=TOTAL_S, limit_bytes=LIMIT_BYTES, make_socket=_make_socket
    )


def _make_socket(address: AddressInfo) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setblocking(False)
    return made


async def _serve(form: str, agent: str) -> None:
    listener = bind(HOST, 0)
    print(orjson.dumps({"form": form, "url": listener.url}).decode(), flush=True)
    await FORMS[form](agent, listener)


def main() -> None:
    """Serves until it is terminated."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare", description=__doc__)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("agent", help="URL without a slash at the end")
    flags = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        run(_serve(flags.form, flags.agent))


if __name__ == "__main__":
    main()
