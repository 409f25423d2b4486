"""Delivers rows to other shards: in the order of the feed, and again where a target has lost some.

A target stores, with the rows, how far it has taken those of each source. A failover can undo both there, while the
source's own mark stays. So the last mark of each target is kept here, and stored with the source's mark for the next
owner of the duty: a target with a lower mark is behind. Its shard gets a new epoch, since it lost acknowledged writes,
and all rows above its mark are sent again. Where the feed does not reach back that far, the views of the source are
rebuilt from its streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.projections import Behind, IndexRow, ProjectionRow, Taken, order_feed_id
from passerelle.protocol.concurrency import join_all

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.projections import FeedRow, Projections

_PAGE: Final = 128

FeedRows: TypeAlias = list[tuple[str, list[ProjectionRow]]]
"""Feed ids with the rows of each, in the order of the feed."""

LoseTail: TypeAlias = Callable[[Shard, int, str], Awaitable[None]]
"""Called when a shard has lost acknowledged writes: the shard, the epoch under which they were seen, the reporter."""


@dataclass(slots=True)
class RowBatch:
    """Rows for one destination, under the feed id of the last of them."""

    feed_id: str
    rows: list[ProjectionRow]


@dataclass(slots=True)
class RowDelivery:
    """Sends rows to their targets.

    ``project`` derives the rows of a part of the feed, ``lose`` is called with a target that has lost rows, and
    ``rebuild(source)`` schedules a rebuild of the views of a source.
    """

    projections: Projections
    project: Callable[[Shard, list[FeedRow]], Awaitable[FeedRows]]
    lose: LoseTail
    rebuild: Callable[[Shard], Awaitable[None]]
    log: FilteringBoundLogger
    _taken: dict[Shard, dict[Shard, Taken]] = field(
        default_factory=dict["Shard", "dict[Shard, Taken]"]
    )

    def list_taken(self, source: Shard) -> Mapping[Shard, Taken]:
        """What each target was last known to have of a source."""
        return self._taken.get(source, {})

    def forget(self, source: Shard) -> None:
        """Discards what is known of a source: it has a new epoch, or another owner."""
        self._taken.pop(source, None)

    async def recall(self, source: Shard, taken: Mapping[Shard, Taken]) -> None:
        """Takes over the marks that an earlier owner of the duty stored, and sends again what was lost since.

        Raises:
            StoreUnavailable: the rest is sent by a retry.
        """
        self._taken[source] = {**taken}
        await self.audit(source)

    async def audit(self, source: Shard) -> None:
        """Reads how far every target has taken a source, and sends again what was lost.

        Raises:
            StoreUnavailable: the rest is sent by a retry.
        """
        await join_all(
            self._compare(source, target, known)
            for target, known in [*self._taken.get(source, {}).items()]
        )

    async def send(self, source: Shard, found: FeedRows) -> Collection[str]:
        """Sends each target its rows, in order; returns the tenants whose lists have followers, as the targets report.

        Raises:
            StoreUnavailable: the rest is sent by a retry.
        """
        parcels = pack_parcels(found)
        if len(parcels) == 1:
            # In such a short time most shards write for one owner.
            [(target, mine)] = parcels.items()
            return await self._send_to(source, target, mine)
        answers = await join_all(
            self._send_to(source, target, mine) for target, mine in parcels.items()
        )
        return {tenant for watched in answers for tenant in watched}

    async def _send_to(
        self, source: Shard, target: Shard, parcels: Iterable[RowBatch]
    ) -> tuple[str, ...]:
        taken = self._taken.setdefault(source, {})
        watched: tuple[str, ...] = ()
        for parcel in parcels:
            known = taken.get(target)
            before = "" if known is None else known.mark
            answer = await self.projections.advance(
                source, target, parcel.feed_id, parcel.rows, before
            )
            while isinstance(answer, Behind):
                await self._send_again(source, target, answer.mark, known)
                before = taken[target].mark if target in taken else ""
                answer = await self.projections.advance(
                    source, target, parcel.feed_id, parcel.rows, before
                )
            taken[target], watched = answer, watched + answer.watched
        return watched

    async def _compare(self, source: Shard, target: Shard, known: Taken) -> None:
        has = await self.projections.read_taken(source, target)
        if is_behind(has, known.mark):
            await self._send_again(source, target, has, known)

    async def _send_again(
        self, source: Shard, target: Shard, has: str, known: Taken | None
    ) -> None:
        """Sends the rows of the feed above the target's mark, up to what it had taken."""
        if known is None:
            return
        await self.lose(target, known.epoch, "relay")
        epoch, _, up_to = known.mark.partition(".")
        after = has.partition(".")[2] if has.partition(".")[0] == epoch else None
        self.log.warning("relay.sent_again", source=source.tag, target=target.tag, after=after)
        if not await self.projections.reaches_back(source, after):
            await self.rebuild(source)
        taken = self._taken.setdefault(source, {})
        taken.pop(target, None)
        at, highest = after, order_feed_id(up_to)
        while page := await self.projections.read_feed(source, at, _PAGE):
            at = page[-1].id
            rows = [row for row in page if order_feed_id(row.id) <= highest]
            mine = pack_parcels(await self.project(source, rows)).get(target, []) if rows else []
            await self._send_to(source, target, mine)
            if len(rows) < len(page):
                break


def is_behind(has: str, known: str) -> bool:
    """Whether a target's mark is lower than the last known one; a mark of a newer source epoch proves nothing."""
    epoch, _, feed_id = has.partition(".")
    known_epoch, _, known_id = known.partition(".")
    if not has or int(epoch) < int(known_epoch):
        return True
    return epoch == known_epoch and order_feed_id(feed_id) < order_feed_id(known_id)


def pack_parcels(found: Iterable[tuple[str, list[ProjectionRow]]]) -> dict[Shard, list[RowBatch]]:
    """The calls to each destination: one per feed row with inbox rows; index rows are collected into the next call."""
    parcels: dict[Shard, list[RowBatch]] = {}
    for feed_id, rows in found:
        by_target: dict[Shard, list[ProjectionRow]] = {}
        for row in rows:
            by_target.setdefault(shard_of(row.owner), []).append(row)
        for target, mine in by_target.items():
            sent = parcels.setdefault(target, [])
            if sent and all(isinstance(row, IndexRow) for row in sent[-1].rows):
                sent[-1].feed_id = feed_id
                sent[-1].rows += mine
            else:
                sent.append(RowBatch(feed_id, mine))
    for sent in parcels.values():
        for parcel in sent:
            parcel.rows = _drop_older(parcel.rows)
    return parcels


def _drop_older(rows: list[ProjectionRow]) -> list[ProjectionRow]:
    """Keeps only the newest of several index rows of one task in one list: each feed row of a task brings one."""
    newest: dict[tuple[str, str, str], IndexRow] = {}
    for row in rows:
        if isinstance(row, IndexRow):
            name = (row.owner, row.agent, row.facade)
            known = newest.get(name)
            # A row that leaves a list has no time to compare.
            if known is None or row.part == "gone" or known.at_ms <= row.at_ms:
                newest[name] = row
    return [*newest.values(), *(row for row in rows if not isinstance(row, IndexRow))]
