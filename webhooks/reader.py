"""Reads what a target gets next: the wanted entries after its cursor, or the result that it needs the whole state.

The cursor is verified as for every reader: a cursor that does not verify is a gap, never a skip (I8). A receiver that
is too far behind gets the state as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.channels.cursor_check import (
    CursorBroken,
    CursorHeld,
    ReadAgain,
    verify,
    verify_again,
)
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor, parse_cursor

if TYPE_CHECKING:
    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.core.ports.log import EventLog, StreamRef
    from passerelle.webhooks.kinds import Feed

_PAGE: Final = 256


@frozen
class ReaderRun:
    """The wanted entries in order, and the cursor after all entries read. ``more``: the stream continues."""

    wanted: tuple[LinkedEntry, ...]
    cursor: Cursor
    more: bool


@frozen
class ReceiverBehind:
    """The receiver gets the state in place of events; ``why`` is one word."""

    why: str


Next: TypeAlias = ReaderRun | ReceiverBehind


async def read_next(log: EventLog, stream: StreamRef, cursor: Cursor, feed: Feed) -> Next:
    """Reads what follows a cursor.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    head, page = await log.read_resume(stream, cursor.sequence, _PAGE)
    verdict = verify(head, page, cursor)
    if isinstance(verdict, ReadAgain):
        verdict = verify_again(*await log.read_resume(stream, cursor.sequence, _PAGE), cursor)
    if isinstance(verdict, CursorBroken):
        return ReceiverBehind(verdict.why.value)
    return _choose(verdict, cursor, feed)


def _choose(held: CursorHeld, cursor: Cursor, feed: Feed) -> Next:
    wanted = tuple(linked for linked in held.entries if feed.wants(linked.entry))
    behind = held.head.sequence - cursor.sequence
    if len(wanted) > feed.bounds.wanted or behind > feed.bounds.events:
        return ReceiverBehind("limit")
    return ReaderRun(wanted, _end(held, cursor), more=len(held.entries) >= _PAGE)


def _end(held: CursorHeld, cursor: Cursor) -> Cursor:
    if not held.entries:
        return cursor
    last = held.entries[-1]
    return Cursor(cursor.epoch, last.entry.sequence, last.chain)


def read_cursor(text: str) -> Cursor:
    """The cursor of a stored target."""
    return parse_cursor(text)
