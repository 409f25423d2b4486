"""HTTP/1.1 connections, in or out, at minimum cost in Python: two callbacks, no task and no future; agents on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools
import orjson

from bench.light_tasks import make_card
from passerelle.core.wire.json import JsonObject
from passerelle.demo.peers.serving import HOST
from passerelle.gateway.server import bind

_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class _Parser(Protocol):
    """The used part of httptools' parsers, which have no types."""

    def feed_data(self, data: bytes) -> None: ...
    def get_method(self) -> bytes: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class HttpConnection(asyncio.Protocol):
    """Subclasses receive the body of each complete message in ``take``, and the end in ``on_closed``.

    Invalid data closes the connection. Nothing is decompressed.
    """

    def __init__(self, *, asks: bool) -> None:
        make = httptools.HttpResponseParser if asks else httptools.HttpRequestParser
        self._parser = cast("_Parser", make(self))
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def take(self, body: bytes) -> None:
        """Called once for each complete message."""
        raise NotImplementedError

    def on_closed(self, error: Exception | None) -> None:
        """Called at the end of the connection, whichever side ended it."""

    def write(self, data: bytes) -> None:
        """Sends data, or nothing if the connection has ended."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be written to; an agent closes idle connections."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def stays_open(self) -> bool:
        """Whether the current message leaves the connection open for another."""
        return self._parser.should_keep_alive()

    @property
    def method(self) -> bytes:
        """Method of the current request."""
        return self._parser.get_method()

    @property
    def status(self) -> int:
        """Status of the current answer."""
        return self._parser.get_status_code()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.on_closed(exc)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        self.take(body)


class AgentConnection(HttpConnection):
    """A connection to an agent that speaks JSON-RPC."""

    def __init__(self) -> None:
        super().__init__(asks=False)
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def take_path(self) -> bytes:
        """The path of the current request; once."""
        path, self._path = self._path.partition(b"?")[0], b""
        return path

    def answer(self, body: bytes) -> None:
        """Sends a whole answer."""
        self.write(_HEAD % (len(body), body))

    def answer_call(self, call: JsonObject, answer: JsonObject) -> None:
        """Sends the answer to a call: its result, or its error."""
        self.answer(_compose(call, answer))

    def open_stream(self) -> None:
        """Sends the head of an event stream."""
        self.write(_STREAM_HEAD)

    def send_event(self, call: JsonObject, result: JsonObject) -> None:
        """Sends one event of the open stream."""
        event = b"data: " + _compose(call, {"result": result}) + b"\n\n"
        self.write(b"%x\r\n%b\r\n" % (len(event), event))

    def send_last_event(self, call: JsonObject, result: JsonObject) -> None:
        """Sends an event, and ends the stream."""
        self.send_event(call, result)
        self.write(b"0\r\n\r\n")


def _compose(call: JsonObject, answer: JsonObject) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": call.get("id"), **answer})


async def serve_agent(
    name: str, prepare: Callable[[bytes], Callable[[], AgentConnection]], *, streams: bool = True
) -> None:
    """Serves on loopback until it is cancelled; ``prepare`` gets the card. Prints a JSON line with name and URL."""
    listener = bind(HOST, 0)
    make = prepare(orjson.dumps(make_card(listener.url, streams=streams) | {"name": name}))
    server = await asyncio.get_running_loop().create_server(make, sock=listener.socket)
    print(orjson.dumps({"agent": name, "url": listener.url}).decode(), flush=True)
    async with server:
        await server.serve_forever()
