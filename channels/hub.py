"""The hub of an instance: all readers of a stream, channels and A2A streams, read through it.

A stream goes ``cold → opening → live → lingering``. All readers share one opening. After the last reader left, the
stream lingers, so that a page reload finds a warm ring; then the hints end.

Every stream is audited at intervals, and at once after hints may have been lost: a lost hint delays events by one audit
at most, and loses none. Equal page reads share one call; equal means the whole cursor, since two readers at one
sequence with different chains get different answers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Self, TypeAlias, assert_never

from passerelle.channels.counts import ChannelCounts
from passerelle.channels.cursor_check import CursorBroken, CursorHeld
from passerelle.channels.fanout import Fanout
from passerelle.channels.follower import Follower, FollowerDependencies, read_verified
from passerelle.channels.pages import Stretches
from passerelle.channels.position import Position, ReplayBounds
from passerelle.channels.ring import RingBounds
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import StoreUnavailable
from passerelle.core.event_chain import start_chain
from passerelle.core.frozen import frozen
from passerelle.protocol.concurrency import cancel_all
from passerelle.protocol.cursor import Cursor, GapReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from passerelle.channels.follower import StreamReads
    from passerelle.channels.ring import Ring
    from passerelle.channels.views import View
    from passerelle.core.ids import Shard
    from passerelle.core.ports.log import Hints, StreamRef


_AUDITED_AT_ONCE: Final = 25
_BETWEEN_AUDITS_S: Final = 0.005
"""Thousands of streams are audited in small batches, so that events are delivered in between."""


class Start(Enum):
    """Where a reader without a cursor begins."""

    LIVE = auto()
    """After the last event."""
    BEGINNING = auto()
    """Before the first event; a trimmed stream answers with a gap."""


From: TypeAlias = Cursor | Start


@frozen
class HubSettings:
    """Times in seconds; ``jitter`` returns the random part of an interval, from 0 to 1."""

    jitter: Callable[[], float]
    audit_s: float = 30.0
    linger_s: float = 30.0
    open_s: float = 5.0
    """Timeout for the confirmation of a subscription."""
    retry_s: float = 1.0
    hint_s: float = 0.1
    """How long after an event was stored its hint may arrive."""
    bounds: RingBounds = field(default_factory=RingBounds)


class SharedFollower:
    """A follower with a count of its readers and shared page reads."""

    def __init__(self, follower: Follower, log: StreamReads, counts: ChannelCounts) -> None:
        self.follower = follower
        self.opening: asyncio.Task[None] | None = None
        self.readers = 0
        self.linger: asyncio.TimerHandle | None = None
        self._log = log
        self._reads: dict[Cursor, asyncio.Task[CursorHeld | CursorBroken]] = {}
        self.stretches = Stretches()
        self.fanout = Fanout(lambda: follower.ring, counts)
        follower.on_change = self.fanout.take_change

    @property
    def ring(self) -> Ring | None:
        return self.follower.ring

    @property
    def changed(self) -> asyncio.Event:
        return self.follower.changed

    async def read_on(self) -> None:
        await self.follower.read_on()

    async def read_page(self, cursor: Cursor) -> CursorHeld | CursorBroken:
        read = self._reads.get(cursor)
        if read is None:
            read = asyncio.create_task(read_verified(self._log, self.follower.stream, cursor))
            self._reads[cursor] = read
            read.add_done_callback(lambda done: self._forget(cursor, done))
        return await asyncio.shield(read)

    def _forget(self, cursor: Cursor, done: asyncio.Task[CursorHeld | CursorBroken]) -> None:
        del self._reads[cursor]
        if not done.cancelled():
            done.exception()  # waiting readers get the exception; retrieved here for those that left

    async def stop_reads(self) -> None:
        await cancel_all(self._reads.values())


class Hub:
    """``async with Hub(...) as hub``, then ``async with hub.open(...) as position`` for each reader."""

    def __init__(
        self,
        log: StreamReads,
        hints: Hints,
        settings: HubSettings,
        on_lost: Callable[[StreamRef, GapReason], None] = lambda _stream, _why: None,
    ) -> None:
        self.counts = ChannelCounts()
        self._log = log
        self._hints = hints
        self._settings = settings
        self._on_lost = on_lost
        self._followed: dict[StreamRef, SharedFollower] = {}
        self._closing: dict[StreamRef, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._audit_now = asyncio.Event()
        self._shards: dict[Shard, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._hints.on_loss(self.audit_soon)
        self._spawn(self._audit_at_intervals())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for followed in tuple(self._followed.values()):  # readers leave meanwhile
            if followed.linger is not None:
                followed.linger.cancel()
            await followed.stop_reads()
        await cancel_all(self._tasks)

    @property
    def streams(self) -> int:
        """Number of streams that are followed or linger."""
        return len(self._followed)

    @property
    def ring_bytes(self) -> int:
        """Size of all rings."""
        rings = (one.ring for one in self._followed.values())
        return sum(ring.size_bytes for ring in rings if ring is not None)

    def audit_soon(self) -> None:
        """Audits every stream now: hints may have been lost, or a shard may have lost writes."""
        self._audit_now.set()

    def open(
        self,
        stream: StreamRef,
        view: View,
        start: From,
        bounds: ReplayBounds | None = None,
    ) -> StreamReading:
        """A position on ``stream``; leaving the context releases it.

        The caller has authorized the stream. A stream that does not exist can be opened as well, and its position
        yields a gap. Raises StoreUnavailable if the stream cannot be opened.
        """
        return StreamReading(self, stream, view, start, bounds)

    async def acquire(self, stream: StreamRef) -> SharedFollower:
        """The stream, followed until ``release``.

        Raises:
            StoreUnavailable: it cannot be opened.
        """
        # The late end of the old hints would end the new ones as well.
        while (closing := self._closing.get(stream)) is not None and not closing.done():
            await asyncio.wait([closing])
        followed = self._followed.get(stream)
        if followed is None:
            followed = SharedFollower(
                Follower(stream, self._make_dependencies()), self._log, self.counts
            )
            self._followed[stream] = followed
            followed.opening = asyncio.create_task(self._open(followed))
            self._own(followed.opening)
        if followed.linger is not None:
            followed.linger.cancel()
            followed.linger = None
        followed.readers += 1
        try:
            if followed.opening is not None:
                await asyncio.shield(followed.opening)
        except BaseException:
            self.release(stream, followed)
            raise
        return followed

    async def _open(self, followed: SharedFollower) -> None:
        stream = followed.follower.stream
        try:
            async with asyncio.timeout(self._settings.open_s):
                await self._watch_losses(stream.shard)
                await followed.follower.open()
        except (StoreUnavailable, TimeoutError) as error:
            if self._followed.get(stream) is followed:
                del self._followed[stream]
            self._close(followed)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("a subscription was not confirmed", "no") from error
            raise
        followed.opening = None

    async def _watch_losses(self, shard: Shard) -> None:
        """Subscribes to a shard once: a new epoch means that a loss was proven, so every open stream is audited."""
        listening = self._shards.get(shard)
        if listening is None or (listening.done() and not _has_worked(listening)):
            listening = asyncio.create_task(
                self._hints.subscribe_shard(shard, lambda _epoch: self.audit_soon())
            )
            self._shards[shard] = listening
            self._own(listening)
        await asyncio.shield(listening)

    def release(self, stream: StreamRef, followed: SharedFollower) -> None:
        """Removes one reader; after the last one the stream lingers."""
        followed.readers -= 1
        if followed.readers > 0 or self._followed.get(stream) is not followed:
            return
        loop = asyncio.get_running_loop()
        followed.linger = loop.call_later(self._settings.linger_s, self._expire, stream, followed)

    def _expire(self, stream: StreamRef, followed: SharedFollower) -> None:
        del self._followed[stream]
        self._close(followed)

    def _close(self, followed: SharedFollower) -> None:
        stream = followed.follower.stream
        task = asyncio.create_task(followed.follower.close())
        self._closing[stream] = task
        task.add_done_callback(lambda done: self._forget_closing(stream, done))
        self._own(task)

    def _forget_closing(self, stream: StreamRef, done: asyncio.Task[None]) -> None:
        if self._closing.get(stream) is done:
            del self._closing[stream]

    def _make_dependencies(self) -> FollowerDependencies:
        settings = self._settings
        return FollowerDependencies(
            self._log,
            self._hints,
            settings.bounds,
            self._spawn,
            self._on_lost,
            self.counts,
            settings.retry_s,
            settings.hint_s,
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._own(asyncio.create_task(work))

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._disown)

    def _disown(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreUnavailable):
            task.get_loop().call_exception_handler(
                {"message": "a task of the hub failed", "exception": error, "task": task}
            )

    async def _audit_at_intervals(self) -> None:
        while True:
            pause = self._settings.audit_s * (0.75 + 0.5 * self._settings.jitter())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._audit_now.wait()
            self._audit_now.clear()
            await self._audit_all()

    async def _audit_all(self) -> None:
        # In a function of its own, so that the audited followers are not referenced until the next audit.
        open_now = [one.follower for one in self._followed.values() if one.opening is None]
        for number, part in enumerate(in_chunks(open_now, _AUDITED_AT_ONCE)):
            if number:
                await asyncio.sleep(_BETWEEN_AUDITS_S)
            await asyncio.gather(*(_audit(follower) for follower in part))


class StreamReading:
    """One reader of a stream: ``async with`` returns its position."""

    __slots__ = ("_bounds", "_followed", "_hub", "_start", "_stream", "_view")

    def __init__(
        self, hub: Hub, stream: StreamRef, view: View, start: From, bounds: ReplayBounds | None
    ) -> None:
        self._hub = hub
        self._stream = stream
        self._view = view
        self._start = start
        self._bounds = bounds
        self._followed: SharedFollower | None = None

    async def __aenter__(self) -> Position:
        self._followed = followed = await self._hub.acquire(self._stream)
        return Position(followed, self._view, _locate(followed.ring, self._start), self._bounds)

    async def __aexit__(self, *_: object) -> None:
        followed, self._followed = self._followed, None
        if followed is not None:
            self._hub.release(self._stream, followed)


def _has_worked(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None


async def _audit(follower: Follower) -> None:
    with suppress(StoreUnavailable):  # the next round retries, and a restored connection at once
        await follower.audit()


def _locate(ring: Ring | None, start: From) -> Cursor | None:
    match start:
        case Cursor():
            return start
        case Start.LIVE:
            return ring.end if ring else None
        case Start.BEGINNING:
            return Cursor(ring.end.epoch, 0, start_chain(ring.end.epoch)) if ring else None
        case _:
            assert_never(start)
