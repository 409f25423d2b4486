"""Channel streams over plain HTTP, with the same cursors: server-sent events, long polling, and snapshots.

``GET /v1/streams/<stream>/events`` continues after ``Last-Event-ID`` or ``?after=``, on any instance. As server-sent
events it stays open: ``id`` is the cursor after the event, a gap is ``event: gap`` and then ``event: snap`` with the
state. As JSON lines it has everything from the cursor, or from the first event, to the end. Otherwise it is one page,
awaited for up to ``wait`` seconds, and a gap is the problem ``gap`` with 410. A client's position is not an ack: that
is ``POST /v1/streams/<stream>/ack``. ``GET /v1/streams/<stream>/snapshot`` is the state only.

A reader of such a stream is a channel like any other: ``stream_link`` writes its record and its facts.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import orjson
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from passerelle.channels.fanout import count_deliveries
from passerelle.channels.hub import Start
from passerelle.channels.pages import Page
from passerelle.channels.position import CursorGap, ReplayBounds, ReplayEnd
from passerelle.channels.services import parse_stream_name
from passerelle.core.errors import (
    CallerError,
    InstanceFull,
    InvalidInput,
    NotFound,
    RemoteError,
    StoreUnavailable,
    StreamGap,
    Unauthenticated,
)
from passerelle.core.frozen import frozen
from passerelle.core.wire.near import find_near
from passerelle.core.wire.sse import escape_breaks
from passerelle.gateway.http.stream_link import NAMELESS
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.cursor import Cursor, parse_cursor
from passerelle.runtime.limits.gate import StreamSeats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Position, PositionItem
    from passerelle.channels.services import StreamAccess, StreamGrant, StreamName
    from passerelle.channels.states import ReadModelState, States
    from passerelle.core.commands import Authenticator
    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.auth.credentials import CredentialReader
    from passerelle.gateway.http.stream_link import StreamLink, StreamLinks

KEEP_ALIVE_S: Final = 15.0
RECHECK_S: Final = 5.0
KEEP_S: Final = 30.0
LONGEST_WAIT_S: Final = 25
_TICK_S: Final = 1.0
_RETRY_MS: Final = 1_000
_FULL_RETRY_S: Final = 5
_BOUNDS: Final = ReplayBounds(1_000, 1_048_576)
_SSE: Final = "text/event-stream"
LINES: Final = "application/jsonl"
_OF_SNAPSHOT: Final = ("ticket", "device")
_OF_EVENTS: Final = ("after", "wait", *_OF_SNAPSHOT)
"""Query parameters."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Redeem: TypeAlias = "Callable[[str, str | None, str], Awaitable[Credentials]]"


@frozen
class _Reader:
    """The reader and its stream, as of its request."""

    shown: Credentials
    principal: Principal
    name: StreamName
    text: str
    grant: StreamGrant
    device: str


@dataclass(slots=True)
class StreamEdge:
    """Answers for streams. ``jitter`` returns numbers from 0 to 1, so that readers do not reconnect at once.

    At most ``most`` event streams are open, and per caller as many as it has ``seats``.
    """

    hub: Hub
    states: States
    access: StreamAccess
    authenticator: Authenticator
    reader: CredentialReader
    redeem: Redeem
    jitter: Callable[[], float]
    links: StreamLinks
    most: int = 20_000
    seats: StreamSeats = field(default_factory=StreamSeats)
    _open: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)

    def drain(self) -> None:
        """Ends every event stream within a second; their readers resume with the last cursor."""
        self._draining = True

    async def finish(self) -> None:
        """Returns when the ends of all streams are recorded."""
        await self.links.finish()

    async def answer_events(self, request: Request) -> Response:
        """Answers with a page, or with a stream of events if the client accepts one."""
        reader = await self._identify(request)
        _refuse_unknown(request, _OF_EVENTS)
        after = request.headers.get("Last-Event-ID") or request.query_params.get("after")
        cursor = None if after is None else parse_cursor(after)
        accepted = request.headers.get("Accept", "")
        if LINES in accepted:
            return await self._answer_lines(reader, cursor)
        if _SSE in accepted:
            if self._open >= self.most:
                self.hub.counts.refused += 1
                raise InstanceFull(
                    "this instance has reached its limit of event streams", _FULL_RETRY_S
                )
            self.seats.judge(reader.principal.key)
            body = self._stream(reader, cursor)
            return StreamingResponse(body, media_type=_SSE, headers=_HEADERS)
        return JSONResponse(await self._poll(reader, cursor, _read_wait_s(request)), 200, _HEADERS)

    async def answer_snapshot(self, request: Request) -> Response:
        """Answers with the state, and the cursor from which to follow it."""
        reader = await self._identify(request)
        _refuse_unknown(request, _OF_SNAPSHOT)
        state = await self._read_state(reader)
        answer = {"stream": reader.text, "cursor": str(state.cursor), "snapshot": state.data}
        return JSONResponse(answer, 200, _HEADERS)

    async def _identify(self, request: Request) -> _Reader:
        shown = self.reader.read_scope(request.scope)
        ticket = request.query_params.get("ticket")
        device = request.query_params.get("device", "")
        if ticket is not None:  # an EventSource cannot set headers
            shown = await self.redeem(ticket, shown.origin, device)
        principal = await self.authenticator.authenticate(shown)
        text = str(request.path_params["stream"])
        name = parse_stream_name(text)
        grant = await self.access.grant(principal, name, full=False)
        device = device or principal.device or NAMELESS
        return _Reader(shown, principal, name, text, grant, device)

    async def _read_state(self, reader: _Reader) -> ReadModelState:
        state = await self.states.read(reader.principal, reader.name, reader.grant)
        if state is None:
            raise NotFound("stream", reader.text)
        return state

    # JSON lines

    async def _answer_lines(self, reader: _Reader, cursor: Cursor | None) -> Response:
        """All events after a cursor, or all of them, one per line. Raises StreamGap."""
        lines = self._write_lines(reader, cursor)
        # The first line shows whether the cursor is valid; if not, the answer is an error.
        first = await anext(lines, b"")
        return StreamingResponse(_join(first, lines), media_type=LINES, headers=_HEADERS)

    async def _write_lines(self, reader: _Reader, cursor: Cursor | None) -> AsyncGenerator[bytes]:
        grant, start = reader.grant, cursor or Start.BEGINNING
        with self.seats.take(reader.principal.key):
            async with self.hub.open(grant.stream, grant.view, start) as position:
                async for item in position:
                    match item:
                        case Page():
                            yield b"".join(
                                escape_breaks(one.entry.data) + b"\n" for one in item.entries
                            )
                        case CursorGap(why=why, top=top):
                            raise StreamGap(reader.text, why.value, str(top) if top else None)
                        case ReplayEnd():
                            return
                        case _:
                            assert_never(item)

    # Long poll

    async def _poll(self, reader: _Reader, cursor: Cursor | None, wait_s: float) -> JsonObject:
        if cursor is None:
            state = await self._read_state(reader)
            top = str(state.cursor)
            return {"events": [], "cursor": top, "more": False, "snapshot": state.data}
        grant = reader.grant
        async with self.hub.open(grant.stream, grant.view, cursor, _BOUNDS) as position:
            page = await self._await_page(reader, position, wait_s)
            reached = position.cursor or cursor
            return {
                "events": [orjson.loads(one.entry.data) for one in page.entries] if page else [],
                "cursor": str(reached),
                "more": position.missed > 0,
            }

    async def _await_page(self, reader: _Reader, position: Position, wait_s: float) -> Page | None:
        """The next page; waits only once the reader has caught up. Raises StreamGap."""
        is_live = False
        while not (is_live and (wait_s == 0 or self._draining)):
            try:
                async with asyncio.timeout(wait_s if is_live else None):
                    item = await anext(position)
            except TimeoutError:
                return None
            match item:
                case Page():
                    return item
                case CursorGap(why=why, top=top):
                    raise StreamGap(reader.text, why.value, str(top) if top else None)
                case ReplayEnd():
                    is_live = True
                case _:
                    assert_never(item)
        return None

    # Server-sent events

    async def _stream(self, reader: _Reader, cursor: Cursor | None) -> AsyncGenerator[bytes]:
        self._open += 1
        link: StreamLink | None = None
        code: CloseCode | None = None
        try:
            # Other streams may have opened since the check: nothing is reserved for a response that never starts.
            with self.seats.take(reader.principal.key):
                yield b"retry: %d\n\n" % (_RETRY_MS * (1 + self.jitter()))
                link = await self.links.open(reader.principal, reader.device, reader.text, cursor)
                async for written in self._follow_on(reader, cursor, link):
                    yield written
            code = CloseCode.DRAIN
        except (CallerError, RemoteError) as error:
            code = CloseCode.REVOKED if isinstance(error, CallerError) else None
            problem = {"code": error.stable_code, "message": error.message}
            yield b"event: error\ndata: %b\n\n" % orjson.dumps(problem)
        finally:
            self._open -= 1
            if link is not None:
                link.end(code)

    async def _follow_on(
        self, reader: _Reader, cursor: Cursor | None, link: StreamLink
    ) -> AsyncGenerator[bytes]:
        """The bytes to write until a drain, across all gaps."""
        if cursor is None:
            state = await self._read_state(reader)
            cursor = state.cursor
            link.begin("snap", cursor)
            yield _write(cursor, orjson.dumps(state.data), b"snap")
        else:
            yield b"id: %b\n\n" % str(cursor).encode()
        while True:
            gap: CursorGap | None = None
            async for item in self._follow(reader, cursor, link):
                if isinstance(item, CursorGap):
                    gap = item
                else:
                    yield item
            if gap is None:
                return
            yield _write_gap(gap)
            self.hub.counts.gaps[gap.why] += 1
            state = await self._read_state(reader)
            cursor = state.cursor
            link.repair(gap, cursor)
            self.hub.counts.repairs += 1
            yield _write(cursor, orjson.dumps(state.data), b"snap")

    async def _follow(
        self, reader: _Reader, cursor: Cursor, link: StreamLink
    ) -> AsyncGenerator[bytes | CursorGap]:
        """The bytes to write, until a gap, a drain, or the loss of the right to it (raised)."""
        loop, grant = asyncio.get_running_loop(), reader.grant
        written_s = checked_s = kept_s = loop.time()
        async with self.hub.open(grant.stream, grant.view, cursor, _BOUNDS) as position:
            missed, is_begun = position.missed, False
            while not self._draining:
                item = await _step(position)
                now_s = loop.time()
                if now_s >= checked_s + RECHECK_S:
                    await self._recheck(reader)
                    checked_s = now_s
                if now_s >= kept_s + KEEP_S:
                    await link.keep()
                    kept_s = now_s
                if isinstance(item, CursorGap):
                    yield item
                    return
                if item is not None and not is_begun:
                    is_begun = True
                    link.begin("resumed", cursor, missed)
                if isinstance(item, Page):
                    written_s = now_s
                    count_deliveries(self.hub.counts, item.entries, 1)
                    yield _write_page(item)
                elif now_s >= written_s + KEEP_ALIVE_S:
                    written_s = now_s
                    yield b": keep-alive\n"

    async def _recheck(self, reader: _Reader) -> None:
        """Repeats the access checks of the request.

        Raises:
            CallerError: the right to the stream was withdrawn.
        """
        try:
            now = await self.authenticator.authenticate(reader.shown)
            if now.key != reader.principal.key:
                raise Unauthenticated("the credential now belongs to another principal")
            await self.access.grant(now, reader.name, full=False)
        except RemoteError:
            return


async def _join(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for lines in rest:
            yield lines


async def _step(position: Position) -> PositionItem | None:
    """The next item; None if none arrived for a moment, or the store was unavailable."""
    try:
        async with asyncio.timeout(_TICK_S):
            return await anext(position)
    except TimeoutError:
        return None
    except StoreUnavailable:
        await asyncio.sleep(_TICK_S)
        return None


def _write_page(page: Page) -> bytes:
    epoch = page.cursor.epoch
    return b"".join(
        _write(Cursor(epoch, one.entry.sequence, one.chain), one.entry.data) for one in page.entries
    )


def _write(cursor: Cursor, data: bytes, event: bytes | None = None) -> bytes:
    """Stored envelopes and the gateway's JSON have no line feeds, so each is one line."""
    named = b"" if event is None else b"event: %b\n" % event
    return b"%bid: %b\ndata: %b\n\n" % (named, str(cursor).encode(), escape_breaks(data))


def _write_gap(gap: CursorGap) -> bytes:
    body = {
        "why": gap.why.value,
        "have": str(gap.have) if gap.have else None,
        "top": str(gap.top) if gap.top else None,
        "first": gap.first,
    }
    return b"event: gap\ndata: %b\n\n" % orjson.dumps(body)


def _refuse_unknown(request: Request, known: tuple[str, ...]) -> None:
    """Raises InvalidInput: a caller that writes ``cursor`` for ``after`` would unknowingly read from the start."""
    for name in request.query_params:
        if name not in known:
            near = find_near(name, known)
            raise InvalidInput(
                name, f"is not known here; did you mean {near}?" if near else "is not known here"
            )


def _read_wait_s(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    if not text.isdecimal() or int(text) > LONGEST_WAIT_S:
        raise InvalidInput("wait", f"0 to {LONGEST_WAIT_S} seconds")
    return float(text)


def make_stream_routes(edge: StreamEdge) -> list[Route]:
    """The routes of the edge."""
    return [
        Route("/v1/streams/{stream}/events", edge.answer_events, methods=["GET"]),
        Route("/v1/streams/{stream}/snapshot", edge.answer_snapshot, methods=["GET"]),
    ]
