"""One HTTP/1.1 connection to a peer that sends requests and reads whole answers, one at a time.

For calls with one answer. aiohttp carries streams and all rare cases; for one small answer its session, request and
response objects cost more than the answer does. Not supported: redirects, cookies, proxies, pipelining, retries.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from passerelle.core.wire.record import value
from passerelle.peers.call import AgentReply

if TYPE_CHECKING:
    from passerelle.runtime.memory.room import MemoryAccount, Reservation

_START: Final = b"HTTP/1.1 200 "
_LENGTH_VALUE: Final = b"\r\ncontent-length: "
_END: Final = b"\r\n\r\n"


@value
class AnswerHead:
    """A head of ``size`` bytes in two pieces, with the length of the body from ``at`` to ``end`` between them.

    A server writes the same head again during each second of its Date header; only the length of the body differs. Once
    parsed, such a head need not be parsed again.
    """

    before: bytes
    after: bytes
    at: int
    end: int
    size: int

    def read_length(self, data: bytes) -> int:
        """The length of the body in an answer that starts with this head; -1 if it starts differently.

        A length with fewer or more digits makes a head of another size, which does not match.
        """
        at, end = self.at, self.end
        if data[:at] != self.before or data[end : self.size] != self.after:
            return -1
        length = data[at:end]
        return int(length) if length.isdigit() else -1


def learn_head(first: bytes, body_bytes: int, read_bytes: int) -> AnswerHead | None:
    """The head of an answer from its first piece; None if it cannot be reused.

    The parser took ``read_bytes`` for a whole answer with a body of ``body_bytes``. An interim answer before it, a
    trailer or another answer behind it changes that sum.
    """
    size = first.find(_END) + len(_END)
    if size + body_bytes != read_bytes or not first.startswith(_START):
        return None
    length = b"%d" % body_bytes
    found = first[: size - 2].lower().find(b"%b%b\r\n" % (_LENGTH_VALUE, length))
    if found < 0:
        return None
    at = found + len(_LENGTH_VALUE)
    end = at + len(length)
    return AnswerHead(first[:at], first[end:size], at, end, size)


MAX_HEADER_BYTES: Final = 64 * 1024
_EXTENSIONS: Final = (b"a2a-extensions", b"x-a2a-extensions")
_KEPT: Final = frozenset({b"retry-after", b"content-encoding", b"content-length", *_EXTENSIONS})
_LENGTH: Final = {b"content-length"}
FREE_BYTES: Final = 262_144
"""Bytes that each answer may have without drawing from the memory budget."""
TIMES: Final = 2
"""An answer is held twice: as received, and as parsed."""
GAVE_WAY: Final = "it arrived too slowly while others waited for memory"
_OK: Final = int(HTTPStatus.OK)
"""Lower statuses are interim answers."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class NotConnected(Exception):
    """There is no connection: nothing was sent."""


class HeldBack(NotConnected):
    """There is one, but the request must not be sent now, or not at all: see ``core.peer.SendGuard``."""

    def __init__(self) -> None:
        super().__init__("the request must not be sent now")


class ConnectionLost(Exception):
    """The connection ended between a request and the end of its answer: it is unknown whether it was accepted."""


class GaveWay(ConnectionLost):
    """The gateway ended it: other answers waited for the memory of this one."""

    def __init__(self) -> None:
        super().__init__(GAVE_WAY)


class NotReadable(Exception):
    """The answer cannot be read; ``head`` is the beginning of its body, if that was ``too_long``."""

    def __init__(self, reason: str, head: bytes = b"", *, too_long: bool = False) -> None:
        super().__init__(reason)
        self.head = head
        self.too_long = too_long


class _Parser(Protocol):
    """The used part of httptools' parser, which has no types."""

    def feed_data(self, data: bytes) -> None: ...
    def get_status_code(self) -> int: ...
    def should_keep_alive(self) -> bool: ...


class PeerConnection(asyncio.Protocol):
    """One connection, with one parser and one timer for all its answers.

    ``keeps_alive`` states whether another request may be sent, as far as the answers tell; ``free_since_s`` is for its
    pool.
    """

    def __init__(
        self, limit_bytes: int, loop: asyncio.AbstractEventLoop, room: MemoryAccount | None = None
    ) -> None:
        self._limit_bytes = limit_bytes
        self._room = room
        self._reservation: Reservation | None = None
        self._loop = loop
        self._parser = cast("_Parser", httptools.HttpResponseParser(self))
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[AgentReply] | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._known: AnswerHead | None = None
        self._reset()
        self.keeps_alive = True
        self.free_since_s = 0.0

    def _reset(self) -> None:
        self._first = b""
        self._read_bytes = 0
        self._wanted_bytes = -1
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._unread_bytes = 0
        self._in_body = False
        self._is_late = False
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        transport = self._transport
        return self.keeps_alive and transport is not None and not transport.is_closing()

    def close(self) -> None:
        """Closes the socket at once; a request in progress gets ``ConnectionLost``."""
        self.keeps_alive = False
        if self._transport is not None:
            self._transport.abort()

    def ask(self, request: bytes, deadline_s: float) -> asyncio.Future[AgentReply]:
        """Sends a request, for an answer by ``deadline_s`` of the loop's clock. A caller that gives up must ``close``.

        The future raises ``ConnectionLost``, ``NotReadable`` or ``TimeoutError``: then the connection is unusable.

        Raises:
            NotConnected: the connection was closed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotConnected("the connection was closed")
        waiter: asyncio.Future[AgentReply] = self._loop.create_future()
        self._waiter, self._deadline_s = waiter, deadline_s
        # A running timer fires early enough, and is set again.
        if self._timer is None or self._timer_at_s > deadline_s:
            self._watch()
        transport.write(request)
        return waiter

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = self._deadline_s
        self._timer = self._loop.call_at(self._deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline_s:
            self._watch()
        else:
            self._fail(TimeoutError())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            # No request is open: these bytes would be read as the answer to the next one.
            self.close()
            return
        if self._wanted_bytes >= 0:
            self._take_more(data)
            return
        if not self._read_bytes:
            known = self._known
            wanted_bytes = -1 if known is None else known.read_length(data)
            if known is not None and 0 <= wanted_bytes <= self._limit_bytes:
                # The parser keeps its state.
                if known.size + wanted_bytes == len(data):
                    self._answer(AgentReply(_OK, None, data[known.size :]))
                    return
                self._wanted_bytes = wanted_bytes
                # Many servers send head and body separately.
                if len(data) > known.size:
                    self._take_more(data[known.size :])
                return
            self._first = data
        size = len(data)
        self._read_bytes += size
        self._unread_bytes += size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NotReadable(f"not HTTP ({error})"))
        # The parser buffers an endless header or trailer, and reports nothing before its end.
        if max(self._head_bytes, self._unread_bytes) > MAX_HEADER_BYTES:
            self._fail(NotReadable("a header block over 64 KiB"))
            self.close()

    def _take_more(self, piece: bytes) -> None:
        """Takes a piece of the body after a known head."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < self._wanted_bytes:
            if self._size > FREE_BYTES and self._reservation is None:
                self._reserve(self._wanted_bytes)
            return
        if self._size > self._wanted_bytes:
            # The rest would be read as the answer to the next request.
            self.keeps_alive = False
        raw = b"".join(self._pieces)[: self._wanted_bytes]
        # The parser has seen none of these bytes; reset only this state.
        self._wanted_bytes, self._pieces, self._size = -1, [], 0
        self._answer(AgentReply(_OK, None, raw))

    def eof_received(self) -> None:
        if self._in_body and not self._has_length():
            self.keeps_alive = False
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        reason = f"{type(exc).__name__}: {exc}" if exc else "the connection was closed"
        self._fail(ConnectionLost(reason))

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        if self._waiter is None:
            # A second answer to one request: its rest would be read as the answer to the next one.
            self.keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        lower = name.lower()
        if lower in _KEPT:
            self._headers[lower] = value
        elif lower == b"transfer-encoding":
            self._headers[b"content-length"] = b""

    def on_headers_complete(self) -> None:
        if self._head_bytes > MAX_HEADER_BYTES:
            self._fail(NotReadable("a header block over 64 KiB"))
        self._in_body = self._parser.get_status_code() >= _OK
        self._unread_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        if self._waiter is None:
            return  # it has failed, and its caller is about to close
        self._pieces.append(body)
        self._size += len(body)
        if self._size > self._limit_bytes:
            self._fail(self._make_too_long_error(self._pieces[0]))
        elif self._reservation is None and (self._is_packed() or self._size > FREE_BYTES):
            announced = b"" if self._is_packed() else self._headers.get(b"content-length", b"")
            self._reserve(int(announced) if announced.isdigit() else self._limit_bytes)

    def on_message_complete(self) -> None:
        if not self._in_body:
            self._headers.clear()  # an interim answer, such as 100: the real one follows
            return
        if self._waiter is not None:
            self.keeps_alive = self._parser.should_keep_alive()
            # It may have ended while it waits for memory.
            self._is_late = self._reservation is not None and not self._reservation.granted
            if not self._is_late:
                self._finish()

    def _is_packed(self) -> bool:
        return self._headers.get(b"content-encoding", b"identity") != b"identity"

    def _has_length(self) -> bool:
        return b"content-length" in self._headers

    def _finish(self) -> None:
        status, headers, raw = self._parser.get_status_code(), self._headers, b"".join(self._pieces)
        first, read_bytes, is_packed = self._first, self._read_bytes, self._is_packed()
        self._reset()
        if is_packed:
            try:
                raw = self._unpack(raw)
            except NotReadable as fault:
                self._fail(fault)
        if status == _OK and self.keeps_alive and headers.keys() == _LENGTH:
            self._known = learn_head(first, len(raw), read_bytes) or self._known
        retry_after = headers.get(b"retry-after")
        activated = [headers[name].decode("latin-1") for name in _EXTENSIONS if name in headers]
        self._answer(
            AgentReply(
                status,
                None if retry_after is None else retry_after.decode("latin-1"),
                raw,
                ",".join(activated) or None,
            )
        )

    def _answer(self, reply: AgentReply) -> None:
        waiter, self._waiter = self._waiter, None
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reply = replace(reply, hold=reservation.settle(TIMES * len(reply.raw)))
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def _reserve(self, wanted_bytes: int) -> None:
        """Pauses reading until there is memory for the whole answer, and for its parsed form."""
        if self._room is None:
            return
        amount = TIMES * min(wanted_bytes, self._limit_bytes)
        self._reservation = self._room.reserve(amount, self._resume_reading, self._preempt)
        if not self._reservation.granted and self._transport is not None:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
        if self._is_late:
            self._finish()

    def _preempt(self) -> None:
        self._fail(GaveWay())
        self.close()

    def _unpack(self, raw: bytes) -> bytes:
        """Unpacks at most ``limit_bytes``, so that a small bomb cannot become a large one."""
        unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            unpacked = unpacking.decompress(raw, self._limit_bytes + 1)
        except zlib.error as error:
            raise NotReadable(f"a body that cannot be decompressed ({error})") from None
        if len(unpacked) > self._limit_bytes:
            raise self._make_too_long_error(unpacked)
        return unpacked

    def _make_too_long_error(self, head: bytes) -> NotReadable:
        return NotReadable(f"a body over {self._limit_bytes} bytes", head, too_long=True)

    def _fail(self, error: Exception) -> None:
        self.keeps_alive = self._is_late = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            if not reservation.granted:
                self._resume_reading()
            reservation.release()
