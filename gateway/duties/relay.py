"""The relay: what was stored in our shards reaches the views that live in others.

It reads the feed of a shard from its mark. Rows of owners' lists stand in the feed itself. Where a projection has to
look, the relay reads the events that the feed names and the records of those events, and the projections make rows of
them. Each destination gets its rows in the order of the feed, each with its feed id; then the mark moves. A destination
skips what is not above its own mark for this source, so everything here may be done again: by us after a crash, by
another owner of the duty, or by both at once.

Rows of one feed row always travel in one call under its own id. Only index rows wait for the next call of their
destination, since writing them twice is harmless: an inbox row that travelled under a later id would come twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.batch import EntityRef
from passerelle.core.errors import InvalidInput
from passerelle.core.ids import Shard, place
from passerelle.core.machine import read_snapshot
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import IndexRow, ProjectionRow
from passerelle.gateway.control.glimpse import find_after, name_row
from passerelle.gateway.control.lag import RELAY
from passerelle.gateway.duties.joining import join_all
from passerelle.gateway.duties.projections import REGISTRY, Projection, read_entity
from passerelle.gateway.duties.rounds import LONGEST_S, Rounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import Loaded
    from passerelle.core.machine import Record
    from passerelle.core.ports.log import Entry, EventLog
    from passerelle.core.ports.projections import FeedRow, Projections
    from passerelle.gateway.control.glimpse import Glimpse

_PAGE: Final = 128
_GLIMPSES: Final = 32
"""Appends whose own rows are kept for the next visit of a shard."""
_BUSY_S: Final = 0.2
"""A shard that had questions is looked at again so soon: other instances may be writing there now."""


Known: TypeAlias = "Mapping[tuple[str, int, int], Glimpse]"
"""What was seen of feed rows, by the events that they stand for."""


@dataclass(slots=True)
class Position:
    """How far the feed of a shard has been relayed, under which epoch of the shard."""

    epoch: int
    feed_id: str | None


@dataclass(slots=True)
class Parcel:
    """Rows for one destination, under the feed id of the last of them."""

    feed_id: str
    rows: list[ProjectionRow] = field(default_factory=list[ProjectionRow])


@dataclass(slots=True)
class Relay:
    """Relays the shards of ``duties()``. ``learn_epochs`` reads the epochs of all shards anew."""

    facts: EventLog
    projections: Projections
    duties: Callable[[], frozenset[Shard]]
    log: FilteringBoundLogger
    learn_epochs: Callable[[], Awaitable[None]]
    registry: tuple[Projection, ...] = REGISTRY
    count: Callable[[str], None] = lambda _outcome: None
    _rounds: Rounds = field(init=False)
    _positions: dict[Shard, Position] = field(default_factory=dict["Shard", Position])
    _glimpses: dict[Shard, list[Glimpse]] = field(default_factory=dict["Shard", "list[Glimpse]"])

    def __post_init__(self) -> None:
        self._rounds = Rounds("relay", self.pass_on, self.duties, self.log, self.count)

    def wake(self, shard: Shard, within_s: float = 0.0) -> None:
        """Something was stored in a shard that a projection may need; what can wait a little costs less."""
        self._rounds.wake(shard, within_s)

    def glimpse(self, seen: Glimpse) -> None:
        """What an append of this process has seen of a feed, in time for the next visit."""
        if seen.shard in self.duties():
            self._glimpses[seen.shard] = [*self._glimpses.get(seen.shard, []), seen][-_GLIMPSES:]

    def look_again(self) -> None:
        """The duties have changed: in a shard that was another's for a while, its mark counts and not our memory."""
        owned = self.duties()
        for shard in self._positions.keys() - owned:
            del self._positions[shard]
        for shard in self._glimpses.keys() - owned:
            del self._glimpses[shard]
        self._rounds.look_again()

    async def run(self) -> None:
        """Works until cancelled."""
        await self._rounds.run()

    async def pass_on(self, shard: Shard) -> float:
        """Relays one page of a shard's feed; returns the seconds after which to look again.

        Raises:
            StoreUnavailable: the rest is relayed by another try, from the same mark.
        """
        position = self._positions.pop(shard, None) or await self._read_position(shard)
        seen = self._glimpses.pop(shard, [])
        feed = find_after(seen, position.feed_id)
        feed = feed or await self.projections.read_feed(shard, position.feed_id, _PAGE)
        if feed and feed[-1].epoch > position.epoch:
            # A new epoch: ids may repeat those of a lost history, so everything that is kept goes again.
            await self.learn_epochs()
            feed = await self.projections.read_feed(shard, None, _PAGE)
            position, seen = Position(self.facts.shard_epoch(shard), None), []
        known = {one.row: one for one in seen}
        leading = self._count_known(feed, known)
        # A question does not wait for what has to be read of the rows behind it.
        is_cut = 0 < leading < len(feed)
        feed = feed[:leading] if is_cut else feed
        if feed:
            await self._send(shard, await self._project(shard, feed, known))
            await self.projections.move_mark(shard, RELAY, feed[-1].id)
            position = Position(position.epoch, feed[-1].id)
        self._positions[shard] = position
        if not feed:
            return LONGEST_S
        if is_cut or len(feed) == _PAGE:
            return 0.0
        return _BUSY_S if any(row.look for row in feed) else LONGEST_S

    async def _read_position(self, shard: Shard) -> Position:
        mark = await self.projections.read_mark(shard, RELAY)
        if mark is None:
            return Position(self.facts.shard_epoch(shard), None)
        epoch, _, feed_id = mark.partition(".")
        return Position(int(epoch), feed_id)

    async def _project(
        self, shard: Shard, feed: list[FeedRow], known: Known
    ) -> list[tuple[str, list[ProjectionRow]]]:
        """The rows of each feed row that has some, in the order of the feed; what is ``known`` is not read."""
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
        found: list[tuple[str, list[ProjectionRow]]] = []
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
        """How many rows the feed begins with of which nothing has to be read."""
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

    async def _read_events(self, row: FeedRow, seen: Glimpse | None) -> list[Entry]:
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
            return read_snapshot(loaded.ref.kind, loaded.snapshot)
        except InvalidInput as error:
            # Written by another version: whoever can read it projects it at its next change.
            self.count("unreadable")
            self.log.warning("relay.unreadable", shard=shard.tag, of=loaded.ref.id, why=str(error))
            return None

    async def _send(self, source: Shard, found: list[tuple[str, list[ProjectionRow]]]) -> None:
        parcels = pack_parcels(found)
        if len(parcels) == 1:
            # Most shards write for one owner in so short a time.
            [(target, mine)] = parcels.items()
            await self._send_to(source, target, mine)
        else:
            await join_all(self._send_to(source, target, mine) for target, mine in parcels.items())

    async def _send_to(self, source: Shard, target: Shard, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            await self.projections.advance(source, target, parcel.feed_id, parcel.rows)


def _list_records(seen: Glimpse | None) -> Mapping[EntityRef, Record | None]:
    return seen.records if seen else {}


def pack_parcels(found: Iterable[tuple[str, list[ProjectionRow]]]) -> dict[Shard, list[Parcel]]:
    """What goes to each destination: one call per feed row with inbox rows, index rows gathered on the way."""
    parcels: dict[Shard, list[Parcel]] = {}
    for feed_id, rows in found:
        by_target: dict[Shard, list[ProjectionRow]] = {}
        for row in rows:
            by_target.setdefault(place(row.owner), []).append(row)
        for target, mine in by_target.items():
            sent = parcels.setdefault(target, [])
            if sent and all(isinstance(row, IndexRow) for row in sent[-1].rows):
                sent[-1].feed_id = feed_id
                sent[-1].rows += mine
            else:
                sent.append(Parcel(feed_id, mine))
    for sent in parcels.values():
        for parcel in sent:
            parcel.rows = _drop_older(parcel.rows)
    return parcels


def _drop_older(rows: list[ProjectionRow]) -> list[ProjectionRow]:
    """Of several index rows of one task in one list only the newest: each feed row of a task brings one."""
    newest: dict[tuple[str, str, str], IndexRow] = {}
    for row in rows:
        if isinstance(row, IndexRow):
            name = (row.owner, row.agent, row.facade)
            known = newest.get(name)
            if known is None or known.at_ms <= row.at_ms:
                newest[name] = row
    return [*newest.values(), *(row for row in rows if not isinstance(row, IndexRow))]
