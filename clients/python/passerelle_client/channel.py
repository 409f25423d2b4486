"""The channel client: follows streams across reconnects, and reports every gap and refusal of the server.

::

    async with ChannelClient(
        url, token=get_token, device="dev_7f", cursors=FileCursors(path), on_gap=on_gap
    ) as channel:
        async for item in channel.stream("session:se_…"):  # Event | Snapshot | Gap | Live | Delta
            await apply(item)  # your persistence
            await item.ack()  # coalesced
        turn = await channel.call("submit_turn", {...}, idem="k-81")
        result = await channel.answer(action, option="allow_once")

A client always tries to resume, however long it was offline; the server decides whether it can.
It keeps a cursor per stream and delivers no event twice. Between two attempts it waits a random time up to
a bound that doubles (full jitter), unless the server sets a time. Calls with an idempotency key are sent
again after a lost link; a call without one raises UnknownOutcome.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, Literal, Self, overload

from passerelle.client.answers import compose_answer, read_refusal, read_result
from passerelle.client.cursor_stores import (
    Cursors,
    FileCursors,
    MemoryCursors,
    SqliteCursors,
)
from passerelle.client.dialer import Credential, Identity
from passerelle.client.exchange import Exchange
from passerelle.client.items import (
    AnswerResult,
    AnyItem,
    CallRefused,
    ChannelStopped,
    Connected,
    Delta,
    Event,
    Gap,
    GapError,
    Item,
    LinkStatus,
    Live,
    Lost,
    OnGap,
    Refused,
    Replayed,
    Snapshot,
    Stopped,
    StreamClosed,
    UnknownOutcome,
    Unsure,
    Won,
)
from passerelle.client.keeper import LinkKeeper, draw
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.concurrency import cancel_all
from passerelle.protocol.frames import (
    Call,
    Role,
    SayPresence,
    SnapshotPolicy,
    StartAt,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from ssl import SSLContext

    from passerelle.core.vocabulary import PresenceState, WithdrawalReason
    from passerelle.core.wire.json import JsonObject

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
    "Refused",
    "Replayed",
    "Snapshot",
    "SqliteCursors",
    "StreamClosed",
    "UnknownOutcome",
    "Unsure",
    "Won",
]


_CALL_S: Final = 30.0


class ChannelClient:
    """A device's link to the gateway. Use it as an async context manager."""

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
        on_status: Callable[[LinkStatus], None] | None = None,
        on_presence: Callable[[tuple[JsonObject, ...]], None] | None = None,
        on_withdrawn: Callable[[str, WithdrawalReason], None] | None = None,
        jitter: Callable[[], float] = draw,
        tls: SSLContext | None = None,
    ) -> None:
        """``url`` begins with ws:// or wss://; ``tls`` is the trust; ``jitter`` returns numbers from 0 to 1.

        ``on_presence`` receives all devices of the user that are present, once this device has reported its presence.
        ``on_withdrawn`` receives a pending approval that this device may no longer see or decide, and the reason:
        remove its prompt. The approval itself is unchanged.
        """
        identity = Identity(url, device, token, tab, role, tls)
        self._keeper = LinkKeeper(identity, jitter, on_status)
        self._cursors = cursors or MemoryCursors()
        self._on_gap = on_gap
        self._exchange = Exchange(self._keeper, on_presence, on_withdrawn)
        self._run_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._run_task = asyncio.create_task(self._exchange.run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._exchange.leave()
        if self._run_task is not None:
            await cancel_all([self._run_task])
        await self._exchange.end()
        if not isinstance(self._keeper.status, Stopped):
            self._exchange.stop(Stopped(CloseCode.NORMAL))

    @property
    def status(self) -> LinkStatus:
        """Connecting, Connected (with the streams that still replay), Offline or Stopped."""
        if isinstance(self._keeper.status, Connected):
            return Connected(self._exchange.streams.replaying)
        return self._keeper.status

    @property
    def welcome(self) -> Welcome | None:
        """The last welcome frame: channel, generation, limits, and the actions that were open at that time."""
        return self._exchange.welcome

    @overload
    def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotPolicy | None = None,
        volatile: Literal[False] = False,
    ) -> AsyncIterator[Item]: ...

    @overload
    def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotPolicy | None = None,
        volatile: Literal[True],
    ) -> AsyncIterator[AnyItem]: ...

    async def stream(
        self,
        name: str,
        *,
        full: bool = False,
        start: StartAt | None = None,
        snapshot: SnapshotPolicy | None = None,
        volatile: bool = False,
    ) -> AsyncIterator[AnyItem]:
        """Follows a stream from its saved cursor, or from ``start`` if none is saved.

        The cursor of an item is saved when the application requests the next one. ``volatile`` adds text in progress,
        as items without a cursor.

        Raises:
            GapError: a gap occurred and the client has no ``on_gap``.
            StreamClosed: the server refused or ended the stream.
            ChannelStopped: the client has stopped.
        """
        if isinstance(self._keeper.status, Stopped):
            raise ChannelStopped(self._keeper.status)
        saved = self._cursors.load(name)
        followed = self._exchange.streams.open(
            name, saved, full=full, start=start, snapshot=snapshot, volatile=volatile
        )
        self._exchange.send(self._exchange.streams.ask(followed) if self._exchange.link else None)
        try:
            while True:
                if followed.is_paused and followed.is_empty and self._exchange.link:
                    self._exchange.send(self._exchange.streams.ask(followed))
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
            self._exchange.send(*self._exchange.streams.close(followed))

    async def call(
        self, method: str, data: JsonObject, *, idem: str | None = None, timeout_s: float = _CALL_S
    ) -> JsonObject:
        """Executes a command or a query; waits for a link if there is none.

        Raises:
            CallRefused: the server answered with an error.
            UnknownOutcome: cut off without ``idem``.
            TimeoutError: no answer in ``timeout_s``.
        """
        if isinstance(self._keeper.status, Stopped):
            raise ChannelStopped(self._keeper.status)
        call, result = self._exchange.calls.open(lambda call_id: Call(call_id, method, idem, data))
        try:
            if self._exchange.link is not None:
                self._exchange.calls.mark_sent(call)
                await self._exchange.link.send(call)
            async with asyncio.timeout(timeout_s):
                return await result
        finally:
            self._exchange.calls.forget(call)

    async def answer(
        self,
        action: JsonObject,
        *,
        option: str | None = None,
        content: JsonObject | None = None,
        comment: str | None = None,
        timeout_s: float = _CALL_S,
    ) -> AnswerResult:
        """Decides an approval (``action`` is its view, as shown to the user). The first valid decision wins (I7)."""
        decision = f"dec_{secrets.token_hex(13)}"
        data = compose_answer(action, decision, option, content, comment)
        try:
            return read_result(
                await self.call("respond_action", data, idem=decision, timeout_s=timeout_s)
            )
        except CallRefused as error:
            return read_refusal(error)
        except TimeoutError:
            query: JsonObject = {"actionId": action["actionId"]}
            return Unsure(await self.call("get_action", query, timeout_s=timeout_s))

    def say_presence(self, state: PresenceState, focus: Iterable[str] = ()) -> None:
        """Reports the presence of the user and the streams that are in view. It holds until the next report."""
        self._exchange.say(SayPresence(state, frozenset(focus)))

    async def _handle(self, gap: Gap) -> bool:
        if self._on_gap is None:
            raise GapError(gap)
        return await self._on_gap(gap) == "snapshot"
