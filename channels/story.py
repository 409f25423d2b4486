"""Facts about a link itself (EXT-8): it started, resumed, was repaired, ended.

``LinkStory`` is pure: it observes the frames sent to the client, and derives the facts. How a link started is known
when every stream of its ``hello`` was answered; a link that ends earlier records what is known then. ``LinkFactWriter``
writes the facts one after another, during the link and at its end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Gap, Mode, Refusal, Snapshot, Subscribed, Unsubscribed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.channels.inputs import NoticeDue
    from passerelle.channels.services import ChannelLink, LinkFacts
    from passerelle.core.payloads.channel import EndReason
    from passerelle.protocol.cursor import Cursor, GapReason
    from passerelle.protocol.frames import Subscribe

_REASONS: Final[Mapping[CloseCode, EndReason]] = {
    CloseCode.DRAIN: "drained",
    CloseCode.HEARTBEAT_MISSED: "heartbeat_lost",
    CloseCode.TOO_SLOW: "slow",
    CloseCode.SUPERSEDED: "superseded",
    CloseCode.TOKEN_EXPIRED: "revoked",
    CloseCode.BAD_CREDENTIALS: "revoked",
    CloseCode.FORBIDDEN: "revoked",
    CloseCode.REVOKED: "revoked",
    CloseCode.MALFORMED: "refused",
    CloseCode.RATE_LIMIT: "refused",
    CloseCode.FRAME_TOO_LARGE: "refused",
    CloseCode.REPEATED_REFUSALS: "refused",
}
"""Any other close code is a fault of the gateway, which the client sees as a lost connection."""


@frozen
class StreamResumed:
    """Where one stream of a ``hello`` resumed: from a sequence to the end known at that time."""

    stream: str
    mode: Mode
    begins: int
    ends: int


@frozen
class LinkStarted:
    """The link started. ``resumed``: it came back with a token, a cursor or an ack."""

    resumed: bool
    streams: tuple[StreamResumed, ...]


@frozen
class StreamRepaired:
    """A gap was announced and a snapshot replaced the missing events (CHN-4)."""

    stream: str
    why: GapReason
    have: Cursor | None
    top: Cursor


@frozen
class LinkEnded:
    """The link ended; ``acked`` is the last acknowledged sequence of each stream."""

    reason: EndReason
    code: int | None
    acked: Mapping[str, int]


LinkFact: TypeAlias = LinkStarted | StreamRepaired | LinkEnded


@dataclass(slots=True)
class LinkStory:
    """Derives the facts of one admitted connection; ``continues``: its resume token was valid."""

    continues: bool
    asked: Iterable[Subscribe]
    _waiting: dict[str, Cursor | None] = field(init=False)
    _streams: list[StreamResumed] = field(default_factory=list[StreamResumed])
    _gaps: dict[str, Gap] = field(default_factory=dict[str, Gap])
    _acked: dict[str, int] = field(default_factory=dict[str, int])
    _has_started: bool = False

    def __post_init__(self) -> None:
        self._waiting = {ask.stream: ask.cursor for ask in self.asked}

    def begin(self) -> tuple[LinkFact, ...]:
        """The facts at the welcome."""
        return self._start_when_answered()

    def take(self, notice: NoticeDue) -> tuple[LinkFact, ...]:
        """A frame about a stream was sent to the client."""
        match notice.frame:
            case Subscribed() as answer:
                self._answer(answer)
            case Unsubscribed(stream):
                self._waiting.pop(stream, None)
            case Refusal(of="sub", stream=str() as stream):
                self._waiting.pop(stream, None)
            case Gap() as gap:
                self._gaps[gap.stream] = gap
            case Snapshot(stream, cursor) if stream in self._gaps:
                gap = self._gaps.pop(stream)
                repaired = StreamRepaired(stream, gap.why, gap.have, cursor)
                return (*self._start_when_answered(), repaired)
            case _:
                return ()
        return self._start_when_answered()

    def note_acks(self, cursors: Mapping[str, Cursor]) -> None:
        """Acknowledged positions are being stored."""
        self._acked.update({stream: cursor.sequence for stream, cursor in cursors.items()})

    def end(self, code: CloseCode | None, *, left: bool) -> tuple[LinkFact, ...]:
        """The socket is closed: by the gateway with ``code``, else by the client, cleanly (``left``) or not."""
        self._waiting.clear()
        gone: EndReason = "left" if left else "connection_lost"
        reason: EndReason = gone if code is None else _REASONS.get(code, "connection_lost")
        over = LinkEnded(reason, None if code is None else int(code), self._acked)
        return (*self._start_when_answered(), over)

    def _answer(self, answer: Subscribed) -> None:
        if answer.stream not in self._waiting:
            return
        asked = self._waiting.pop(answer.stream)
        begins = (asked or answer.cursor).sequence
        ends = answer.cursor.sequence + answer.missed
        self._streams.append(StreamResumed(answer.stream, answer.mode, begins, ends))

    def _start_when_answered(self) -> tuple[LinkFact, ...]:
        if self._has_started or self._waiting:
            return ()
        self._has_started = True
        modes = {one.mode for one in self._streams}
        resumed = self.continues or bool(modes & {"resumed", "acked", "gap"})
        return (LinkStarted(resumed, tuple(self._streams)),)


class LinkFactWriter:
    """The unwritten facts of one link. It references no owner, so an ended link leaves no reference cycle.

    A write that has begun is not cancelled when the link ends, and has no task of its own: hundreds of links start at
    once.
    """

    __slots__ = ("_links", "_waiting_facts", "_write")

    def __init__(self, links: LinkFacts) -> None:
        self._links = links
        self._waiting_facts: list[LinkFact] = []
        self._write: asyncio.Future[None] | None = None

    def add(self, link: ChannelLink, facts: Iterable[LinkFact]) -> None:
        """Queues facts behind those that wait."""
        self._waiting_facts += facts
        if self._write is None:
            self._write_next(link)

    async def finish(self, link: ChannelLink, facts: Iterable[LinkFact], within_s: float) -> None:
        """Queues the last facts; returns when all are written, or after ``within_s``: the rest is dropped then."""
        self.add(link, facts)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._write is not None:
                    await asyncio.wait([self._write])
        self._waiting_facts.clear()

    def _write_next(self, link: ChannelLink) -> None:
        if self._waiting_facts:
            self._write = self._links.record(link, self._waiting_facts.pop(0))
            self._write.add_done_callback(partial(self._take_end, link))

    def _take_end(self, link: ChannelLink, written: asyncio.Future[None]) -> None:
        self._write = None
        self._write_next(link)
        error = written.exception()
        if error is not None and not isinstance(
            error, StoreUnavailable
        ):  # outages are logged elsewhere
            structlog.get_logger().error("channel.fault", channel=link.channel, exc_info=error)
