"""The end of a shard's feed as the append of an approval saw it, and the feed row that this append wrote.

The relay of the same process uses it to carry an approval to its inbox without reading what was just stored here. It
is a read of the feed as old as the append: rows outside of it, and events of other instances, are read from the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.ports.log import Entry
from passerelle.core.ports.projections import order_feed_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.events import EncodedEvent
    from passerelle.core.ids import Shard
    from passerelle.core.machine import Record
    from passerelle.core.ports.projections import FeedRow, FeedTail


@frozen
class FeedSnapshot:
    """The last rows of a feed after one append, and the events and records of that append's own row."""

    shard: Shard
    session: str
    first: int
    last: int
    events: tuple[EncodedEvent, ...]
    records: Mapping[EntityRef, Record | None]
    tail: FeedTail

    @property
    def row(self) -> tuple[str, int, int]:
        """The feed row of this append, as ``name_row`` names it."""
        return self.session, self.first, self.last

    def list_entries(self) -> Iterator[Entry]:
        """Its events as stored in the session's stream; the chain before each is not known here."""
        for sequence, event in enumerate(self.events, self.first):
            data, frame = event.at(sequence)
            yield Entry(sequence, event.event_id, event.type, "", data, frame, event.facade)


def name_row(row: FeedRow) -> tuple[str, int, int]:
    """A feed row by the events that it refers to."""
    return row.session, row.first, row.last


def find_after(snapshots: Sequence[FeedSnapshot], feed_id: str | None) -> list[FeedRow]:
    """The rows of a feed after an id, or all of them; empty if the snapshots may lack some of these rows."""
    for snapshot in reversed(snapshots):
        if feed_id is None and not snapshot.tail.is_whole:
            continue
        rows = snapshot.tail.read()
        if feed_id is None:
            return list(rows)
        if snapshot.tail.is_whole or order_feed_id(rows[0].id) <= order_feed_id(feed_id):
            return [row for row in rows if order_feed_id(row.id) > order_feed_id(feed_id)]
    return []
