"""Calls over HTTP in any binding: sends one request, reads limited bytes, and returns every outcome as a value.

Nothing is sent twice from here. After ``Unreached`` or ``RefusedByPeer`` the peer does not have the request; after
``Unknown`` it may, and the driver of the run finds out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

import aiohttp

from passerelle.core.errors import RemoteError
from passerelle.core.peer import (
    Answered,
    Closed,
    Malformed,
    PeerOutcome,
    StreamOutcome,
    Unknown,
    Unreached,
)
from passerelle.core.wire.sse import SseParser
from passerelle.peers import answers, exchange
from passerelle.peers.call import LEASE_OVER, STREAMS, AgentReply
from passerelle.peers.http_client import EXTENSIONS_HEADER, write_call
from passerelle.peers.sessions import MAX_BODY_BYTES
from passerelle.peers.stream_room import StreamRoom
from passerelle.peers.whole_answer import (
    GAVE_WAY,
    ConnectionLost,
    GaveWay,
    HeldBack,
    NotConnected,
    NotReadable,
)
from passerelle.runtime.common.carried import note_confirmed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.peers.call import BindingWire, PeerCall
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.http_client import HttpClient
    from passerelle.peers.interface import Interface

MAX_EVENT_BYTES: Final = 24 * 1024 * 1024


class HttpTransport:
    """The calls of one peer in one binding; see ``call.Transport``."""

    def __init__(self, config: PeerConfig, client: HttpClient, wire: BindingWire) -> None:
        self._config = config
        self._client = client
        self._wire = wire
        self._ids = count(1)

    async def call(self, interface: Interface, call: PeerCall) -> PeerOutcome:
        call_id = next(self._ids)
        request = self._wire.write(interface, call, call_id)
        try:
            reply = await self._client.fetch(request, interface, call.timeout_s, call.may_send)
        except HeldBack:
            return LEASE_OVER
        except (RemoteError, NotConnected) as error:
            # Draining, no credential, no connection: nothing was sent.
            return Unreached(error.message if isinstance(error, RemoteError) else str(error))
        except ConnectionLost as error:
            return Unknown(str(error), gave_way=isinstance(error, GaveWay))
        except TimeoutError:
            return Unknown("no answer in time")
        except NotReadable as error:
            return answers.reject(str(error), error.head, too_long=error.too_long)
        if reply.extensions is not None:
            note_confirmed(reply.extensions)
        return _hold(self._wire.read(call, call_id, reply), reply.hold)

    async def follow(
        self, interface: Interface, call: PeerCall
    ) -> AsyncGenerator[StreamOutcome, None]:
        call_id = next(self._ids)
        try:
            async with (
                self._exchange(interface, call, call_id) as response,
                aclosing(self._read(response, interface, call, call_id)) as outcomes,
            ):
                async for outcome in outcomes:
                    passed = [outcome]
                    del outcome
                    yield passed.pop()
        except HeldBack:
            yield LEASE_OVER
        except RemoteError as error:
            yield Unreached(error.message)
        except (aiohttp.ClientError, TimeoutError) as error:
            yield exchange.explain_failure(error)

    @asynccontextmanager
    async def _exchange(
        self, interface: Interface, call: PeerCall, call_id: int
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        request = self._wire.write(interface, call, call_id)
        headers = write_call(interface, request, streams=call.operation in STREAMS)
        headers["Accept-Encoding"] = "identity"  # a compressor would delay frames
        async with self._client.request(
            request, interface.origin, headers, call.timeout_s, call.may_send
        ) as response:
            for name in EXTENSIONS_HEADER.values():
                note_confirmed(response.headers.get(name))
            yield response

    async def _read(
        self, response: aiohttp.ClientResponse, interface: Interface, call: PeerCall, call_id: int
    ) -> AsyncGenerator[StreamOutcome, None]:
        if exchange.has_long_headers(response):
            yield Malformed("a header block over 64 KiB", b"")
            return
        room = StreamRoom(
            self._client.bind(interface.origin),
            max(MAX_EVENT_BYTES, MAX_BODY_BYTES),
            response.close,
        )
        try:
            is_stream = response.content_type == "text/event-stream"
            if is_stream and answers.is_success(response.status):
                async with aclosing(self._read_frames(response, room)) as frames:
                    async for frame in frames:
                        passed = [frame]
                        del frame
                        yield passed.pop()
                return
            # An error before the first event is a plain response (A2A 1.0 section 9.4.2).
            outcome = await self._read_whole(response, call, call_id, room)
            yield outcome
            if isinstance(outcome, Answered):
                yield Closed()
        except aiohttp.ClientError:
            if not room.gave_way:
                raise
            yield Unknown(GAVE_WAY, gave_way=True)
        finally:
            room.close()

    async def _read_whole(
        self, response: aiohttp.ClientResponse, call: PeerCall, call_id: int, room: StreamRoom
    ) -> PeerOutcome:
        try:
            raw = await exchange.read_body(response, MAX_BODY_BYTES, room)
        except exchange.TooLong as fault:
            return answers.reject(str(fault), fault.head, too_long=True)
        reply = AgentReply(response.status, response.headers.get("Retry-After"), raw)
        return _hold(self._wire.read(call, call_id, reply), room.take(len(raw)))

    async def _read_frames(
        self, response: aiohttp.ClientResponse, room: StreamRoom
    ) -> AsyncGenerator[StreamOutcome, None]:
        """The frames of an event stream, then exactly one outcome that states how it ended."""
        parser, has_begun = SseParser(MAX_EVENT_BYTES), False
        while chunk := await _read_chunk(response, self._config.idle_timeout_s):
            # The first complete event has taken a while to arrive, the others arrived now.
            payloads = deque(parser.feed(chunk))
            while payloads:
                payload = payloads.popleft()
                hold = room.take(len(payload))
                if not payload:
                    continue
                outcome = _hold(self._wire.read_event(payload), hold)
                del payload, hold
                has_begun = True
                is_last, passed = not isinstance(outcome, Answered), [outcome]
                del outcome
                yield passed.pop()
                if is_last:
                    return
            if parser.overflowed:
                yield answers.reject(f"an event over {MAX_EVENT_BYTES} bytes", chunk)
                return
            await room.make(parser.held_bytes)
        if room.gave_way:
            yield Unknown(GAVE_WAY, gave_way=True)
            return
        if parser.in_event:
            yield Unknown("the stream ended inside an event")
        elif not has_begun and not _is_framed(response):
            yield Unknown("the connection ended without an event")
        else:
            yield Closed()


def _is_framed(response: aiohttp.ClientResponse) -> bool:
    """Whether the end of a body is marked: without that, an end and a lost connection look alike."""
    return "Transfer-Encoding" in response.headers or "Content-Length" in response.headers


def _hold(outcome: PeerOutcome, hold: object | None) -> PeerOutcome:
    """The outcome with its share of the memory budget."""
    if hold is None or not isinstance(outcome, Answered):
        return outcome
    return replace(outcome, hold=hold)


async def _read_chunk(response: aiohttp.ClientResponse, idle_s: float) -> bytes:
    """The next bytes; pings count as activity."""
    async with asyncio.timeout(idle_s):
        return await response.content.readany()
