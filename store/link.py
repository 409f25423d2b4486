"""An open connection that carries whole exchanges: one write, and one word when the last reply is there.

redis-py opens it, with TLS, credentials and database, and then its transport is read here: its own way takes a
coroutine, a buffer and a wake-up for each reply.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import hiredis
from redis._parsers import BaseParser
from redis.exceptions import BusyLoadingError, InvalidResponse, RedisError
from redis.exceptions import ConnectionError as ConnectionBroken

from passerelle.store.connection import connect, make_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.store.connection import Endpoint, Reply, Wire

Then: TypeAlias = "Callable[[Exception | None], None]"
"""Told of the end of an exchange, and of what broke it."""


class _Missing(Enum):
    """In place of a reply of which not every byte is there."""

    NOT_YET = auto()


_NOT_YET: Final = _Missing.NOT_YET
_CLOSED: Final = "the server closed the connection"
_STRAY: Final = "a reply that nobody asked for"

_explain = cast(
    "Callable[[str], Exception]",
    BaseParser.parse_error,  # pyright: ignore[reportUnknownMemberType] - it has no annotations
)


class _Replies(asyncio.Protocol):
    """What arrives on one transport; ``before`` is told of its end, as its owner waits for that."""

    def __init__(self, before: asyncio.BaseProtocol) -> None:
        self.broken: Exception | None = None
        self._before = before
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=_explain, notEnoughData=_NOT_YET
        )
        self._into: list[Reply | RedisError] = []
        self._missing = 0
        self._then: Then | None = None

    def expect(self, count: int, into: list[Reply | RedisError], then: Then) -> None:
        """Tells when so many replies are in ``into``, or as soon as the rest cannot come any more."""
        self._into, self._missing, self._then = into, count, then

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            self._read()
        except (RedisError, ValueError) as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or ConnectionBroken(_CLOSED))
        self._before.connection_lost(exc)

    def _read(self) -> None:
        while self._missing:
            reply: Reply | RedisError | _Missing = self._reader.gets()
            if reply is _NOT_YET:
                return
            if isinstance(reply, ConnectionBroken) and not isinstance(reply, BusyLoadingError):
                raise reply
            self._into.append(reply)
            self._missing -= 1
        if self._reader.has_data():
            self.broken = self.broken or ConnectionBroken(_STRAY)
        self._tell(None)

    def fail(self, error: Exception) -> None:
        """It carries nothing any more."""
        self.broken = self.broken or error
        self._tell(self.broken)

    def _tell(self, error: Exception | None) -> None:
        # Whoever is told may send the next exchange at once.
        then, self._then = self._then, None
        if then is not None:
            then(error)


class Link:
    """A connection to one server, open or not; one exchange at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._wire = make_connection(endpoint)
        self._transport: asyncio.Transport | None = None
        self._replies: _Replies | None = None
        self.used_s = 0.0
        """When it last carried an exchange, by the clock of the loop."""

    @property
    def is_open(self) -> bool:
        """Whether an exchange can be tried: nothing is known against it."""
        return self._replies is not None and self._replies.broken is None

    async def open(self) -> None:
        """Opens it, once more if need be.

        Raises:
            RedisError, OSError, TimeoutError: it cannot be opened.
        """
        await self.close(nowait=True)
        await connect(self._wire)
        self._transport = _take_transport(self._wire)
        self._replies = _Replies(self._transport.get_protocol())
        self._transport.set_protocol(self._replies)

    def begin(
        self, packed: Sequence[bytes], count: int, into: list[Reply | RedisError], then: Then
    ) -> None:
        """Writes; ``then`` is told once, when ``count`` replies are in a list or by what it broke.

        Raises:
            RedisError, OSError: it is not open; nothing was written.
        """
        if self._transport is None or self._replies is None:
            raise ConnectionBroken(_CLOSED)
        if self._replies.broken is not None:
            raise self._replies.broken
        self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
        self._replies.expect(count, into, then)

    async def exchange(
        self, packed: Sequence[bytes], count: int, into: list[Reply | RedisError]
    ) -> None:
        """Writes, and puts ``count`` replies into a list; those that came stand in it when it fails, too.

        Raises:
            RedisError, OSError: it broke.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin(packed, count, into, partial(_finish, done))
        await done

    def give_up(self) -> None:
        """No answer has come in time, and none is waited for any longer."""
        if self._replies is not None:
            self._replies.fail(TimeoutError())

    async def close(self, *, nowait: bool = False) -> None:
        """Closes it; without ``nowait`` it waits until that is done."""
        self._transport = self._replies = None
        await self._wire.disconnect(nowait=nowait)


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _take_transport(wire: Wire) -> asyncio.Transport:
    """The transport below a connection of redis-py, which gives it to nobody."""
    writer = cast("Any", wire)._writer  # noqa: SLF001
    return cast("asyncio.Transport", writer.transport)
