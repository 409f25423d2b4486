"""Hints: news of a stream, published beside each append. A hint saves a read and decides nothing.

A hint of stored events reads ``e <first>-<last>.<chain before>.<chain after>``, then, while they are few
bytes, per event a line ``<event id> <type> <offset,length or -> <facade id or -> <bytes>`` followed by the
envelope itself. Other hints begin with another letter and are none of a follower's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from passerelle.core.ports.log import Entry
from passerelle.protocol.cursor import extend_chain

_FIRST_LINE: Final = re.compile(rb"e ([0-9]+)-([0-9]+)\.([0-9a-f]{8})\.([0-9a-f]{8})\n?")
_EVENT_LINE: Final = re.compile(
    rb"([!-~]+) ([!-~]+) (?:-|([0-9]+),([0-9]+)) (?:-|([!-~]+)) ([0-9]+)\n"
)


@dataclass(frozen=True, slots=True)
class Hint:
    """Events ``first`` to ``last`` were stored; ``entries`` is empty where the hint had no room for them."""

    first: int
    last: int
    previous: str
    chain: str
    entries: tuple[Entry, ...]


def parse_hint(raw: bytes) -> Hint | None:
    """Reads a hint of stored events; None for any other hint.

    Entries that do not continue the chain that the first line names are dropped: the reader then reads.
    """
    opening = _FIRST_LINE.match(raw)
    if opening is None:
        return None
    first, last = int(opening[1]), int(opening[2])
    previous, chain = opening[3].decode(), opening[4].decode()
    entries = _parse_entries(raw, opening.end(), first, previous)
    whole = len(entries) == last - first + 1
    if whole and extend_chain(entries[-1].previous, entries[-1].event_id) == chain:
        return Hint(first, last, previous, chain, tuple(entries))
    return Hint(first, last, previous, chain, ())


def _parse_entries(raw: bytes, start: int, first: int, chain: str) -> list[Entry]:
    entries: list[Entry] = []
    while start < len(raw):
        line = _EVENT_LINE.match(raw, start)
        if line is None or line.end() + int(line[6]) > len(raw):
            return []
        start = line.end() + int(line[6])
        entry = Entry(
            sequence=first + len(entries),
            event_id=line[1].decode(),
            type=line[2].decode(),
            previous=chain,
            data=raw[line.end() : start],
            frame=None if line[3] is None else (int(line[3]), int(line[4])),
            facade=None if line[5] is None else line[5].decode(),
        )
        chain = extend_chain(chain, entry.event_id)
        entries.append(entry)
    return entries
