"""Facts about device links, in the home session of their principal (EXT-8, CHN-1, CHN-4, CHN-10).

What a connection has to tell is owed first, in the store, and written by the handler of a due row (I9): the first of a
kind at once, and all that follow within a minute as one more. So hundreds of reconnects of one device leave two facts
of each kind, whichever instances they met, and what an instance owes when it dies another one writes. That a link has
begun is owed just after it has, and later in a surge: an instance that dies before has not said so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.channels.link_record import LinkRecord
from passerelle.channels.story import Began, Over, Repaired
from passerelle.core.errors import StoreUnavailable
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
    from passerelle.channels.story import LinkFact, TakenUp
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
_SURGE_OWES_S: Final = 0.25
_SURGE_WAITS_MS: Final = 3_000
"""So many links within a second are a surge. That they began is owed so much later, and what is owed waits so long:
devices that come back by the hundred get their events before anything is written about them."""
_NOTHING: Final = PendingLink(b"", b"", 0, 0)


@record
class _Connected:
    generation: int
    last_seen_at: str


@record
class _Resumed:
    generation: int
    streams: tuple[Resumption, ...]


@dataclass(frozen=True, slots=True)
class StoredLinkFacts:
    """``channels.services.LinkFacts``, and the handler of its rows. ``drives`` names this instance in a shard."""

    links: Links
    channels: Channels
    home: Home
    recoveries: Recoveries
    drives: Callable[[Shard], Incarnation]
    wake: Callable[[Shard, float], None]
    surge: BurstDetector = field(default_factory=lambda: BurstDetector(_SURGE, _SURGE_WITHIN_S))
    afterwards: DeferredQueue = field(default_factory=lambda: DeferredQueue(_SURGE_OWES_S))

    def find_driver(self, owner: str) -> Incarnation | None:
        """Under whose lease a link of a principal stands; None while we hold none there."""
        try:
            return self.drives(shard_of(owner))
        except StoreUnavailable:
            return None

    def tell(self, link: ChannelLink, fact: LinkFact) -> asyncio.Future[None]:
        """Owes what a connection has to tell; with StoreUnavailable in the future, nothing is known to be owed."""
        loop = asyncio.get_running_loop()
        in_surge = self.surge.join(loop.time())
        if not (in_surge and isinstance(fact, Began)):
            return self._owe(link, fact, _SURGE_WAITS_MS if in_surge else 0)
        told: asyncio.Future[None] = loop.create_future()
        self.afterwards.add(partial(self._owe_for, told, link, fact))
        return told

    def _owe_for(self, told: asyncio.Future[None], link: ChannelLink, fact: LinkFact) -> None:
        self._owe(link, fact, _SURGE_WAITS_MS).add_done_callback(partial(_hand_on, told))

    def _owe(self, link: ChannelLink, fact: LinkFact, wait_ms: int) -> asyncio.Future[None]:
        channel, generation = link.channel, link.generation
        owe = partial(self.links.add_pending, channel, generation, wait_ms=wait_ms)
        match fact:
            case Began(resumed=True, streams=streams):
                owed = _Resumed(generation, tuple(_name_resumption(one) for one in streams))
                owing = owe("resumed", to_bytes(owed))
            case Began():
                seen = _Connected(generation, link.since)
                owing = owe("connected", to_bytes(seen))
            case Repaired():
                owing = owe("repaired", to_bytes(_name_repair(fact)), listed=True)
            case Over(reason, code, acked):
                ended = ChannelDisconnected(channel, generation, reason, code, {**acked})
                driver = self.find_driver(link.owner)
                leaves = driver.instance if driver else None
                owing = owe("disconnected", to_bytes(ended), leaves=leaves)
            case _:
                assert_never(fact)
        told = asyncio.ensure_future(owing)
        told.add_done_callback(partial(self._wake_when_owed, shard_of(channel), wait_ms))
        return told

    def _wake_when_owed(self, shard: Shard, wait_ms: int, told: asyncio.Future[None]) -> None:
        if not told.cancelled() and told.exception() is None:
            self.wake(shard, max(_WAKE_S, wait_ms / 1000))

    async def lose(self, channel: str, instance: str) -> None:
        """Owes the end of a link whose instance has died.

        Raises:
            StoreUnavailable: it still stands in the set of the dead.
        """
        generation = await self.channels.read_generation(channel)
        ended = ChannelDisconnected(channel, generation, "instance_lost")
        await self.links.mark_lost(channel, to_bytes(ended), instance)
        self.wake(shard_of(channel), _WAKE_S)

    async def on_due(self, _shard: Shard, row: DueRow, _now_ms: int) -> None:
        """Writes what is owed of one kind about one link.

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


def _hand_on(told: asyncio.Future[None], owed: asyncio.Future[None]) -> None:
    """Nobody cancels an owing that has begun, so it ends with a result or a failure."""
    error = owed.exception()
    if told.done():
        return
    if error is None:
        told.set_result(None)
    else:
        told.set_exception(error)


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


def _name_resumption(taken: TakenUp) -> Resumption:
    return Resumption(taken.stream, taken.mode, taken.begins, taken.ends)


def _name_repair(fact: Repaired) -> Repair:
    held = fact.have.sequence if fact.have else 0
    return Repair(fact.stream, held, fact.top.sequence, fact.why.value)
