"""A peer over A2A 1.0 JSON-RPC (A2A 1.0 section 9): JSON out, JSON in, every outcome a value.

Nothing is sent twice from here. After ``Unreached`` or ``Refused`` the peer does not have the request; after
``Unknown`` it may, and whoever drives the run finds out. The content of a result is not looked at: an
unknown state or a frame without sense is for the mapping, which knows what to do with it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Final

import aiohttp
import orjson

from passerelle.core.errors import RemoteError
from passerelle.core.peer import (
    Answered,
    Closed,
    Malformed,
    PeerCard,
    PeerOutcome,
    Refused,
    StreamOutcome,
    Unknown,
    Unreached,
)
from passerelle.gateway.peers import answers, exchange
from passerelle.gateway.peers.config import PeerConfig
from passerelle.gateway.peers.sse import SseParser

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.json import JsonObject
    from passerelle.gateway.peers.card import KnownCard
    from passerelle.gateway.peers.cards import CardCache
    from passerelle.gateway.peers.sessions import PeerSessions

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE})


class JsonRpcPeer:
    """One peer agent; see ``core.peer.Peer`` for what its calls promise."""

    def __init__(self, config: PeerConfig, sessions: PeerSessions, cards: CardCache) -> None:
        self._config = config
        self._sessions = sessions
        self._cards = cards
        self._ids = count(1)

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def config(self) -> PeerConfig:
        """What it was made from; a reload keeps a peer whose configuration is equal."""
        return self._config

    async def describe(self) -> PeerCard:
        """The card, cached.

        Raises:
            PeerUnavailable: it cannot be read, and there has never been one.
            InvalidAgentResponse: it was read and cannot be used; ``details`` say where it is wrong.
        """
        return (await self._cards.load()).card

    async def send(self, params: JsonObject, *, timeout_s: float | None = None) -> PeerOutcome:
        total_s = self._config.total_timeout_s if timeout_s is None else timeout_s
        return await self._call("SendMessage", params, total_s)

    def stream(self, params: JsonObject) -> AsyncGenerator[StreamOutcome, None]:
        return self._follow("SendStreamingMessage", params)

    async def get(self, task: str, *, history_length: int | None = None) -> PeerOutcome:
        params: JsonObject = {"id": task}
        if history_length is not None:
            params["historyLength"] = history_length
        return await self._call("GetTask", params, self._config.query_timeout_s)

    async def list(self, params: JsonObject) -> PeerOutcome:
        return await self._call("ListTasks", params, self._config.query_timeout_s)

    def subscribe(self, task: str) -> AsyncGenerator[StreamOutcome, None]:
        return self._follow("SubscribeToTask", {"id": task})

    async def cancel(self, task: str) -> PeerOutcome:
        return await self._call("CancelTask", {"id": task}, self._config.query_timeout_s)

    async def _call(self, method: str, params: JsonObject, timeout_s: float) -> PeerOutcome:
        """One request with one answer, within ``timeout_s`` from connecting to the last byte."""
        request_id = next(self._ids)
        try:
            known = await self._cards.load()
            async with self._post(known, method, params, request_id, timeout_s) as response:
                outcome = await _read_unary(response, request_id)
        except RemoteError as error:
            # No card, no endpoint: nothing was sent.
            return Unreached(error.message)
        except (aiohttp.ClientError, TimeoutError) as error:
            return exchange.explain_failure(error)
        self._doubt_card(outcome)
        return outcome

    async def _follow(self, method: str, params: JsonObject) -> AsyncGenerator[StreamOutcome, None]:
        """One request with many answers. All but the last outcome are ``Answered``; the last says how it ended."""
        request_id = next(self._ids)
        try:
            known = await self._cards.load()
            timeout_s = self._config.total_timeout_s
            async with (
                self._post(known, method, params, request_id, timeout_s) as response,
                aclosing(self._read(response, request_id)) as outcomes,
            ):
                async for outcome in outcomes:
                    yield outcome
        except RemoteError as error:
            yield Unreached(error.message)
        except (aiohttp.ClientError, TimeoutError) as error:
            yield exchange.explain_failure(error)

    async def _read(
        self, response: aiohttp.ClientResponse, request_id: int
    ) -> AsyncGenerator[StreamOutcome, None]:
        if response.status == HTTPStatus.OK and response.content_type == "text/event-stream":
            async with aclosing(
                _read_frames(response, request_id, self._config.idle_timeout_s)
            ) as frames:
                async for frame in frames:
                    yield frame
            return
        # An error before the first event is a plain response (A2A 1.0 section 9.4.2).
        outcome = await _read_unary(response, request_id)
        self._doubt_card(outcome)
        yield outcome
        if isinstance(outcome, Answered):
            yield Closed()

    @asynccontextmanager
    async def _post(
        self, known: KnownCard, method: str, params: JsonObject, request_id: int, timeout_s: float
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if known.tenant is not None:
            params = {**params, "tenant": known.tenant}
        body = orjson.dumps(
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        )
        streams = method in {"SendStreamingMessage", "SubscribeToTask"}
        headers = exchange.write_headers(self._config)
        headers["Content-Type"] = "application/json"
        headers["Accept"] = "text/event-stream" if streams else "application/json"
        if streams:
            headers["Accept-Encoding"] = "identity"  # a compressor would hold frames back
        endpoint = known.card.endpoint
        session = self._sessions.open(known.origin)
        async with session.post(
            endpoint,
            data=exchange.wrap_body(body),
            headers=headers,
            timeout=exchange.limit_time(self._config, timeout_s),
            allow_redirects=False,
        ) as response:
            yield response

    def _doubt_card(self, outcome: PeerOutcome) -> None:
        """An endpoint that is gone, or speaks another version, has a new card."""
        if isinstance(outcome, Refused) and (
            outcome.http_status in _GONE or outcome.code == answers.VERSION_NOT_SUPPORTED
        ):
            self._cards.expire()


async def _read_unary(response: aiohttp.ClientResponse, request_id: int) -> PeerOutcome:
    if exchange.has_long_headers(response):
        return Malformed("a header block over 64 KiB", b"")
    try:
        raw = await exchange.read_body(response, MAX_BODY_BYTES)
    except exchange.TooLong as fault:
        return answers.reject(str(fault), fault.head)
    retry_after = response.headers.get("Retry-After")
    return answers.read_response(response.status, retry_after, raw, request_id)


async def _read_frames(
    response: aiohttp.ClientResponse, request_id: int, idle_s: float
) -> AsyncGenerator[StreamOutcome, None]:
    """The frames of an event stream, then exactly one outcome that says how it ended."""
    if exchange.has_long_headers(response):
        yield Malformed("a header block over 64 KiB", b"")
        return
    parser = SseParser(MAX_EVENT_BYTES)
    while chunk := await _read_chunk(response, idle_s):
        for payload in parser.feed(chunk):
            if not payload:
                continue
            outcome = answers.read_envelope(payload, request_id, response.status)
            yield outcome
            if not isinstance(outcome, Answered):
                return
        if parser.overflowed:
            yield answers.reject(f"an event over {MAX_EVENT_BYTES} bytes", chunk)
            return
    yield Unknown("the stream ended inside an event") if parser.in_event else Closed()


async def _read_chunk(response: aiohttp.ClientResponse, idle_s: float) -> bytes:
    """The next bytes; pings count as life."""
    async with asyncio.timeout(idle_s):
        return await response.content.readany()
