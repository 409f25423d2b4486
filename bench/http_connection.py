"""One HTTP/1.1 connection, in or out, at the least that it can cost in Python: two callbacks, no task and no future."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools


class _Parser(Protocol):
    """What is used of httptools' parsers, which have no types."""

    def feed_data(self, data: bytes) -> None: ...
    def get_method(self) -> bytes: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class HttpConnection(asyncio.Protocol):
    """What extends it gets the body of each whole message in ``take``, and hears of the end in ``lose``.

    What cannot be read ends the connection. Nothing is decompressed.
    """

    def __init__(self, *, asks: bool) -> None:
        make = httptools.HttpResponseParser if asks else httptools.HttpRequestParser
        self._parser = cast("_Parser", make(self))
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def take(self, body: bytes) -> None:
        """Called once for each whole message."""
        raise NotImplementedError

    def on_closed(self, error: Exception | None) -> None:
        """Called at the end of the connection, whoever ended it."""

    def write(self, data: bytes) -> None:
        """Sends a message or a part of one, or nothing if the connection has ended."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be written to; an agent closes a connection that nobody uses."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def stays_open(self) -> bool:
        """Whether the message that is being taken leaves the connection open for another."""
        return self._parser.should_keep_alive()

    @property
    def method(self) -> bytes:
        """Of the request that has begun."""
        return self._parser.get_method()

    @property
    def status(self) -> int:
        """Of the answer that has begun."""
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
