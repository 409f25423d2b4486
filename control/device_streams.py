"""Acks and resumes for devices without a lasting connection, and notices between devices and the gateway.

Acks and resumes follow the rules of channels (CMD-25, CHN-3, CHN-4). Notices are messages that are not turns: states
that devices report, and texts for their users (CHN-15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never, cast

import orjson

from passerelle.channels.ack_writer import name_ack
from passerelle.channels.acks import choose_later
from passerelle.channels.admission import name_channel, name_generation
from passerelle.channels.cursor_check import CursorBroken, CursorHeld, end_of
from passerelle.channels.follower import read_verified
from passerelle.channels.link_record import join_tab
from passerelle.channels.services import parse_stream_name
from passerelle.channels.views import PacketView, shows
from passerelle.core.errors import NotFound, StreamGap, WriteConflict
from passerelle.core.frozen import frozen
from passerelle.core.payloads.channel import ChannelMessage, Resumption
from passerelle.core.session.device_requests import (
    AckEvents,
    ChannelReconnected,
    EventsAcked,
    NoticeSent,
    ReconnectChannel,
    SendNotice,
)
from passerelle.protocol.cursor import Cursor, parse_cursor
from passerelle.runtime.records.idempotency import make_once

if TYPE_CHECKING:
    from passerelle.channels.follower import StreamReads
    from passerelle.channels.services import Snapshots, StreamAccess, StreamGrant
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.channels import Acks, Channels
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.places import Home
    from passerelle.runtime.records.recoveries import Recoveries

_Mode: TypeAlias = Literal["resumed", "acked", "snap", "gap"]


@frozen
class _After:
    """The events after a device's position, or the reason why there are none."""

    mode: _Mode
    held: int
    cursor: Cursor
    events: tuple[JsonObject, ...] = ()
    more: bool = False
    why: str | None = None


@frozen
class DeviceStreams:
    """Serves the streams of a principal's devices; each call is authorized first."""

    access: StreamAccess
    snapshots: Snapshots
    acks: Acks
    channels: Channels
    log: StreamReads
    recoveries: Recoveries
    clock: Clock

    async def acknowledge(self, principal: Principal, command: AckEvents) -> EventsAcked:
        """Stores a device's position; it never moves back.

        Raises:
            NotFound: no such stream, or another principal's: the two look the same, whatever the cursor is.
            BadCursor: an invalid cursor.
            StreamGap, Conflict: an ack of lost history, or of a connection that a newer one has replaced.
        """
        name = parse_stream_name(command.stream)
        grant = await self.access.grant(principal, name, full=False)
        cursor = parse_cursor(command.cursor)
        verdict = await read_verified(self.log, grant.stream, cursor)
        if isinstance(verdict, CursorBroken):
            top = str(end_of(verdict.head)) if verdict.head else None
            raise StreamGap(command.stream, verdict.why, top)
        device = join_tab(command.device, command.tab)
        field = name_ack(device, command.stream, grant)
        generation = await self.channels.read_generation(name_channel(principal, device))
        result = await self.acks.store_ack(
            grant.stream, field, generation, str(cursor), self.clock.now_ms()
        )
        if result != "stored":
            raise WriteConflict(f"the ack was rejected: {result}")
        stored = await self.acks.read_ack(grant.stream, field)
        return EventsAcked(command.stream, stored or str(cursor))

    async def reconnect(
        self, principal: Principal, command: ReconnectChannel
    ) -> ChannelReconnected:
        """The state of a stream, and the events after a device's position.

        Raises:
            NotFound, BadCursor: as ``acknowledge``.
        """
        name = parse_stream_name(command.stream)
        grant = await self.access.grant(principal, name, full=False)
        head = await self.log.read_head(grant.stream)
        if head is None:
            raise NotFound("stream", command.stream)
        top = end_of(head)
        # Cursor first, state second: an event in between arrives twice, and none is lost.
        state = await self.snapshots.read_snapshot(principal, name, grant)
        after = await self._read_after(command, grant, top)
        device = join_tab(command.device, command.tab)
        channel = name_channel(principal, device)
        newest = await self.channels.read_generation(channel)
        taken = Resumption(command.stream, after.mode, after.held, top.sequence)
        return ChannelReconnected(
            channel_id=channel,
            stream=command.stream,
            mode=after.mode,
            recovery=await self.recoveries.find_one(principal.key, taken, paired=principal.paired),
            snapshot={**state, "asOf": str(top)},
            cursor=str(after.cursor),
            events=after.events,
            more=after.more,
            why=after.why,
            continued=command.resume in {name_generation(channel, newest - ago) for ago in (0, 1)},
        )

    async def _read_after(
        self, command: ReconnectChannel, grant: StreamGrant, top: Cursor
    ) -> _After:
        mode: _Mode = "resumed"
        text = command.cursor
        known: str | None = None
        if text is None or isinstance(grant.view, PacketView):
            device = name_ack(join_tab(command.device, command.tab), command.stream, grant)
            known = await self.acks.read_ack(grant.stream, device)
        if text is None:
            mode, text = "acked", known
        if text is None:
            return _After("snap", 0, top)
        held = parse_cursor(text)
        if known is not None:
            # A consumer that returns with an older state gets no event again that it has acknowledged (MK-14).
            held = choose_later(parse_cursor(known), held)
        verdict = await read_verified(self.log, grant.stream, held)
        match verdict:
            case CursorBroken(why):
                return _After("gap", held.sequence, top, why=why.value)
            case CursorHeld(entries, head):
                part = entries[: command.limit]
                seen = [one.entry for one in part if shows(grant.view, one.entry)]
                events = tuple(cast("JsonObject", orjson.loads(entry.data)) for entry in seen)
                last = Cursor(held.epoch, part[-1].entry.sequence, part[-1].chain) if part else held
                return _After(mode, held.sequence, last, events, last.sequence < head.sequence)
            case _:
                assert_never(verdict)


@frozen
class ChannelNotices:
    """Writes notices to the home session, from where the inbox gets them. A notice never starts or changes work."""

    home: Home
    channels: Channels

    async def send(self, principal: Principal, command: SendNotice, idem: str | None) -> NoticeSent:
        """Stores a notice of a device.

        Raises:
            NotFound: no device of this name was ever connected.
            IdempotencyConflict: the key was used for another notice.
        """
        device = join_tab(command.device, command.tab)
        channel = name_channel(principal, device)
        if not await self.channels.read_generation(channel):
            raise NotFound("channel", device)
        once = make_once(principal, command, idem)
        if await once.find(self.home.writes.log, principal.home) is None:
            said = ChannelMessage(channel, command.kind, "in", command.code, command.text)
            await self.home.record(principal, said, row=once.remember(channel))
        return NoticeSent(channel)

    async def tell(self, principal: Principal, message: ChannelMessage, key: str) -> None:
        """Sends a notice to the devices of a principal, once per key.

        Raises:
            StoreUnavailable: the notice may not be stored.
        """
        await self.home.record(principal, message, key=key)
