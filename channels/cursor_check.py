"""Verifies a cursor against the head of its stream and the entries after it (I8).

A position is proven by its successor, which stores the chain before it, or by the head if there is none. A cursor that
cannot be honoured exactly is reported as broken, with the reason; no event is skipped.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

import orjson

from passerelle.core.event_chain import extend_chain
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor, GapReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.log import Entry, Head


@frozen
class LinkedEntry:
    """A stored entry whose place in the chain was checked; ``chain`` is the chain after it.

    ``memo`` caches other forms of the entry (prebuilt frames), built once for all readers.
    """

    entry: Entry
    chain: str
    memo: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False, repr=False)


@frozen
class CursorHeld:
    """The cursor is valid; ``entries`` follow it without a gap. Empty: it was the end when ``head`` was read."""

    entries: tuple[LinkedEntry, ...]
    head: Head


@frozen
class CursorBroken:
    """The cursor is not valid; ``head`` is the one that was read, None if there is no stream."""

    why: GapReason
    head: Head | None


@frozen
class ReadAgain:
    """Entries are missing; a trim may have happened between the two reads."""


CursorVerdict: TypeAlias = CursorHeld | CursorBroken | ReadAgain


def end_of(head: Head) -> Cursor:
    """The position after the last event of the stream."""
    return Cursor(head.epoch, head.sequence, head.chain)


def verify(head: Head | None, page: Sequence[Entry], cursor: Cursor) -> CursorVerdict:
    """Verifies a cursor by the head and the page after it, read in this order.

    The page may reach beyond the head, which is older. After ``ReadAgain`` both are read once more and passed to
    ``verify_again``.
    """
    if head is None:
        return CursorBroken(GapReason.LOST, None)
    if cursor.epoch != head.epoch:
        return CursorBroken(GapReason.EPOCH, head)
    if page and page[0].sequence == cursor.sequence + 1:
        if page[0].previous == cursor.chain:
            return CursorHeld(link_entries(page, cursor), head)
        return CursorBroken(GapReason.FORKED, head)
    if cursor.sequence > head.sequence:
        return CursorBroken(GapReason.AHEAD, head)
    if cursor.sequence == head.sequence and not page:
        return (
            CursorHeld((), head)
            if cursor.chain == head.chain
            else CursorBroken(GapReason.FORKED, head)
        )
    return ReadAgain()


def verify_again(
    head: Head | None, page: Sequence[Entry], cursor: Cursor
) -> CursorHeld | CursorBroken:
    """Verifies the second read of both: entries that are still missing are gone."""
    verdict = verify(head, page, cursor)
    if not isinstance(verdict, ReadAgain):
        return verdict
    trimmed = head is not None and head.first > cursor.sequence + 1
    return CursorBroken(GapReason.TRIMMED if trimmed else GapReason.LOST, head)


def link_entries(page: Sequence[Entry], cursor: Cursor) -> tuple[LinkedEntry, ...]:
    """The longest prefix of ``page`` that continues the chain of ``cursor``.

    If it ends early, the next read begins at the break and finds the reason.
    """
    linked: list[LinkedEntry] = []
    sequence, chain = cursor.sequence, cursor.chain
    for entry in page:
        if entry.sequence != sequence + 1 or entry.previous != chain:
            break
        sequence, chain = entry.sequence, extend_chain(chain, entry.event_id)
        linked.append(LinkedEntry(entry, chain))
    return tuple(linked)


def build_event(stream: str, linked: LinkedEntry, previous: int) -> bytes:
    """The ``ev`` frame of a stored entry, its envelope byte for byte in ``d``; shared by all readers."""
    entry = linked.entry
    return b'{"t":"ev","s":%b,"o":%d,"p":%d,"h":"%b","d":%b}' % (
        orjson.dumps(stream),
        entry.sequence,
        previous,
        linked.chain.encode(),
        entry.data,
    )
