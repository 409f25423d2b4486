"""The relay: copies changes of this instance's shards to the views in other shards.

It reads the feed of a shard from its mark. Feed rows contain the rows for owners' lists. Where a feed row asks for
projections, the relay reads the events that it names and the records of those events, and the projections derive rows.
Each destination gets its rows in the order of the feed, each with its feed id; then the mark moves. A destination
skips rows up to its own mark for this source, so every step may be repeated: by this instance after a crash, by
another owner of the duty, or by both at once.

The rows of one feed row travel in one call under its own id. Only index rows wait for the next call to their
destination, since writing them twice is harmless: an inbox row under a later id would be delivered twice.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.batch import EntityRef
from passerelle.core.errors import RecordDamaged
from passerelle.core.ids import Shard
from passerelle.core.machine import read_loaded
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import ProjectionRow
from passerelle.delegation.duties.rounds import Rounds
from passerelle.delegation.duties.row_delivery import RowDelivery
from passerelle.delegation.duties.tenant_notes import TenantNotes
from passerelle.delegation.projections import REGISTRY, Projection, read_entity
from passerelle.protocol.concurrency import join_all
from passerelle.runtime.records.feed_snapshot import find_after, name_row
from passerelle.runtime.records.lag import RELAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import Loaded
    from passerelle.core.machine import Record
    from passerelle.core.ports.log import Entry, FactReader
    from passerelle.core.ports.projections import FeedRow, Projections
    from passerelle.delegation.duties.row_delivery import FeedRows, LoseTail
    from passerelle.runtime.records.feed_snapshot import FeedSnapshot

_PAGE: Final = 128
_KEPT_SNAPSHOTS: Final = 32
"""Feed snapshots of local appends that are kept for the next visit of a shard."""
AUDIT_S: Final = 30.0
"""Seconds between two checks whether each target still has the rows that it took."""
_BUSY_S: Final = 0.2
"""Seconds until the next visit of a shard that had approval requests: other instances may be writing there."""


Known: TypeAlias = "Mapping[tuple[str, int, int], FeedSnapshot]"
"""Feed snapshots by the events of their feed rows."""


@dataclass(slots=True)
class ShardRelayPosition:
    """How far the feed of a shard is relayed, and under which epoch of the shard."""

    epoch: int
    feed_id: str | None


@dataclass(slots=True)
class Relay:
    """Relays the shards of ``duties()``. ``learn_epochs`` reads the epochs of all shards again.

    ``facts`` and ``projections`` yield to callers, however large the backlog is.
    """

    facts: FactReader
    projections: Projections
    duties: Callable[[], frozenset[Shard]]
    log: FilteringBoundLogger
    shard_epoch: Callable[[Shard], int]
    learn_epochs: Callable[[], Awaitable[None]]
    lose: LoseTail
    """Called with a shard that has lost rows."""
    rebuild: Callable[[Shard], Awaitable[None]]
    """Schedules a rebuild of a shard's views when the feed does not reach back to the loss."""
    registry: tuple[Projection, ...] = REGISTRY
    count: Callable[[str], None] = lambda _outcome: None
    audit_s: float = AUDIT_S
    _delivery: RowDelivery = field(init=False)
    _notes: TenantNotes = field(init=False)
    _audited_s: dict[Shard, float] = field(default_factory=dict["Shard", float])
    _starts_over: set[Shard] = field(default_factory=set["Shard"])
    _rounds: Rounds = field(init=False)
    _positions: dict[Shard, ShardRelayPosition] = field(
        default_factory=dict["Shard", ShardRelayPosition]
    )
    _snapshots: dict[Shard, list[FeedSnapshot]] = field(
        default_factory=dict["Shard", "list[FeedSnapshot]"]
    )

    def __post_init__(self) -> None:
        self._rounds = Rounds("relay", self.pass_on, self.duties, self.log, self.count)
        self._delivery = RowDelivery(
            self.projections,
            self._project_unseen,
            self.lose,
            self.rebuild,
            self.log,
        )
        self._notes = TenantNotes(self.facts, self.projections, self._read_record, self.log)

    def wake(self, shard: Shard, within_s: float = 0.0) -> None:
        """Something was stored in a shard that a projection may need; a larger ``within_s`` costs less."""
        self._rounds.wake(shard, within_s)

    def on_feed_snapshot(self, seen: FeedSnapshot) -> None:
        """Keeps the feed snapshot of a local append for the shard's next visit."""
        if seen.shard in self.duties():
            self._snapshots[seen.shard] = [*self._snapshots.get(seen.shard, []), seen][
                -_KEPT_SNAPSHOTS:
            ]

    def look_again(self) -> None:
        """The duties have changed. Where another instance had a shard meanwhile, the stored mark counts, not memory."""
        owned = self.duties()
        for shard in self._positions.keys() - owned:
            del self._positions[shard]
            self._forget(shard)
        for shard in self._snapshots.keys() - owned:
            del self._snapshots[shard]
        self._rounds.look_again()

    def start_over(self, shard: Shard) -> None:
        """A shard has lost the tail of its history: sends its feed again, and audits every target."""
        self._positions.pop(shard, None)
        self._snapshots.pop(shard, None)
        self._starts_over.add(shard)
        self._audited_s.clear()
        for one in self.duties():
            self.wake(one)

    async def run(self) -> None:
        """Works until cancelled."""
        await self._rounds.run()

    async def pass_on(self, shard: Shard) -> float:
        """Relays one page of a shard's feed; returns the seconds until the next visit.

        Raises:
            StoreUnavailable: the rest is relayed by a retry, from the same mark.
        """
        position = self._positions.pop(shard, None) or await self._read_position(shard)
        if shard in self._starts_over:
            # Feed ids may repeat those of the lost history.
            await self.learn_epochs()
            position = ShardRelayPosition(self.shard_epoch(shard), None)
            self._forget(shard)
            self._starts_over.discard(shard)
        await self._audit_in_turn(shard)
        seen = self._snapshots.pop(shard, [])
        feed = find_after(seen, position.feed_id)
        feed = feed or await self.projections.read_feed(shard, position.feed_id, _PAGE)
        if feed and feed[-1].epoch > position.epoch:
            # A new epoch: ids may repeat those of a lost history, so the whole kept feed is sent again.
            await self.learn_epochs()
            feed = await self.projections.read_feed(shard, None, _PAGE)
            position, seen = ShardRelayPosition(self.shard_epoch(shard), None), []
            self._forget(shard)
        known = {one.row: one for one in seen}
        leading = self._count_known(feed, known)
        # Rows that need no read, such as approval requests, do not wait for the reads of the rows behind them.
        is_cut = 0 < leading < len(feed)
        feed = feed[:leading] if is_cut else feed
        if feed:
            rows = await self._project(shard, feed, known)
            watched = await self._delivery.send(shard, rows)
            if watched:
                await self._notes.send(shard, rows, watched)
            taken = self._delivery.list_taken(shard)
            await self.projections.move_mark(shard, RELAY, feed[-1].id, taken)
            position = ShardRelayPosition(position.epoch, feed[-1].id)
        self._positions[shard] = position
        if not feed:
            return math.inf
        if is_cut or len(feed) == _PAGE:
            return 0.0
        return _BUSY_S if any(row.look for row in feed) else math.inf

    def _forget(self, shard: Shard) -> None:
        self._delivery.forget(shard)
        self._notes.forget(shard)

    async def _read_position(self, shard: Shard) -> ShardRelayPosition:
        stored = await self.projections.read_position(shard, RELAY)
        await self._delivery.recall(shard, stored.taken)
        self._audited_s[shard] = asyncio.get_running_loop().time()
        if stored.mark is None:
            return ShardRelayPosition(self.shard_epoch(shard), None)
        epoch, _, feed_id = stored.mark.partition(".")
        return ShardRelayPosition(int(epoch), feed_id)

    async def _audit_in_turn(self, shard: Shard) -> None:
        """Audits at intervals: a target that has lost rows may get no new ones for days."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._audited_s.get(shard, -self.audit_s) < self.audit_s:
            return
        self._audited_s[shard] = now_s
        await self._delivery.audit(shard)

    async def _project_unseen(self, shard: Shard, feed: list[FeedRow]) -> FeedRows:
        return await self._project(shard, feed, {})

    async def _project(self, shard: Shard, feed: list[FeedRow], known: Known) -> FeedRows:
        """The rows of each feed row that has some, in the order of the feed; entries in ``known`` are not read."""
        if not any(row.look for row in feed):
            return [(row.id, [*row.index]) for row in feed if row.index]
        pages = await self._read_pages(feed, known)
        wanted = [list(self._find_wanted(page)) for page in pages]
        given = [_list_records(known.get(name_row(row))) for row in feed]
        refs = {
            ref
            for page, records in zip(wanted, given, strict=True)
            for _, _, ref in page
            if ref not in records
        }
        loaded = await self.facts.load(sorted(refs, key=lambda ref: ref.id)) if refs else []
        read = {one.ref: self._read_record(shard, one) for one in loaded}
        found: FeedRows = []
        for row, page, records in zip(feed, wanted, given, strict=True):
            rows: list[ProjectionRow] = [*row.index]
            rows += [
                made
                for entry, projection, ref in page
                if (record := records[ref] if ref in records else read[ref]) is not None
                for made in projection.project(entry, record)
            ]
            if rows:
                found.append((row.id, rows))
        return found

    def _count_known(self, feed: list[FeedRow], known: Known) -> int:
        """The number of rows at the beginning of the feed that need no read."""
        for number, row in enumerate(feed):
            if row.look:
                seen = known.get(name_row(row))
                if seen is None:
                    return number
                wanted = self._find_wanted(seen.list_entries())
                if any(ref not in seen.records for _, _, ref in wanted):
                    return number
        return len(feed)

    async def _read_pages(self, feed: list[FeedRow], known: Known) -> list[list[Entry]]:
        return await join_all(self._read_events(row, known.get(name_row(row))) for row in feed)

    async def _read_events(self, row: FeedRow, seen: FeedSnapshot | None) -> list[Entry]:
        if not row.look:
            return []
        if seen is not None:
            return list(seen.list_entries())
        stream = StreamRef(StreamKind.SESSION, row.session)
        page = await self.facts.read_page(stream, row.first - 1, row.last - row.first + 1)
        return [entry for entry in page if entry.sequence <= row.last]

    def _find_wanted(self, page: Iterable[Entry]) -> Iterable[tuple[Entry, Projection, EntityRef]]:
        for entry in page:
            for projection in self.registry:
                if projection.sees(entry.type):
                    entity = read_entity(entry, projection.kind)
                    if entity is not None:
                        yield entry, projection, EntityRef(projection.kind, entity)

    def _read_record(self, shard: Shard, loaded: Loaded) -> Record | None:
        try:
            return read_loaded(loaded)
        except RecordDamaged as error:
            # Written by another version: an instance that can read it projects it at its next change.
            self.count("unreadable")
            self.log.warning(
                "relay.unreadable", shard=shard.tag, of=loaded.ref.id, why=error.reason
            )
            return None


def _list_records(seen: FeedSnapshot | None) -> Mapping[EntityRef, Record | None]:
    return seen.records if seen else {}
