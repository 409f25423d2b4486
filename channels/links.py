"""Facts about device links, in the home session of their principal (EXT-8, CHN-1, CHN-4, CHN-10).

A link event is first stored as pending, and then written by the handler of a due row (I9): the first of a kind at once,
all others within a minute as one more fact. So hundreds of reconnects of one device leave two facts of each kind,
whichever instances they used, and another instance writes what a crashed one left pending. The start of a link is
stored as pending right after it, and later during a surge: if the instance crashes before, that start is not recorded.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.channels.link_record import LinkRecord
from passerelle.channels.story import LinkEnded, LinkStarted, StreamRepaired
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.payloads.channel import (
    ChannelConnected,
    ChannelDisconnected,
    ChannelResumed,
    NativeIds,
    Resumption,
)
from passerelle.core.payloads.history import Repair, SnapshotRepaired
from passerelle.core.ports.channels import PendingLink
from passerelle.core.principal import Principal
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change, record
from passerelle.runtime.common.deferred_queue import BurstDetector, DeferredQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.services import ChannelLink
    from passerelle.channels.story import LinkFact, StreamResumed
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.ports.channels import Channels, Links
    from passerelle.core.ports.due import DueRow
    from passerelle.runtime.records.places import Home
    from passerelle.runtime.records.recoveries import Recoveries

ROW: Final = "link"
LinkPayload: TypeAlias = ChannelConnected | ChannelResumed | ChannelDisconnected | SnapshotRepaired
_WAKE_S: Final = 0.05
_SURGE: Final = 16
_SURGE_WITHIN_S: Final = 1.0
_SURGE_DEFERS_S: Final = 0.25
_SURGE_WAITS_MS: Final = 3_000
"""In a surge (``_SURGE`` links within ``_SURGE_WITHIN_S``) facts are written this much later, after the events."""
_NOTHING: Final = PendingLink(b"", b"", 0, 0)


@record
class _Connected:
    generation: int
    last_seen_at: str


@record
class _Resumed:
    generation: int
    streams: tuple[Resumption, ...]


@frozen
class StoredLinkFacts:
    """``channels.services.LinkFacts``, and the handler of its rows. ``drives`` names this instance in a shard."""

    links: Links
    channels: Channels
    home: Home
    recoveries: Recoveries
    drives: Callable[[Shard], Incarnation]
    wake: Callable[[Shard, float], None]
    surge: BurstDetector = field(default_factory=lambda: BurstDetector(_SURGE, _SURGE_WITHIN_S))
    afterwards: DeferredQueue = field(default_factory=lambda: DeferredQueue(_SURGE_DEFERS_S))

    def find_driver(self, owner: str) -> Incarnation | None:
        """The incarnation whose lease covers a principal's links; None while this instance holds none there."""
        try:
            return self.drives(shard_of(owner))
        except StoreUnavailable:
            return None

    def record(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        """Stores a link event as pending; if the future has StoreUnavailable, it may not be stored."""
        loop = asyncio.get_running_loop()
        in_surge = self.surge.join(loop.time())
        if not (in_surge and isinstance(fact, LinkStarted)):
            return self._store_pending(link, fact, _SURGE_WAITS_MS if in_surge else 0)
        stored: asyncio.Future[None] = loop.create_future()
        self.afterwards.add(partial(self._store_deferred, stored, link, fact))
        return stored

    def _store_deferred(
        self, stored: asyncio.Future[None], link: ChannelLink, fact: LinkFact
    ) -> None:
        self._store_pending(link, fact, _SURGE_WAITS_MS).add_done_callback(
            partial(_copy_outcome, stored)
        )

    def _store_pending(
        self, link: ChannelLink, fact: LinkFact, wait_ms: int
    ) -> asyncio.Future[None]:
        channel, generation = link.channel, link.generation
        store = partial(self.links.add_pending, channel, generation, wait_ms=wait_ms)
        match fact:
            case LinkStarted(resumed=True, streams=streams):
                owed = _Resumed(generation, tuple(_name_resumption(one) for one in streams))
                storing = store("resumed", to_bytes(owed))
            case LinkStarted():
                seen = _Connected(generation, link.since)
                storing = store("connected", to_bytes(seen))
            case StreamRepaired():
                storing = store("repaired", to_bytes(_name_repair(fact)), listed=True)
            case LinkEnded(reason, code, acked):
                ended = ChannelDisconnected(channel, generation, reason, code, {**acked})
                driver = self.find_driver(link.owner)
                leaves = driver.instance if driver else None
                storing = store("disconnected", to_bytes(ended), leaves=leaves)
            case _:
                assert_never(fact)
        stored = asyncio.ensure_future(storing)
        stored.add_done_callback(partial(self._wake_when_stored, shard_of(channel), wait_ms))
        return stored

    def _wake_when_stored(self, shard: Shard, wait_ms: int, stored: asyncio.Future[None]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self.wake(shard, max(_WAKE_S, wait_ms / 1000))

    async def lose(self, channel: str, instance: str) -> None:
        """Stores the end of a link whose instance has crashed as pending.

        Raises:
            StoreUnavailable: the link stays in the set of the crashed instance.
        """
        generation = await self.channels.read_generation(channel)
        ended = ChannelDisconnected(channel, generation, "instance_lost")
        await self.links.mark_lost(channel, to_bytes(ended), instance)
        self.wake(shard_of(channel), _WAKE_S)

    async def on_due(self, _shard: Shard, row: DueRow, _now_ms: int) -> None:
        """Writes the pending events of one kind about one link.

        Raises:
            StoreUnavailable: the row stays.
        """
        kind = row.member.rpartition(":")[2]
        owed = await self.links.read_pending(row.entity, kind) or _NOTHING
        if owed.total > owed.written:
            known = from_bytes(LinkRecord, owed.record, newer=True)
            fact = await self._compose(known, kind, owed)
            who = Principal(known.principal, known.tenant)
            await self.home.record(who, fact, key=f"link {row.entity} {kind} {owed.total}")
        await self.links.settle(row, kind, owed, listed=kind == "repaired")

    async def _compose(self, known: LinkRecord, kind: str, owed: PendingLink) -> LinkPayload:
        times = owed.total - owed.written
        match kind:
            case "connected":
                seen = from_bytes(_Connected, owed.payloads, newer=True)
                return _describe_connection(known, seen, times)
            case "resumed":
                resumed = from_bytes(_Resumed, owed.payloads, newer=True)
                recovery = await self.recoveries.find(
                    known.account_ref, resumed.streams, paired=known.paired
                )
                return ChannelResumed(
                    known.channel_id, resumed.generation, recovery, resumed.streams, times
                )
            case "repaired":
                lines = owed.payloads.splitlines()
                repairs = tuple(from_bytes(Repair, line, newer=True) for line in lines)
                return SnapshotRepaired(repairs, known.channel_id, times=times)
            case _:
                ended = from_bytes(ChannelDisconnected, owed.payloads, newer=True)
                return change(ended, times=times)


def _copy_outcome(stored: asyncio.Future[None], owed: asyncio.Future[None]) -> None:
    """A started write is never cancelled, so it ends with a result or an exception."""
    error = owed.exception()
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _describe_connection(known: LinkRecord, seen: _Connected, times: int) -> ChannelConnected:
    return ChannelConnected(
        channel_id=known.channel_id,
        transport=known.transport,
        peer_role=known.peer_role,
        account_ref=known.account_ref,
        native_protocol=known.native_protocol,
        generation=seen.generation,
        last_seen_at=seen.last_seen_at,
        capabilities=known.capabilities,
        native=NativeIds(device_id=known.device_id),
        client=known.client or None,
        resume_token_ref=known.resume_token_ref,
        times=times,
    )


def _name_resumption(taken: StreamResumed) -> Resumption:
    return Resumption(taken.stream, taken.mode, taken.begins, taken.ends)


def _name_repair(fact: StreamRepaired) -> Repair:
    held = fact.have.sequence if fact.have else 0
    return Repair(fact.stream, held, fact.top.sequence, fact.why.value)
