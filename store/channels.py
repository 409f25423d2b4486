"""Device links of a principal: their records, the pending notifications about them, and presence.

A channel record is in the shard of its principal. Several facts of one kind within a minute become one (EXT-8). A
presence expires after a minute unless it is renewed.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.errors import InvalidInput, StoreUnavailable
from passerelle.core.ids import shard_of
from passerelle.core.ports.channels import (
    ConnectionOpened,
    DevicesChanged,
    HelloRecorded,
    OwnerForgotten,
    PendingLink,
    Presence,
    PresenceChanged,
    PresentDevice,
)
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import (
    as_bytes,
    as_hash,
    as_int,
    as_ms,
    as_sparse_list,
    as_text,
    as_texts,
)
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.ports.channels import ChannelUpdate
    from passerelle.core.ports.due import DueRow
    from passerelle.store.connection import RespValue
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes

_HELLO_HINT: Final = re.compile(rb"^g ([!-~]+) ([0-9]+)$", re.MULTILINE)
"""Links that connect together are announced in one message, one line each."""
_PRESENCE_HINT: Final = b"p"
_DEVICES_HINT: Final = b"d"
_FORGOTTEN_HINT: Final = b"f"
KEEP_MS: Final = 30 * 24 * 3600 * 1000
REMEMBERED: Final = 64
"""The newest links of one principal, which can be listed."""


def _read_greetings(reply: RespValue) -> list[HelloRecorded]:
    match cast("list[bytes | int]", reply):
        case [b"ok", questions, *generations]:
            return [HelloRecorded(int(generation), questions != 0) for generation in generations]
        case _:
            reason = "this instance holds no lease in the shard"
            raise StoreUnavailable(reason, "no")


_HELLO: Final = Script("hello", _read_greetings)
_KEEP_LINK: Final = Script("keep_link", as_int)


class RedisChannels:
    """``core.ports.channels.Channels`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints
        self._hellos: Coalescer[
            tuple[str, Incarnation | None], tuple[str, bytes], HelloRecorded
        ] = Coalescer(self._say_hellos)

    async def listen(self, owner: str, on_update: Callable[[ChannelUpdate], None]) -> None:
        """Subscribes to updates about the owner's devices; returns once the subscription is confirmed.

        Raises:
            StoreUnavailable: not confirmed in time; nothing is subscribed then.
        """
        shard = shard_of(owner)

        def take(raw: bytes) -> None:
            if raw == _PRESENCE_HINT:
                on_update(PresenceChanged())
            elif raw == _DEVICES_HINT:
                on_update(DevicesChanged())
            elif raw == _FORGOTTEN_HINT:
                on_update(OwnerForgotten())
            for said in _HELLO_HINT.finditer(raw):
                on_update(ConnectionOpened(said[1].decode(), int(said[2])))

        await self._hints.listen(shard, keys.link_hints(shard, owner), take)

    async def ignore(self, owner: str) -> None:
        """Ends the subscription of ``listen``."""
        shard = shard_of(owner)
        await self._hints.ignore(shard, keys.link_hints(shard, owner))

    async def notify_devices(self, owner: str) -> None:
        """Notifies all instances that the owner's devices have changed.

        Raises:
            StoreUnavailable: it is unknown whether any instance was notified.
        """
        shard = shard_of(owner)
        command = pack("SPUBLISH", keys.link_hints(shard, owner), _DEVICES_HINT)
        await self._nodes.update(shard, command)

    def record_hello(
        self, owner: str, channel: str, record: bytes, driver: Incarnation | None
    ) -> Awaitable[HelloRecorded]:
        """Writes the record, creates the owner's inbox if there is none, increments the generation.

        Retried after a lost reply: an unused generation does no harm.

        Raises:
            StoreUnavailable: also when ``driver`` holds no lease in the owner's shard.
            ValueError: the channel is not in the owner's shard.
        """
        shard = shard_of(owner)
        if shard_of(channel) != shard:
            message = f"channel {channel} is not in the shard of {owner}"
            raise ValueError(message)
        return self._hellos.call((owner, driver), (channel, record))

    def _say_hellos(
        self, said: tuple[str, Incarnation | None], hellos: list[tuple[str, bytes]]
    ) -> Awaitable[list[HelloRecorded]]:
        owner, driver = said
        shard = shard_of(owner)
        inbox = StreamRef(StreamKind.INBOX, owner)
        names = [keys.head(inbox), keys.link_hints(shard, owner), keys.links(shard, owner)]
        names.append(keys.inbox_open(shard, owner))
        names += [keys.channel(shard, channel) for channel, _ in hellos]
        if driver is not None:
            names += [keys.due(shard), keys.own(shard, driver.instance)]
        return self._nodes.run_unbatched(
            _HELLO,
            shard,
            names,
            {
                "channels": [channel for channel, _ in hellos],
                "mint": secrets.token_hex(4),
                "keep": str(KEEP_MS),
                "links": REMEMBERED,
                "driver": [driver.instance, str(driver.number)] if driver else False,
            },
            [record for _, record in hellos],
        )

    async def keep(self, channel: str, generation: int, driver: Incarnation | None) -> int:
        """Renews the record of an open link; returns the newest generation of its channel."""
        shard = shard_of(channel)
        names = [keys.channel(shard, channel)]
        if driver is not None:
            names += [keys.own(shard, driver.instance), keys.due(shard)]
        return await self._nodes.run(
            _KEEP_LINK,
            shard,
            names,
            {
                "channel": channel,
                "gen": str(generation),
                "keep": str(KEEP_MS),
                "instance": driver.instance if driver else "",
                "inc": str(driver.number) if driver else "",
            },
        )

    async def read_generation(self, channel: str) -> int:
        """The newest generation of a channel; 0 if there is none."""
        shard = shard_of(channel)
        command = pack("HGET", keys.channel(shard, channel), "gen")
        return await self._nodes.query(shard, command, as_int)

    async def list_live(self, owner: str) -> tuple[bytes, ...]:
        """The records of a principal's open links, of those opened last.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        shard = shard_of(owner)
        newest = pack("ZRANGE", keys.links(shard, owner), "0", str(REMEMBERED - 1), "REV")
        names = await self._nodes.query(shard, newest, as_texts)
        if not names:
            return ()
        looks = [pack("HMGET", keys.channel(shard, name), "live", "s") for name in names]
        rows = map(as_sparse_list, await self._nodes.query_all(shard, *looks))
        return tuple(record for live, record in rows if live == b"1" and record is not None)

    async def is_live(self, channel: str) -> bool:
        """Whether a connection of the channel is open, as stored."""
        shard = shard_of(channel)
        command = pack("HGET", keys.channel(shard, channel), "live")
        return await self._nodes.query(shard, command, as_bytes) == b"1"

    async def read_record(self, channel: str) -> bytes | None:
        """The record that the last hello wrote."""
        shard = shard_of(channel)
        command = pack("HGET", keys.channel(shard, channel), "s")
        return await self._nodes.query(shard, command, as_bytes)


WINDOW_MS: Final = 60_000
LISTED: Final = 16
"""Payloads of one kind that are kept if each counts; the total counts all of them."""


_Row: TypeAlias = tuple[str, str, int, int, str | bool]
"""Channel, kind, ms until the first fact of a kind is delivered, number of listed payloads, generation."""
_OWE_LINK: Final = Script("owe_link", lambda reply: [None] * len(as_texts(reply)))
_SETTLE_LINK: Final = Script("settle_link", as_text)


class RedisLinks:
    """``core.ports.channels.Links`` over a server or cluster."""

    def __init__(self, nodes: Nodes, window_ms: int = WINDOW_MS) -> None:
        self._nodes = nodes
        self._window_ms = window_ms
        self._owed: Coalescer[tuple[Shard, str | None], tuple[_Row, bytes], None] = Coalescer(
            self._owe
        )

    def add_pending(
        self,
        channel: str,
        generation: int,
        kind: str,
        payload: bytes,
        *,
        listed: bool = False,
        leaves: str | None = None,
        wait_ms: int = 0,
    ) -> asyncio.Future[None]:
        """Notes a pending fact; a due row delivers it, after ``wait_ms`` or a minute after the last one.

        ``listed``: each payload counts, not only that of the newest generation. ``leaves``: the instance whose
        connection has ended. Retried after a lost reply, so one fact may be counted twice.
        """
        most = LISTED if listed else 0
        row = (channel, kind, wait_ms, most, str(generation))
        return self._owed.call((shard_of(channel), leaves), (row, payload))

    async def mark_lost(self, channel: str, payload: bytes, instance: str) -> None:
        """Notes that a link has ended with its instance, unless the device is connected elsewhere already."""
        row = (channel, "disconnected", 0, 0, False)
        await self._owed.call((shard_of(channel), instance), (row, payload))

    async def read_pending(self, channel: str, kind: str) -> PendingLink | None:
        """The pending notification; None if the record is gone."""
        shard = shard_of(channel)
        wanted = ("s", f"o:{kind}", f"n:{kind}", f"t:{kind}")
        command = pack("HMGET", keys.channel(shard, channel), *wanted)
        found = await self._nodes.query(shard, command, as_sparse_list)
        record, payloads, total, delivered = found
        if record is None or payloads is None:
            return None
        return PendingLink(record, payloads, int(total or 0), int(delivered or 0))

    async def settle(self, row: DueRow, kind: str, owed: PendingLink, *, listed: bool) -> None:
        """Marks the payloads that were read as delivered."""
        shard = shard_of(row.entity)
        await self._nodes.run(
            _SETTLE_LINK,
            shard,
            [keys.channel(shard, row.entity), keys.due(shard)],
            {
                "channel": row.entity,
                "kind": kind,
                "told": str(owed.total),
                "before": str(owed.written),
                "bytes": len(owed.payloads) if listed else 0,
                "token": row.token,
                "window": self._window_ms,
            },
        )

    def _owe(
        self, where: tuple[Shard, str | None], owed: list[tuple[_Row, bytes]]
    ) -> Awaitable[list[None]]:
        shard, instance = where
        names = [keys.due(shard), *(keys.channel(shard, row[0]) for row, _ in owed)]
        if instance is not None:
            names.append(keys.own(shard, instance))
        return self._nodes.run_unbatched(
            _OWE_LINK,
            shard,
            names,
            {
                "window": self._window_ms,
                "keep": str(KEEP_MS),
                "leaves": instance is not None,
                "rows": [row for row, _ in owed],
            },
            [payload for _, payload in owed],
        )


PRESENCE_KEEP_MS: Final = 60_000
_PRESENCE: Final = Script("presence", lambda reply: reply == b"ok")


class RedisPresences:
    """``core.ports.channels.Presences`` over a server or cluster; times are those of the store."""

    def __init__(self, nodes: Nodes, keep_ms: int = PRESENCE_KEEP_MS) -> None:
        self._nodes = nodes
        self._keep_ms = keep_ms

    async def announce(self, owner: str, generation: int, presence: Presence) -> bool:
        """Stores the presence of a connection; False if a newer connection of the channel has stored one.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        return await self._write(owner, presence.channel_id, generation, to_bytes(presence))

    async def withdraw(self, owner: str, channel: str, generation: int) -> None:
        """Removes the presence of a connection that has ended.

        Raises:
            StoreUnavailable: it expires by itself.
        """
        await self._write(owner, channel, generation, b"")

    async def list_present(self, owner: str) -> tuple[PresentDevice, ...]:
        """The devices of one principal that are present, by the ids of their channels.

        A presence that only a newer version can read is left out.

        Raises:
            StoreUnavailable: it is not known.
        """
        shard = shard_of(owner)
        time, rows = await self._nodes.query_all(
            shard, pack("TIME"), pack("HGETALL", keys.presence(shard, owner))
        )
        now_ms, words = as_ms(time), as_hash(rows)
        found = (_read_word(words[channel], now_ms) for channel in sorted(words))
        return tuple(one for one in found if one is not None and one.left_ms > 0)

    async def _write(self, owner: str, channel: str, generation: int, word: bytes) -> bool:
        shard = shard_of(owner)
        return await self._nodes.run(
            _PRESENCE,
            shard,
            [keys.presence(shard, owner), keys.link_hints(shard, owner)],
            {
                "channel": channel,
                "gen": str(generation),
                "keep": self._keep_ms,
                "gone": not word,
            },
            [word],
        )


def _read_word(row: bytes, now_ms: int) -> PresentDevice | None:
    until, _, word = row.split(b"|", 2)
    try:
        presence = from_bytes(Presence, word, newer=True)
    except InvalidInput:
        return None  # of a newer version, such as an unknown state
    return PresentDevice(presence, int(until) - now_ms)
