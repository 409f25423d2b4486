"""A connection that carries whole exchanges: one write, and one callback when the last reply is there.

redis-py opens it, with TLS, credentials and database. Then its transport is read here, because redis-py needs a
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

from passerelle.store.connection import connect, make_connection, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.store.connection import Endpoint, RespValue, RespWire

ANSWER_S: Final = 2.0
"""Timeout of an exchange."""
_IDLE_S: Final = 15.0
_PING: Final = pack("PING")

OnEnd: TypeAlias = "Callable[[int, Exception | None], None]"
"""Called at the end of an exchange with the number of errors among its replies, and the failure if it broke."""


class _Missing(Enum):
    """What the parser returns while a reply is incomplete."""

    NOT_YET = auto()


_NOT_YET: Final = _Missing.NOT_YET
_CLOSED: Final = "the server closed the connection"
_STRAY: Final = "a reply without a command"

_explain = cast(
    "Callable[[str], Exception]",
    BaseParser.parse_error,  # pyright: ignore[reportUnknownMemberType] - it has no annotations
)


class _ReplyReader(asyncio.Protocol):
    """Parses replies of one transport; ``before``, redis-py's protocol, is notified of its end and waits for that."""

    def __init__(self, before: asyncio.BaseProtocol) -> None:
        self.broken: Exception | None = None
        self._before = before
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=self._refuse, notEnoughData=_NOT_YET
        )
        self.into: list[RespValue | RedisError] = []
        self.missing = 0
        """Replies still missing in the list."""
        self.refused = 0
        self.on_end: OnEnd | None = None
        """Called once they are there, or as soon as the rest cannot arrive any more."""

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while self.missing:
                reply: RespValue | RedisError | _Missing = reader.gets()
                if reply is _NOT_YET:
                    return
                if self.refused:
                    _require_connection(reply)
                self.into.append(reply)
                self.missing -= 1
        except (RedisError, ValueError) as error:
            self.fail(error)
            return
        if reader.has_data():
            self.broken = self.broken or ConnectionBroken(_STRAY)
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc or ConnectionBroken(_CLOSED))
        self._before.connection_lost(exc)

    def fail(self, error: Exception) -> None:
        """Ends the running exchange; the connection accepts no further one."""
        self.broken = self.broken or error
        self._end(self.broken)

    def _refuse(self, text: str) -> Exception:
        self.refused += 1
        return _explain(text)

    def _end(self, error: Exception | None) -> None:
        # Cleared first: the callback may begin the next exchange.
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self.refused, error)


def _require_connection(reply: RespValue | RedisError) -> None:
    if isinstance(reply, ConnectionBroken) and not isinstance(reply, BusyLoadingError):
        raise reply


class PipelinedConnection:
    """A connection to one server, open or not; one exchange at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._wire = make_connection(endpoint)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._replies: _ReplyReader | None = None
        self.opened = 0
        """How often it was opened, including failed tries."""
        self._used_s = 0.0
        """When the last exchange began, by the clock of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends an exchange that takes too long. One timer for many exchanges: nearly every one ends long before."""

    @property
    def is_open(self) -> bool:
        """Whether an exchange can be tried."""
        return self._replies is not None and self._replies.broken is None

    async def make_live(self) -> None:
        """Opens it, or verifies that it has not died while it was idle.

        Raises:
            RedisError, OSError, TimeoutError: it cannot be opened, or broke.
        """
        if self.is_open:
            self._used_s = self._loop.time()
            await self.exchange(_PING, 1, [])
        else:
            await self.open()

    async def open(self) -> None:
        """Opens it, closing the old connection first.

        Raises:
            RedisError, OSError, TimeoutError: it cannot be opened.
        """
        await self.close(nowait=True)
        self.opened += 1
        await connect(self._wire)
        self._transport = _take_transport(self._wire)
        self._replies = _ReplyReader(self._transport.get_protocol())
        self._transport.set_protocol(self._replies)
        self._used_s = self._loop.time()

    def begin(
        self, packed: bytes, count: int, into: list[RespValue | RedisError], on_end: OnEnd
    ) -> bool:
        """Writes; ``on_end`` is called once, when ``count`` replies are in the list or the exchange broke.

        Returns False and writes nothing if the connection is not open, or may have died while it was idle.

        Raises:
            OSError, RuntimeError: it broke.
        """
        transport, replies, now_s = self._transport, self._replies, self._loop.time()
        if transport is None or replies is None or replies.broken is not None:
            return False
        if now_s - self._used_s > _IDLE_S:
            return False
        transport.write(packed)
        replies.into, replies.missing, replies.refused, replies.on_end = into, count, 0, on_end
        self._used_s = now_s
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_S, self._check_timeout)
        return True

    async def exchange(self, packed: bytes, count: int, into: list[RespValue | RedisError]) -> None:
        """Writes, and collects ``count`` replies in a list; on failure the list has those that arrived.

        Raises:
            RedisError, OSError: it broke.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        if not self.begin(packed, count, into, partial(_finish, done)):
            broken = self._replies.broken if self._replies is not None else None
            raise broken or ConnectionBroken(_CLOSED)
        await done

    def _check_timeout(self) -> None:
        """Fails the running exchange if it has taken too long."""
        self._timer = None
        if self._replies is None or self._replies.on_end is None:
            return
        left_s = self._used_s + ANSWER_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_timeout)
        else:
            self._replies.fail(TimeoutError())

    async def close(self, *, nowait: bool = False) -> None:
        """Closes it; without ``nowait`` it waits until that is done."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._replies = self._timer = None
        await self._wire.disconnect(nowait=nowait)


def _finish(done: asyncio.Future[None], _refused: int, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _take_transport(wire: RespWire) -> asyncio.Transport:
    """The transport of a redis-py connection, which has no public access to it."""
    writer = cast("Any", wire)._writer  # noqa: SLF001
    return cast("asyncio.Transport", writer.transport)
