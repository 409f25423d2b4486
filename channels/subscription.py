"""One subscription of a connection: from a granted stream to frames in its outbox.

The order is fixed: authorization, then a position, then ``sub``, then events. A snapshot is read cursor first and state
second, so that an event in between appears twice and is never lost; the position then begins at that cursor. After a
gap no event is sent before the snapshot.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, assert_never
from urllib.parse import quote

from passerelle.channels.acks import choose_later
from passerelle.channels.calls import end_connection, refuse_call, refuse_subscription
from passerelle.channels.fanout import pack_page
from passerelle.channels.hub import From, Start
from passerelle.channels.inputs import EndRequested, EventsDelivered, NoticeDue
from passerelle.channels.pages import Page
from passerelle.channels.position import CursorGap, Position, PositionItem, ReplayBounds, ReplayEnd
from passerelle.channels.services import StreamGrant, StreamName, parse_stream_name
from passerelle.channels.texts import TextReader
from passerelle.channels.views import PacketView, is_dense
from passerelle.core.errors import CallerError, Limited, PasserelleError, StoreUnavailable
from passerelle.core.ports.log import DERIVED
from passerelle.protocol.cursor import Cursor, GapReason, parse_cursor
from passerelle.protocol.frames import (
    AskSnapshot,
    Gap,
    Live,
    Mode,
    Refusal,
    Snapshot,
    SnapshotPlace,
    SnapshotPolicy,
    Subscribe,
    Subscribed,
    Unsubscribed,
)

if TYPE_CHECKING:
    from passerelle.channels.ack_writer import AckWriter
    from passerelle.channels.fanout import GroupMember
    from passerelle.channels.inputs import Input
    from passerelle.channels.limits import ChannelLimits
    from passerelle.channels.outbox import Outbox
    from passerelle.channels.services import ChannelServices
    from passerelle.channels.states import ReadModelState
    from passerelle.core.principal import Principal

_STORE_AWAY_S: Final = 60.0
_RETRY_S: Final = 1.0


class SubscriberLink(Protocol):
    """The connection that a subscription belongs to."""

    @property
    def principal(self) -> Principal:
        """The authenticated principal."""
        ...

    @property
    def limits(self) -> ChannelLimits:
        """The limits of the connection."""
        ...

    @property
    def outbox(self) -> Outbox:
        """The outbox for frames."""
        ...

    @property
    def services(self) -> ChannelServices:
        """The dependencies of the connection."""
        ...

    @property
    def acks(self) -> AckWriter:
        """Claims and names acks."""
        ...

    def can(self, capability: str) -> bool:
        """Whether both sides support a capability."""
        ...

    def feed(self, given: Input) -> None:
        """Feeds an input to the connection's state machine."""
        ...


class Subscription:
    """Runs until the stream is released, its authorization ends, or the stream is gone."""

    def __init__(self, link: SubscriberLink, ask: Subscribe) -> None:
        self.ask = ask
        self.grant: StreamGrant | None = None
        self._link = link
        self._position: Position | None = None
        self._text: TextReader | None = None
        self._slot = link.services.replays.make_slot()
        self._waits = False
        self._pending: Subscribed | None = None
        self._member: GroupMember | None = None
        self._delivered: Cursor | None = None

    @property
    def reached(self) -> Cursor | None:
        """The position of the view while it is live, hidden events included; else None."""
        if self._member is not None:
            return self._member.cursor
        position = self._position
        return position.cursor if position and position.is_live and self._waits else None

    @property
    def lag(self) -> int:
        """How many events this reader is behind, as far as known here."""
        return self._position.missed if self._position and self._member is None else 0

    @property
    def _is_live(self) -> bool:
        return self._position is not None and self._position.is_live

    async def run(self) -> None:
        """Follows the stream; an unauthorized stream is refused, an unavailable store ends the link."""
        try:
            name = parse_stream_name(self.ask.stream)
            self.grant = await self._link.services.access.grant(
                self._link.principal, name, full=self.ask.full
            )
            if await self._link.acks.claim(self.ask.stream, self.grant):
                self._text = self._make_text_reader(self.grant)
                await self._follow(name, self.grant)
        except Limited as error:
            self._link.feed(EndRequested(*end_connection(error, "sub")))
        except CallerError as error:
            self._link.feed(NoticeDue(refuse_subscription(self.ask.stream, error, self.ask.id)))
        except PasserelleError as error:
            self._link.feed(EndRequested(*end_connection(error, "sub")))

    async def _follow(self, name: StreamName, grant: StreamGrant) -> None:
        mode, start = await self._begin(grant)
        snapshots = self.ask.snapshot or ("first" if name.word == "inbox" else "gap")
        gap: CursorGap | None
        if start is None:
            taken = await self._take_snapshot(name, grant)
            if taken is None:
                return
            self._link.feed(NoticeDue(self._subscribed(grant, mode, taken.cursor, 0)))
            self._link.feed(NoticeDue(taken))
            gap = await self._read(grant, taken.cursor, None)
        else:
            if snapshots == "first":
                taken = await self._take_snapshot(name, grant)
                if taken is None:
                    return
                self._link.feed(NoticeDue(taken))
                start = taken.cursor if start is Start.LIVE else start
            gap = await self._read(grant, start, mode)
        while gap is not None:
            resumed = await self._repair(name, grant, gap, snapshots)
            gap = None if resumed is None else await self._read(grant, resumed, None)
            if gap is not None and gap.why is GapReason.LIMIT:
                gap = replace(gap, why=GapReason.SLOW)  # the repair was followed too slowly
            if gap is not None and gap.why is GapReason.SLOW:
                self._link.services.counts.slow += 1

    async def _begin(self, grant: StreamGrant) -> tuple[Mode, From | None]:
        """The mode that ``sub`` reports, and the start; None if a snapshot determines it."""
        ask = self.ask
        if ask.cursor is not None:
            return "resumed", await self._find_start(grant, ask.cursor)
        match ask.start:
            case "snap":
                return "snap", None
            case "live":
                return "live", Start.LIVE
            case "start":
                return "start", Start.BEGINNING
            case "ack" | None:
                device = self._link.acks.name_device(ask.stream, grant)
                stored = await self._link.services.acks.read_ack(grant.stream, device)
                if stored is None:
                    return "snap", None
                return "acked", parse_cursor(stored)
            case _:
                assert_never(ask.start)

    async def _find_start(self, grant: StreamGrant, cursor: Cursor) -> Cursor:
        """The start of a device: a packet consumer never gets packets again that it has acknowledged (MK-14)."""
        if not isinstance(grant.view, PacketView):
            return cursor
        device = self._link.acks.name_device(self.ask.stream, grant)
        stored = await self._link.services.acks.read_ack(grant.stream, device)
        return cursor if stored is None else choose_later(parse_cursor(stored), cursor)

    async def _read(self, grant: StreamGrant, start: From, mode: Mode | None) -> CursorGap | None:
        """Sends what follows ``start``; with a mode, ``sub`` is sent first. Returns at a gap."""
        services, bounds = self._link.services, self._replay_bounds()
        async with services.hub.open(grant.stream, grant.view, start, bounds) as position:
            self._position = position
            try:
                missed, begun = position.missed, position.cursor
                if missed:
                    await self._slot.enter()
                item = await self._next(position)
                if mode is not None:
                    self._announce(grant, mode, item, begun, missed)
                while not isinstance(item, CursorGap):
                    await self._send(grant, item)
                    await self._join_group(position)
                    item = await self._next(position)
                return item
            finally:
                self._slot.leave()
                self._position = None
                if self._text is not None:
                    services.texts.end(grant.stream, self._text)

    async def _join_group(self, position: Position) -> None:
        """Is a member of the stream's live group until it leaves; returns at once if it cannot join."""
        write = self._write_behind_text if self._text else self._link.outbox.write
        member = position.join(self.ask.stream, write)
        if member is None:
            return
        self._member = member
        try:
            await member.left
        finally:
            if (delivered := self.take_delivered()) is not None:
                self._link.feed(EventsDelivered({self.ask.stream: delivered}))
            self._member = None
            position.go_on(member)

    def _write_behind_text(self, messages: list[bytes]) -> bool:
        if self._text is not None:
            self._text.flush()
        return self._link.outbox.write(messages)

    def take_delivered(self) -> Cursor | None:
        """How far events were delivered while in the group; None if that was reported before."""
        delivered = self._member.last_sent if self._member else None
        if delivered is None or delivered is self._delivered:
            return None
        self._delivered = delivered
        return delivered

    async def _next(self, position: Position) -> PositionItem:
        """The next item; while the store is unavailable, retries for up to a minute (4004 then)."""
        tries = int(_STORE_AWAY_S / _RETRY_S)
        while True:
            try:
                self._waits = True
                return await anext(position)
            except StoreUnavailable:
                tries -= 1
                if tries <= 0:
                    raise
            finally:
                self._waits = False
            await asyncio.sleep(_RETRY_S)

    def _announce(
        self, grant: StreamGrant, mode: Mode, first: PositionItem, begun: Cursor | None, missed: int
    ) -> None:
        if not isinstance(first, CursorGap):
            if begun is not None:
                self._link.feed(NoticeDue(self._subscribed(grant, mode, begun, missed)))
        elif first.top is not None:  # sent together with its gap: no frame may come between the two
            self._pending = self._subscribed(grant, "gap", first.top, 0)

    async def _send(self, grant: StreamGrant, item: Page | ReplayEnd) -> None:
        stream, link, text = self.ask.stream, self._link, self._text
        match item:
            case Page():
                if text is not None and not self._is_live:
                    text.stop()
                if not link.outbox.has_room:
                    await self._wait_for_room()
                if text is not None:
                    text.flush()
                packed = pack_page(stream, item)
                packed.count(link.services.counts, 1)
                for message in packed.messages:
                    link.outbox.put(message)
                link.feed(EventsDelivered({stream: item.last}))
            case ReplayEnd(cursor, replayed):
                self._slot.leave()
                link.services.counts.replayed += replayed
                link.feed(NoticeDue(Live(stream, cursor, replayed)))
                if text is not None:
                    link.services.texts.begin(grant.stream, text)
            case _:
                assert_never(item)

    async def _wait_for_room(self) -> None:
        """Releases its replay slot while the socket is slow."""
        replays = self._slot.is_held
        self._slot.leave()
        await self._link.outbox.wait_for_room()
        if replays:
            await self._slot.enter_again()

    async def _repair(
        self, name: StreamName, grant: StreamGrant, gap: CursorGap, snapshots: SnapshotPolicy
    ) -> Cursor | None:
        """Announces the gap and sends the snapshot; returns where to continue, None if the stream ends here."""
        state = None if snapshots == "never" else await self._read_state(name, grant)
        if state is None or not self._fits(state):
            left = gap.top if snapshots == "never" else None
            self._end_at(gap.why, gap.have, state.cursor if state else left, gap.first, state)
            return None
        stream, link = self.ask.stream, self._link
        link.services.counts.gaps[gap.why] += 1
        self._send_pending()
        link.feed(NoticeDue(Gap(stream, gap.why, gap.have, state.cursor, gap.first, "inline")))
        await link.outbox.wait_for_room()
        link.feed(NoticeDue(self._show(state)))
        link.services.counts.repairs += 1
        return state.cursor

    def _send_pending(self) -> None:
        if self._pending is not None:
            self._link.feed(NoticeDue(self._pending))
            self._pending = None

    def _end_at(
        self,
        why: GapReason,
        have: Cursor | None,
        top: Cursor | None,
        first: int | None,
        state: ReadModelState | None,
    ) -> None:
        """Announces a gap after which the stream ends. A state too large for a frame can be fetched over HTTP."""
        stream, link = self.ask.stream, self._link
        place: SnapshotPlace = "none" if state is None else "fetch"
        url = f"/v1/streams/{quote(stream, safe=':')}/snapshot" if state is not None else None
        link.services.counts.gaps[why] += 1
        self._send_pending()
        link.feed(NoticeDue(Gap(stream, why, have, top, first, place, url)))
        link.feed(NoticeDue(Unsubscribed(stream, "gone" if top is None else "limit")))

    async def _take_snapshot(self, name: StreamName, grant: StreamGrant) -> Snapshot | None:
        """The snapshot of the stream, or None after the client was notified that there is none."""
        state = await self._read_state(name, grant)
        if state is not None and self._fits(state):
            return self._show(state)
        why = GapReason.LOST if state is None else GapReason.LIMIT
        if state is not None:
            self._pending = self._subscribed(grant, "gap", state.cursor, 0)
        self._end_at(why, self.ask.cursor, state.cursor if state else None, None, state)
        return None

    async def answer_snapshot(self, ask: AskSnapshot, grant: StreamGrant) -> None:
        """Sends the current read model to a client that asked for it; the subscription continues meanwhile."""
        link = self._link
        try:
            state = await self._read_state(parse_stream_name(ask.stream), grant)
        except PasserelleError as error:
            refusal = refuse_subscription(ask.stream, error)
            link.feed(
                NoticeDue(refuse_call(ask.id, error) if ask.id else replace(refusal, of="snap"))
            )
            return
        if state is None or not self._fits(state):
            code, said = "not_found", "no snapshot is left"
            if state is not None:
                code, said = "too_large", "fetch it over HTTP"
            link.feed(NoticeDue(Refusal(code, said, "snap", ask.stream, id=ask.id)))
        else:
            link.feed(NoticeDue(replace(self._show(state), id=ask.id)))

    async def _read_state(self, name: StreamName, grant: StreamGrant) -> ReadModelState | None:
        async with self._link.services.replays.make_slot():
            return await self._link.services.states.read(self._link.principal, name, grant)

    def _fits(self, state: ReadModelState) -> bool:
        return state.size_bytes <= self._link.limits.snapshot_bytes

    def _show(self, state: ReadModelState) -> Snapshot:
        return Snapshot(self.ask.stream, state.cursor, state.data, self.ask.id)

    def _make_text_reader(self, grant: StreamGrant) -> TextReader | None:
        link = self._link
        if not self.ask.volatile or not link.can("vol") or grant.stream.kind in DERIVED:
            return None
        return TextReader(self.ask.stream, grant.view, link.outbox, link.services.counts)

    def _subscribed(
        self, grant: StreamGrant, mode: Mode, cursor: Cursor, missed: int
    ) -> Subscribed:
        return Subscribed(self.ask.stream, mode, cursor, is_dense(grant.view), missed, self.ask.id)

    def _replay_bounds(self) -> ReplayBounds:
        limits = self._link.limits
        asked = self.ask.max_events or limits.replay_events
        events = min(asked, limits.replay_events_max)
        scale = max(1, events // limits.replay_events)
        return ReplayBounds(events, limits.replay_bytes * scale)
