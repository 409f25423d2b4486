"""Selects the sessions to verify: a random sample, or those with recent events."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged, InvalidInput
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import parse_ms
from passerelle.protocol.concurrency import join_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from passerelle.core.ports.log import EventLog

_AT_ONCE: Final = 64
_BITS: Final = 64


@frozen
class SessionSubset:
    """At most ``sample`` sessions, and only those with an event at or after ``since_ms``; None: no such bound.

    ``draw(bits)`` returns random bits for the sample.
    """

    sample: int | None = None
    since_ms: int | None = None
    draw: Callable[[int], int] | None = None

    @property
    def is_all(self) -> bool:
        """Whether no session is left out."""
        return self.sample is None and self.since_ms is None


ALL: Final = SessionSubset()


async def choose(log: EventLog, sessions: Iterable[str], subset: SessionSubset) -> list[str]:
    """The selected sessions, by their ids. A session whose last event cannot be read is always selected.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    names = sorted(sessions)
    if subset.since_ms is not None:
        names = await _list_since(log, names, subset.since_ms)
    draw = subset.draw
    if subset.sample is None or draw is None:
        return names
    return sorted(heapq.nsmallest(subset.sample, names, key=lambda _name: draw(_BITS)))


async def _list_since(log: EventLog, names: list[str], since_ms: int) -> list[str]:
    found = list[str]()
    for part in in_chunks(names, _AT_ONCE):
        times = await join_all(_read_last_ms(log, name) for name in part)
        dated = zip(part, times, strict=True)
        found += [name for name, at_ms in dated if at_ms is None or at_ms >= since_ms]
    return found


async def _read_last_ms(log: EventLog, session: str) -> int | None:
    if read_shard(session) is None:
        return None
    stream = StreamRef(StreamKind.SESSION, session)
    try:
        head = await log.read_head(stream)
        page = await log.read_page(stream, head.sequence - 1, 1) if head else []
        return parse_ms(decode_event(page[0].data).timestamp) if page else None
    except (ArchiveDamaged, InvalidInput, ValueError):
        return None
