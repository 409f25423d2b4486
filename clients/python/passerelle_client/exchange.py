"""The session of a device with the server, across reconnects.

A new link restores the state: it subscribes to streams from their positions, sends calls with a key again, and reports
the presence again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.client.calls import CallsInFlight
from passerelle.client.items import ChannelStopped, Connected, Stopped
from passerelle.client.streams import Streams
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.protocol.frames import (
    Ack,
    Answer,
    ClientFrame,
    Drain,
    Event,
    Expiry,
    Failure,
    Gap,
    Live,
    Refusal,
    SayPresence,
    ServerBeat,
    ServerFrame,
    ShowPresence,
    Snapshot,
    Subscribed,
    Unsubscribed,
    Volatile,
    Welcome,
    Withdrawn,
)
from passerelle.protocol.reverse_frames import (
    AgentCall,
    CallPiece,
    Credit,
    Registered,
    StopWaiting,
    StreamItem,
    Unregistered,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.client.keeper import LinkKeeper
    from passerelle.client.link import Link
    from passerelle.core.vocabulary import WithdrawalReason
    from passerelle.core.wire.json import JsonObject

_ACK_EVERY_S: Final = 1.0


class Exchange:
    """``link`` is the current link, None while offline. ``welcome`` is the last welcome frame; it outlives its link."""

    def __init__(
        self,
        keeper: LinkKeeper,
        on_presence: Callable[[tuple[JsonObject, ...]], None] | None,
        on_withdrawn: Callable[[str, WithdrawalReason], None] | None,
    ) -> None:
        self.streams = Streams()
        self.calls = CallsInFlight()
        self.link: Link | None = None
        self.welcome: Welcome | None = None
        self._keeper = keeper
        self._on_presence = on_presence
        self._on_withdrawn = on_withdrawn
        self._presence: SayPresence | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until the client stops for good."""
        self.stop(await self._keeper.run(self._serve, self._dial))

    def stop(self, status: Stopped) -> None:
        """Ends every stream and every call."""
        self._keeper.set_status(status)
        error = ChannelStopped(status)
        self.calls.fail(error)
        self.streams.end_all(error)

    async def leave(self) -> None:
        """Sends the outstanding acknowledgements and closes the link."""
        link = self.link
        if link is not None:
            await self._send_acks(link)
            await link.close()

    async def end(self) -> None:
        """Stops sending, and cancels the link that is being opened."""
        await cancel_all(self._tasks)
        await self._keeper.end()

    def say(self, presence: SayPresence) -> None:
        """Sends the presence now, and again on every new link."""
        self._presence = presence
        self.send(presence)

    def send(self, *frames: ClientFrame | None) -> None:
        """Sends frames in order, without waiting. Drops them while there is no link."""
        link = self.link
        if link is not None:
            keep_until_done(asyncio.create_task(_send_all(link, frames)), self._tasks)

    async def _dial(self) -> Link | Stopped:
        """Subscribes to every stream from its position; those opened meanwhile follow after the welcome."""
        asks = self.streams.ask_all()
        return await self._keeper.dial(asks, self.welcome.resume if self.welcome else None)

    async def _serve(self, link: Link) -> Stopped:
        """Reads a link until it closes."""
        self.link, self.welcome = link, link.welcome
        self._keeper.set_status(Connected(self.streams.replaying))
        helpers = [
            asyncio.create_task(link.beat(self._keeper.jitter, self.streams.take_acks)),
            asyncio.create_task(self._send_acks_at_intervals(link)),
        ]
        try:
            await self._catch_up(link)
            async for frame in link.read():
                await self._take(link, frame)
        finally:
            self.link = None
            await cancel_all(helpers)
            self.calls.cut()
        return Stopped(link.close_code)

    async def _catch_up(self, link: Link) -> None:
        """Sends what has accumulated while offline, and the state that the server keeps per link."""
        if self._presence is not None:
            await link.send(self._presence)
        for call in self.calls.list_unanswered():
            self.calls.mark_sent(call)
            await link.send(call)
        for ask in self.streams.ask_rest():
            await link.send(ask)

    async def _take(self, link: Link, frame: ServerFrame) -> None:  # noqa: C901, PLR0912 - one arm per frame of the closed union
        match frame:
            case Event() | Live() | Gap() | Snapshot() | Subscribed() | Volatile():
                for answer in self.streams.take(frame):
                    await link.send(answer)
            case Unsubscribed(stream, code):
                self.streams.end(stream, code)
            case Refusal():
                self._take_refusal(frame)
            case ServerBeat(_, cursors):
                self.streams.pass_over(cursors)
            case Answer() | Failure():
                self.calls.settle(frame)
            case Expiry() | Drain():
                await self._keeper.handle_notice(link, frame)
            case ShowPresence(_, devices):
                if self._on_presence is not None:
                    self._on_presence(devices)
            case Withdrawn(action, why):
                if self._on_withdrawn is not None:
                    self._on_withdrawn(action, why)
            case Welcome():
                return
            case (
                Registered()
                | Unregistered()
                | AgentCall()
                | Credit()
                | StopWaiting()
                | CallPiece()
                | StreamItem()
            ):
                return  # for agents only; this client never registers as one
            case _:
                assert_never(frame)

    def _take_refusal(self, refusal: Refusal) -> None:
        self._keeper.note_refusal(refusal)
        if not refusal.fatal and refusal.of == "sub" and refusal.stream is not None:
            self.streams.end(refusal.stream, refusal.code)

    async def _send_acks(self, link: Link) -> None:
        cursors = self.streams.take_acks()
        if cursors:
            await link.send(Ack(cursors))

    async def _send_acks_at_intervals(self, link: Link) -> None:
        while True:
            await self.streams.ack_pending.wait()
            self.streams.ack_pending.clear()
            await self._send_acks(link)
            await asyncio.sleep(_ACK_EVERY_S)


async def _send_all(link: Link, frames: tuple[ClientFrame | None, ...]) -> None:
    for frame in frames:
        if frame is not None:
            await link.send(frame)
