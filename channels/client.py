"""The channel client: follows streams across lost links, and hides nothing that the server says.

::

    async with ChannelClient(
        url, token=get_token, device="dev_7f", cursors=FileCursors(path), on_gap=on_gap
    ) as channel:
        async for item in channel.stream("session:se_…"):  # Event | Snapshot | Gap | Live | Delta
            await apply(item)  # your persistence
            await item.ack()  # coalesced
        turn = await channel.call("submit_turn", {...}, idem="k-81")
        result = await channel.answer(action, option="allow_once")

A client always tries to resume, however long it was away; the server alone decides what can be honoured.
It keeps a cursor per stream and takes no event twice. Between two attempts it waits a random time up to
a bound that doubles (full jitter), unless the server named a time. Calls with an idempotency key are sent
again; a call without one that was cut off raises UnknownOutcome.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Self, assert_never, overload

from passerelle.channels.client_answers import compose_answer, read_refusal, read_result
from passerelle.channels.client_calls import CallsInFlight
from passerelle.channels.client_cursors import (
    Cursors,
    FileCursors,
    MemoryCursors,
    SqliteCursors,
)
from passerelle.channels.client_dial import Credential, Dialer, Identity
from passerelle.channels.client_items import (
    AnswerResult,
    AnyItem,
    CallRefused,
    ChannelStopped,
    Connected,
    Connecting,
    Delta,
    Event,
    Gap,
    GapError,
    Item,
    Live,
    Lost,
    Offline,
    OnGap,
    Snapshot,
    Status,
    Stopped,
    StreamClosed,
    UnknownOutcome,
    Unsure,
    Won,
)
from passerelle.channels.client_link import Link
from passerelle.channels.client_streams import Streams
from passerelle.channels.closing import CloseCode, is_retryable
from passerelle.channels.frames import (
    Ack,
    Answer,
    ClientFrame,
    Drain,
    Expiry,
    Failure,
    Refusal,
    Renew,
    Role,
    SayPresence,
    ServerBeat,
    ServerFrame,
    ShowPresence,
    SnapshotWish,
    StartAt,
    Subscribed,
    Unsubscribed,
    Volatile,
    Welcome,
)
from passerelle.channels.frames import Event as EventFrame
from passerelle.channels.frames import Gap as GapFrame
from passerelle.channels.frames import Live as LiveFrame
from passerelle.channels.frames import Snapshot as SnapshotFrame
from passerelle.channels.reverse_frames import (
    AgentCall,
    CallPiece,
    Credit,
    Registered,
    StopWaiting,
    Unregistered,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from ssl import SSLContext
    from types import TracebackType

    from passerelle.core.json import JsonObject
    from passerelle.core.presence import PresenceState

__all__ = [
    "CallRefused",
    "ChannelClient",
    "ChannelStopped",
    "Delta",
    "Event",
    "FileCursors",
    "Gap",
    "GapError",
    "Live",
    "Lost",
    "MemoryCursors",
    "Snapshot",
    "SqliteCursors",
    "StreamClosed",
    "UnknownOutcome",
    "Won",
]


_ACK_EVERY_S: Final = 1.0
_CALL_S: Final = 30.0
_RENEWS_BELOW_S: Final = 60


def _draw() -> float:
    return secrets.randbelow(2**32) / 2**32


class ChannelClient:
    """A device's link to the gateway; use it as an async context manager."""

    def __init__(  # noqa: PLR0913 - each is one property of a link, all but two with a default
        self,
        url: str,
        *,
        device: str,
        token: Credential = None,
        tab: str | None = None,
        role: Role = "ui",
        cursors: Cursors | None = None,
        on_gap: OnGap | None = None,
        on_status: Callable[[Status], None] | None = None,
        on_presence: Callable[[tuple[JsonObject, ...]], None] | None = None,
        jitter: Callable[[], float] = _draw,
        tls: SSLContext | None = None,
    ) -> None:
        """``url`` begins with ws:// or wss://; ``tls`` is whom to trust; ``jitter`` gives numbers from 0 to 1.

        ``on_presence`` is told of all devices of the person that are there, once this one has said that it is.
        """
        identity = Identity(url, device, token, tab, role, tls)
        self._dialer = Dialer(identity, jitter)
        self._cursors = cursors or MemoryCursors()
        self._on_gap = on_gap
        self._on_status = on_status
        self._on_presence = on_presence
        self._presence: SayPresence | None = None
        self._jitter = jitter
        self._status: Status = Connecting()
        self._welcome: Welcome | None = None
        self._streams = Streams()
        self._calls = CallsInFlight()
        self._link: Link | None = None
        self._replacement: asyncio.Task[Link | None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._run_task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        link = self._link
        if link is not None:
            await self._send_acks(link)
            await link.close()
        running = [*self._tasks, *(task for task in (self._run_task, self._replacement) if task)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if not isinstance(self._status, Stopped):
            self._stop(Stopped(CloseCode.NORMAL))

    @property
    def status(self) -> Status:
        """Connecting, Connected (with the streams that still replay), Offline or Stopped."""
        if isinstance(self._status, Connected):
            return Connected(self._streams.replaying)
        return self._status

    @property
    def welcome(self) -> Welcome | None:
        """The last welcome: channel, generation, limits, and the open actions as they were then."""
        return self._welcome

    @overload
    def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotWish | None = None,
        volatile: Literal[False] = False,
    ) -> AsyncIterator[Item]: ...

    @overload
    def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotWish | None = None,
        volatile: Literal[True],
    ) -> AsyncIterator[AnyItem]: ...

    async def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotWish | None = None,
        volatile: bool = False,
    ) -> AsyncIterator[AnyItem]:
        """Follows a stream from its saved cursor, or from ``start`` where none is saved.

        The cursor of an item is saved when the application asks for the next one. With ``volatile`` text on its way
        comes too, as items that have no cursor.

        Raises:
            GapError: a gap came and the client has no ``on_gap``.
            StreamClosed: the server refuses the stream or has ended it.
            ChannelStopped: the client has ended for good.
        """
        if isinstance(self._status, Stopped):
            raise ChannelStopped(self._status)
        saved = self._cursors.load(name)
        followed = self._streams.open(
            name, saved, full=full, start=start, snapshot=snapshot, volatile=volatile
        )
        self._send(self._streams.ask(followed) if self._link else None)
        try:
            while True:
                if followed.is_paused and followed.is_empty and self._link:
                    self._send(self._streams.ask(followed))
                item = await followed.next()
                if isinstance(item, Gap):
                    goes_on = await self._handle(item)
                    yield item
                    if not goes_on:
                        return
                elif isinstance(item, Delta):
                    yield item
                else:
                    yield item
                    self._cursors.save(name, item.cursor)
        finally:
            self._send(*self._streams.close(followed))

    async def call(
        self, method: str, data: JsonObject, *, idem: str | None = None, timeout_s: float = _CALL_S
    ) -> JsonObject:
        """Carries out a command or a read; waits for a link if there is none.

        Raises:
            CallRefused: the server answered with an error.
            UnknownOutcome: cut off without ``idem``.
            TimeoutError: no answer in ``timeout_s``.
        """
        if isinstance(self._status, Stopped):
            raise ChannelStopped(self._status)
        call, result = self._calls.open(method, data, idem)
        try:
            if self._link is not None:
                self._calls.mark_sent(call)
                await self._link.send(call)
            async with asyncio.timeout(timeout_s):
                return await result
        finally:
            self._calls.forget(call)

    async def answer(
        self,
        action: JsonObject,
        *,
        option: str | None = None,
        content: JsonObject | None = None,
        comment: str | None = None,
        timeout_s: float = _CALL_S,
    ) -> AnswerResult:
        """Answers a question as it was shown (``action`` is its view); the first valid answer wins (I7)."""
        decision = f"dec_{secrets.token_hex(13)}"
        data = compose_answer(action, decision, option, content, comment)
        try:
            return read_result(
                await self.call("respond_action", data, idem=decision, timeout_s=timeout_s)
            )
        except CallRefused as error:
            return read_refusal(error)
        except TimeoutError:
            asked: JsonObject = {"actionId": action["actionId"]}
            return Unsure(await self.call("get_action", asked, timeout_s=timeout_s))

    def say_presence(self, state: PresenceState, focus: Iterable[str] = ()) -> None:
        """Says who sits before this device, and which streams they look at; holds until it is said otherwise."""
        self._presence = SayPresence(state, frozenset(focus))
        self._send(self._presence)

    # Streams

    async def _handle(self, gap: Gap) -> bool:
        if self._on_gap is None:
            raise GapError(gap)
        return await self._on_gap(gap) == "snapshot"

    async def _send_acks(self, link: Link) -> None:
        cursors = self._streams.take_acks()
        if cursors:
            await link.send(Ack(cursors))

    async def _send_acks_at_intervals(self, link: Link) -> None:
        while True:
            await self._streams.ack_owed.wait()
            self._streams.ack_owed.clear()
            await self._send_acks(link)
            await asyncio.sleep(_ACK_EVERY_S)

    # Links

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dialled = await self._await_replacement() or await self._dial()
            if isinstance(dialled, Link):
                begun_s = loop.time()
                await self._serve(dialled)
                self._dialer.note(loop.time() - begun_s)
                ended = Stopped(dialled.close_code)
            else:
                ended = dialled
            if self._replacement is not None:
                continue
            if not is_retryable(ended.code):
                self._stop(ended)
                return
            pause_s = self._dialer.choose_pause_s()
            self._set_status(Offline(ended.code, pause_s))
            await asyncio.sleep(pause_s)
            self._set_status(Connecting())

    async def _await_replacement(self) -> Link | None:
        replacement, self._replacement = self._replacement, None
        return None if replacement is None else await replacement

    async def _dial(self) -> Link | Stopped:
        """Asks for every stream where we are; those that are opened meanwhile are asked for after the welcome."""
        asks = self._streams.ask_all()
        return await self._dialer.dial(asks, self._welcome.resume if self._welcome else None)

    async def _serve(self, link: Link) -> None:
        """Reads a link until it ends."""
        self._link, self._welcome = link, link.welcome
        self._set_status(Connected(self._streams.replaying))
        helpers = [
            asyncio.create_task(link.beat(self._jitter, self._streams.take_acks)),
            asyncio.create_task(self._send_acks_at_intervals(link)),
        ]
        try:
            await self._catch_up(link)
            async for frame in link.read():
                await self._take(link, frame)
        finally:
            self._link = None
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._calls.cut()

    async def _catch_up(self, link: Link) -> None:
        """Sends what came up while there was no link, and what a link forgets."""
        if self._presence is not None:
            await link.send(self._presence)
        for call in self._calls.unanswered():
            self._calls.mark_sent(call)
            await link.send(call)
        for ask in self._streams.ask_rest():
            await link.send(ask)

    async def _take(self, link: Link, frame: ServerFrame) -> None:  # noqa: C901 - one arm per frame of the closed union
        match frame:
            case (
                EventFrame()
                | LiveFrame()
                | GapFrame()
                | SnapshotFrame()
                | Subscribed()
                | Volatile()
            ):
                for answer in self._streams.take(frame):
                    await link.send(answer)
            case Unsubscribed(stream, code):
                self._streams.end(stream, code)
            case Refusal():
                self._take_refusal(frame)
            case ServerBeat(_, cursors):
                self._streams.pass_over(cursors)
            case Answer() | Failure():
                self._calls.settle(frame)
            case Expiry() | Drain():
                await self._take_notice(link, frame)
            case ShowPresence(_, devices):
                if self._on_presence is not None:
                    self._on_presence(devices)
            case Welcome():
                return
            case (
                Registered() | Unregistered() | AgentCall() | Credit() | StopWaiting() | CallPiece()
            ):
                return  # for agents; this client never says that it is one
            case _:
                assert_never(frame)

    def _take_refusal(self, refusal: Refusal) -> None:
        if refusal.fatal:
            self._dialer.retry_s = refusal.retry_s
        elif refusal.of == "sub" and refusal.stream is not None:
            self._streams.end(refusal.stream, refusal.code)

    async def _take_notice(self, link: Link, notice: Expiry | Drain) -> None:
        if isinstance(notice, Expiry):
            await self._renew(link, notice.expires_s)
        elif self._replacement is None:
            self._replacement = asyncio.create_task(self._replace(link, notice))

    async def _renew(self, link: Link, expires_s: int) -> None:
        """Shows a new token before the old one ends; a token that was given as a text is the only one there is."""
        if expires_s <= _RENEWS_BELOW_S and (token := await self._dialer.renew()) is not None:
            await link.send(Renew(token))

    async def _replace(self, link: Link, drain: Drain) -> Link | None:
        """Opens the next link first and closes the old one then, so that there is no hole between them."""
        await asyncio.sleep(drain.jitter_ms / 1000 * self._jitter())
        fresh = await self._dial()
        with suppress(OSError):
            await link.close()
        return fresh if isinstance(fresh, Link) else None

    def _stop(self, status: Stopped) -> None:
        self._set_status(status)
        error = ChannelStopped(status)
        self._calls.fail(error)
        self._streams.end_all(error)

    def _set_status(self, status: Status) -> None:
        self._status = status
        if self._on_status is not None:
            self._on_status(status)

    def _send(self, *frames: ClientFrame | None) -> None:
        """Sends in order, behind whoever calls; without a link there is nothing to say it to."""
        link = self._link
        if link is not None:
            task = asyncio.create_task(_send_all(link, frames))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _send_all(link: Link, frames: tuple[ClientFrame | None, ...]) -> None:
    for frame in frames:
        if frame is not None:
            await link.send(frame)
