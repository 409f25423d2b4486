"""Hints: notifications about a stream, published with each append. A hint saves a read and decides nothing.

A hint of stored events is ``e <first>-<last>.<chain before>.<chain after>`` and a line feed, then, if they are small,
the events as stored (``core.packed_events``) and one more separator. Hints that begin with another letter are not for
followers.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.event_chain import extend_chain
from passerelle.core.frozen import frozen
from passerelle.core.packed_events import SEPARATOR, unpack_events

if TYPE_CHECKING:
    from passerelle.core.ports.log import Entry

_FIRST_LINE: Final = re.compile(rb"e ([0-9]+)-([0-9]+)\.([0-9a-f]{8})\.([0-9a-f]{8})\n?")


@frozen
class Hint:
    """Events ``first`` to ``last`` were stored; ``entries`` is empty if the hint had no room for them."""

    first: int
    last: int
    previous: str
    chain: str
    entries: tuple[Entry, ...]


def parse_hint(raw: bytes, stream: str) -> Hint | None:
    """Parses a hint of events stored in a stream; None for any other hint.

    Entries that do not continue the chain of the first line are dropped: the follower then reads.
    """
    opening = _FIRST_LINE.match(raw)
    if opening is None:
        return None
    first, last = int(opening[1]), int(opening[2])
    previous, chain = opening[3].decode(), opening[4].decode()
    entries: list[Entry] = []
    if raw.endswith(SEPARATOR):
        with suppress(ValueError):
            entries = unpack_events(raw[opening.end() : -1], stream, last, previous)
    if len(entries) == last - first + 1:
        end = entries[-1]
        if extend_chain(end.previous, end.event_id) == chain:
            return Hint(first, last, previous, chain, tuple(entries))
    return Hint(first, last, previous, chain, ())
