"""Taps between the processes: one for each connection to the store, and one for each to an agent."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

import httptools
import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.json import JsonObject
from tests.chaos.plan import GATEWAYS
from tests.chaos.traps import LABEL, Request, Trap, Traps
from tests.support.tcp_proxy import CHUNK

_BEARER: Final = b"Bearer "
_HEAR_S: Final = 0.5
"""Time limit for reading the request of a caller that meets an unavailable agent."""


class _Parser(Protocol):
    """The used part of httptools' parser, which has no types."""

    def feed_data(self, data: bytes) -> None: ...


@dataclass(slots=True)
class StoreTap:
    """One connection of a gateway to the store."""

    traps: Traps
    gateway: int
    _waiting: Trap | None = None

    async def up(self, data: bytes) -> bytes:
        self._waiting = await self.traps.meet_write(self.gateway, data)
        return data

    async def down(self, data: bytes) -> bytes:
        trap, self._waiting = self._waiting, None
        if trap is not None:
            await self.traps.meet_reply(trap, self.gateway)
        return data


@dataclass(slots=True)
class AgentTap:
    """One connection to an agent. A request is forwarded when it is complete; its token names the gateway."""

    traps: Traps
    agent: str
    _parser: _Parser = field(init=False)
    _raw: bytes = b""
    _body: bytes = b""
    _gateway: int = 0
    _is_whole: bool = False
    _trap: Trap | None = None

    def __post_init__(self) -> None:
        self._parser = cast("_Parser", httptools.HttpRequestParser(self))

    async def read_request(self, reader: asyncio.StreamReader) -> None:
        """A request to an unavailable agent: records its gateway and its task before it fails."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEAR_S):
                while not self._is_whole and (data := await reader.read(CHUNK)):
                    self._parser.feed_data(data)
        if self._is_whole:
            self.traps.knocks.append(self._read(self._body))

    async def up(self, data: bytes) -> bytes:
        self._raw += data
        self._parser.feed_data(data)
        if not self._is_whole:
            return b""
        raw, body = self._raw, self._body
        self._raw, self._body, self._is_whole = b"", b"", False
        self._trap = await self.traps.meet_call(self._read(body))
        return raw

    def _read(self, body: bytes) -> Request:
        call = cast("JsonObject", orjson.loads(body)) if body else {}
        params = object_at(call, "params")
        message, label = object_at(params, "message"), LABEL.search(body)
        ids = [text_at(params, "id"), text_at(params, "contextId")]
        ids += [text_at(message, "taskId"), text_at(message, "contextId")]
        return Request(
            self._gateway,
            self.agent,
            text_at(call, "method"),
            label[0].decode() if label else None,
            frozenset(filter(None, ids)),
            time.monotonic(),
        )

    async def down(self, data: bytes) -> bytes:
        if self._trap is not None:
            await self.traps.meet_answer(self._trap, self._gateway, data)
        return data

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._gateway = GATEWAYS.index(value.removeprefix(_BEARER).decode())

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_whole = True
