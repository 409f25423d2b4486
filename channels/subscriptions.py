"""The streams that one connection follows, each with the task that reads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from passerelle.channels.inputs import EventsDelivered, NoticeDue
from passerelle.channels.services import parse_stream_name
from passerelle.channels.subscription import SubscriberLink, Subscription
from passerelle.core.errors import CallerError
from passerelle.protocol.frames import Unsubscribed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from passerelle.channels.services import StreamGrant
    from passerelle.protocol.cursor import Cursor
    from passerelle.protocol.frames import AskSnapshot, Subscribe


class FollowingConnection(SubscriberLink, Protocol):
    """The connection that follows."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs a coroutine that ends with the connection."""
        ...


class Subscriptions:
    """At most one subscription per stream; a new subscription replaces the old one."""

    __slots__ = ("_held", "_link")

    def __init__(self, link: FollowingConnection) -> None:
        self._link = link
        self._held: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}

    @property
    def lag(self) -> int:
        """The lag of the slowest stream, in events."""
        return max((one.lag for one, _ in self._held.values()), default=0)

    def open(self, ask: Subscribe) -> None:
        """Follows a stream, replacing an earlier subscription."""
        older = self._held.get(ask.stream)
        subscription = Subscription(self._link, ask)
        task = self._link.spawn(_follow(subscription, older[1] if older else None))
        self._held[ask.stream] = (subscription, task)

    def release(self, stream: str) -> None:
        """Stops following a stream."""
        held = self._held.pop(stream, None)
        if held is not None:
            held[1].cancel()

    def answer_snapshot(self, ask: AskSnapshot) -> None:
        """Answers a request for a snapshot of a followed stream."""
        held = self._held.get(ask.stream)
        if held is not None and held[0].grant is not None:
            self._link.spawn(held[0].answer_snapshot(ask, held[0].grant))

    def find_grant(self, stream: str) -> StreamGrant | None:
        """The grant by which a stream is followed; None if it is not followed yet."""
        held = self._held.get(stream)
        return held[0].grant if held else None

    def note_delivered(self) -> None:
        """Feeds the state machine, for all streams at once, what was delivered since the last call."""
        fresh = {
            stream: delivered
            for stream, (subscription, _) in self._held.items()
            if (delivered := subscription.take_delivered()) is not None
        }
        if fresh:
            self._link.feed(EventsDelivered(fresh))

    def read_reached(self) -> Mapping[str, Cursor]:
        """The positions of the live streams."""
        return {
            stream: reached
            for stream, (subscription, _) in self._held.items()
            if (reached := subscription.reached) is not None
        }

    async def recheck(self) -> None:
        """Ends subscriptions that are no longer permitted in this form."""
        link = self._link
        for stream, (subscription, _) in tuple(self._held.items()):
            if subscription.grant is None:
                continue
            try:
                held = await link.services.access.grant(
                    link.principal, parse_stream_name(stream), full=subscription.ask.full
                )
            except CallerError:
                held = None
            if held != subscription.grant:
                self.release(stream)
                link.feed(NoticeDue(Unsubscribed(stream, "forbidden")))

    def clear(self) -> None:
        """Drops all subscriptions: they reference the connection, and would need the garbage collector."""
        self._held.clear()


async def _follow(subscription: Subscription, older: asyncio.Task[None] | None) -> None:
    if older is not None:
        older.cancel()
        await asyncio.wait([older])
    await subscription.run()
