"""What the append of a question has seen of its shard's feed, and what it has itself written there.

With this the relay of the same process can carry a question to its inbox without reading anything of what was just
stored here. It is taken for what it is, a read of the feed that is as old as the append: rows that it does not reach,
and events of others, are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.ports.log import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.events import EncodedEvent
    from passerelle.core.ids import Shard
    from passerelle.core.machine import Record
    from passerelle.core.ports.projections import FeedRow, FeedTail


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """The end of a feed behind one append, and the events and records of its own row."""

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
        """Its events as they stand in the session's stream; what comes before each is not known here."""
        for sequence, event in enumerate(self.events, self.first):
            data, frame = event.at(sequence)
            yield Entry(sequence, event.event_id, event.type, "", data, frame, event.facade)


def name_row(row: FeedRow) -> tuple[str, int, int]:
    """A feed row by the events that it stands for."""
    return row.session, row.first, row.last


def find_after(snapshots: Sequence[FeedSnapshot], feed_id: str | None) -> list[FeedRow]:
    """The rows of a feed behind one id, or all of them; none where it is not known that these are all."""
    for snapshot in reversed(snapshots):
        if feed_id is None and not snapshot.tail.is_whole:
            continue
        rows = snapshot.tail.read()
        if feed_id is None:
            return list(rows)
        if snapshot.tail.is_whole or _order(rows[0]) <= read_id(feed_id):
            return [row for row in rows if _order(row) > read_id(feed_id)]
    return []


def _order(row: FeedRow) -> tuple[int, int]:
    return read_id(row.id)


def read_id(feed_id: str) -> tuple[int, int]:
    """An id of a feed as it compares with others: as a pair of numbers, not as text."""
    milliseconds, _, count = feed_id.partition("-")
    return int(milliseconds), int(count or 0)
