"""Cursors that are verified, never only compared: no gap is silent (I8).

A cursor reads ``<epoch>.<sequence>.<chain>`` and names a position in one history. The chain is a
running hash over event ids: ``chain(0) = H(epoch)`` and ``chain(n) = H(chain(n-1) + event id n)``, where
``H`` is the first 8 hex digits of SHA-1. Entry ``n`` stores ``chain(n-1)``, the head stores the chain of
the top, so a position is proven by its successor, or by the head when it has none. After a lost tail
the epoch is the same and sequences are used again: only the chain tells the two histories apart.

Clients store and return the whole text and never combine parts of two cursors.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.errors import BadCursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.log import Entry, Head

_TEXT: Final = re.compile(r"([0-9a-f]{8})\.(0|[1-9][0-9]{0,15})\.([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position after ``sequence``; sequence 0 is the beginning."""

    epoch: str
    sequence: int
    chain: str

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}.{self.chain}"


class GapReason(StrEnum):
    """Why a cursor cannot be honoured exactly."""

    TRIMMED = "trimmed"
    """Retention archived what follows the cursor."""
    EPOCH = "epoch"
    """The stream was made anew."""
    AHEAD = "ahead"
    """Beyond the end: acknowledged writes were lost."""
    FORKED = "forked"
    """The sequence exists, with another history."""
    LOST = "lost"
    """Head or entries are missing, and no trim says why."""
    LIMIT = "limit"
    """More missed events than the replay limit."""
    SLOW = "slow"
    """Fell behind the ring and beyond the replay limit while open."""


DISCARDS_STATE: Final = frozenset({GapReason.EPOCH, GapReason.AHEAD, GapReason.FORKED})
"""What a reader built from the lost history is wrong, not only old."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A stored entry whose place in the chain has been checked; ``chain`` is the chain after it.

    ``memo`` keeps other forms of the entry (prebuilt frames), made once and not once per reader.
    """

    entry: Entry
    chain: str
    memo: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Held:
    """The cursor holds; ``entries`` follow it without a hole. Empty: it was the end when ``head`` was read."""

    entries: tuple[Linked, ...]
    head: Head


@dataclass(frozen=True, slots=True)
class Broken:
    """The cursor does not hold; ``head`` is what was read, None where there is no stream."""

    why: GapReason
    head: Head | None


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Entries are missing; a trim may have come between the two reads."""


Verdict: TypeAlias = Held | Broken | ReadAgain


def parse_cursor(text: str, field: str = "cursor") -> Cursor:
    """Reads a cursor text of at most 34 characters.

    Raises:
        BadCursor: it is not one; names ``field``. (A cursor that parses and does not hold is a gap.)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise BadCursor(field, "not a cursor of the form epoch.sequence.chain")
    return Cursor(match[1], int(match[2]), match[3])


def start_chain(epoch: str) -> str:
    """The chain before the first entry of a stream."""
    return _shorten(epoch)


def extend_chain(chain: str, event_id: str) -> str:
    """The chain after an entry, from the chain before it."""
    return _shorten(chain + event_id)


def end_of(head: Head) -> Cursor:
    """The position after the last event of the stream."""
    return Cursor(head.epoch, head.sequence, head.chain)


def verify(head: Head | None, page: Sequence[Entry], cursor: Cursor) -> Verdict:
    """Judges a cursor by the head and the page after it, read in this order.

    The page may reach past the head, which is older. On ``ReadAgain`` both are to be read once more and
    given to ``verify_again``.
    """
    if head is None:
        return Broken(GapReason.LOST, None)
    if cursor.epoch != head.epoch:
        return Broken(GapReason.EPOCH, head)
    if page and page[0].sequence == cursor.sequence + 1:
        if page[0].previous == cursor.chain:
            return Held(link_entries(page, cursor), head)
        return Broken(GapReason.FORKED, head)
    if cursor.sequence > head.sequence:
        return Broken(GapReason.AHEAD, head)
    if cursor.sequence == head.sequence and not page:
        return Held((), head) if cursor.chain == head.chain else Broken(GapReason.FORKED, head)
    return ReadAgain()


def verify_again(head: Head | None, page: Sequence[Entry], cursor: Cursor) -> Held | Broken:
    """Judges the second reading of both: entries that are still missing are gone."""
    verdict = verify(head, page, cursor)
    if not isinstance(verdict, ReadAgain):
        return verdict
    trimmed = head is not None and head.first > cursor.sequence + 1
    return Broken(GapReason.TRIMMED if trimmed else GapReason.LOST, head)


def link_entries(page: Sequence[Entry], cursor: Cursor) -> tuple[Linked, ...]:
    """The longest prefix of ``page`` that continues the chain of ``cursor``.

    Where it ends early, the next read begins at the break and tells what it is.
    """
    linked: list[Linked] = []
    sequence, chain = cursor.sequence, cursor.chain
    for entry in page:
        if entry.sequence != sequence + 1 or entry.previous != chain:
            break
        sequence, chain = entry.sequence, extend_chain(chain, entry.event_id)
        linked.append(Linked(entry, chain))
    return tuple(linked)


def _shorten(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
