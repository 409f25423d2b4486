"""One HTTP/1.1 connection, in or out, at minimum cost in Python: two callbacks, no task and no future."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools


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
