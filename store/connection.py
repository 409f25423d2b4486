"""Connections to the server: the only module that builds them, with settings that never repeat a call.

redis-py's defaults try a call again on a timeout, which was seen to store one event twice; here every
connection has no retries, and a call that may have run is reported as such.
"""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import hiredis
from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.store.failures import explain_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_S: Final = 1.0
_CLIENT_NAME: Final = "passerelle"
_DATABASE: Final = re.compile("/?[0-9]*")

RespValue: TypeAlias = "bytes | int | list[RespValue] | None"
"""Replies of the server in RESP 2: no maps, no decoding."""
Argument: TypeAlias = str | bytes | int

pack_words = cast(
    "Callable[[tuple[Argument, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType] - its stub gives no return type
)
"""``pack`` for a tuple of arguments."""


class RespWire(Protocol):
    """The part of redis-py's connection that is used here."""

    @property
    def is_connected(self) -> bool:
        """Whether the socket is believed to be open."""
        ...

    async def connect(self) -> None:
        """Connects and authenticates."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001, FBT002 - redis-py's signature
        """Closes the socket."""
        ...

    async def send_packed_command(
        self,
        command: list[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 - redis-py's signature
    ) -> None:
        """Writes bytes."""
        ...

    async def read_response(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - redis-py's signature
        disconnect_on_error: bool = True,
    ) -> RespValue:
        """Reads one reply; raises it if it is an error."""
        ...


@frozen
class Endpoint:
    """The address of a primary, and its connection settings. Its repr shows no credential."""

    kwargs: Mapping[str, Any] = field(repr=False)
    """Untyped keyword arguments of redis-py's connection class."""
    connection_class: type[Any] = Connection

    @property
    def name(self) -> str:
        """Host and port, or the path of the socket."""
        path = self.kwargs.get("path")
        return str(
            path or f"{self.kwargs.get('host', 'localhost')}:{self.kwargs.get('port', 6379)}"
        )

    def at(self, host: str, port: int) -> Endpoint:
        """The same settings for another node."""
        return Endpoint({**self.kwargs, "host": host, "port": port}, self.connection_class)


def read_url(url: str) -> Endpoint:
    """The endpoint of a ``redis://``, ``rediss://`` or ``unix://`` URL.

    Raises:
        ConfigInvalid: the URL cannot be used.
    """
    try:
        kwargs = cast("dict[str, Any]", parse_url(url))
    except ValueError as error:
        raise ConfigInvalid("redis_url", str(error)) from error
    # redis-py reads any other path as database 0.
    if "path" not in kwargs and not _DATABASE.fullmatch(urlsplit(url).path):
        raise ConfigInvalid("redis_url", "the path should be the number of a database")
    connection_class = cast("type[Any]", kwargs.pop("connection_class", Connection))
    return Endpoint(kwargs, connection_class)


def make_connection(endpoint: Endpoint) -> RespWire:
    """A connection that is not open yet, without a timeout of its own: each exchange sets one."""
    settings: dict[str, Any] = {
        **endpoint.kwargs,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_S,
        "health_check_interval": 0,
        "protocol": 2,
        "driver_info": None,
        "client_name": _CLIENT_NAME,
        "decode_responses": False,
    }
    return cast("RespWire", endpoint.connection_class(**settings))


async def connect(wire: RespWire) -> None:
    """Opens a connection within a second, handshake included.

    Raises:
        RedisError, OSError, TimeoutError: it cannot be opened; it is closed again.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            await wire.connect()
    except BaseException:
        await wire.disconnect(nowait=True)
        raise


def pack(*arguments: Argument) -> bytes:
    """Encodes one command for the wire.

    The caller encodes it, not the batch, so that an argument that cannot be encoded fails only its own caller and never
    shifts the replies of the others.
    """
    return pack_words(arguments)


def unpack(call: bytes) -> tuple[bytes, ...]:
    """The arguments of a command made by ``pack``."""
    at = call.index(b"\n") + 1
    arguments: list[bytes] = []
    while at < len(call):
        begin = call.index(b"\n", at) + 1
        end = begin + int(call[at + 1 : begin])
        arguments.append(call[begin:end])
        at = end + 2
    return tuple(arguments)


async def read_reply(wire: RespWire) -> RespValue | RedisError:
    """The next reply; an error reply is returned as a value, so that the replies after it can be read."""
    try:
        return await wire.read_response(timeout=math.inf, disconnect_on_error=False)
    except (ResponseError, BusyLoadingError) as error:
        return error


async def ask(wire: RespWire, *arguments: Argument) -> RespValue:
    """Sends one command on a connection with no other user.

    Raises:
        StoreUnavailable, Redirected: the meaning of an error reply.
        RedisError, OSError: the connection broke.
    """
    await wire.send_packed_command([pack(*arguments)], check_health=False)
    reply = await read_reply(wire)
    if isinstance(reply, RedisError):
        raise explain_reply(reply) from reply
    return reply
