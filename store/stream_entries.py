"""Decodes stream entries as the server returns them into events.

An entry has the events of one append (``core/packed_events.py``), or, in schemas up to 2, one event with its envelope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from passerelle.core.packed_events import unpack_events, unpack_frame
from passerelle.core.ports.log import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.log import StreamRef
    from passerelle.store.connection import RespValue

EntryRow: TypeAlias = "tuple[bytes, list[bytes]]"
"""Id and members of a stream entry, as the server returns them."""


def read_entries(reply: RespValue, stream: StreamRef, after: int, limit: int) -> list[Entry]:
    """Reads the events above a sequence, at most ``limit``, from stream entries as XRANGE returns them."""
    return read_rows(as_entry_rows(reply), stream, after, limit)


def read_rows(rows: Sequence[EntryRow], stream: StreamRef, after: int, limit: int) -> list[Entry]:
    """The same from decoded rows."""
    entries = list[Entry]()
    for row in rows:
        if int(row[0].partition(b"-")[0]) <= after:
            continue
        entries += read_row(row, stream, after, limit - len(entries))
        if len(entries) == limit:
            break
    return entries


def as_entry_rows(reply: RespValue) -> list[EntryRow]:
    """Ids and members, as XRANGE returns them."""
    return cast("list[EntryRow]", reply)


def read_row(
    row: EntryRow, stream: StreamRef, after: int, limit: int, *, is_chained: bool = True
) -> list[Entry]:
    """The events of one entry above a sequence, at most ``limit``; without the chain if it is not needed."""
    identifier, members = row
    last = int(identifier.partition(b"-")[0])
    if members[0] == b"i":
        return [_read_single(last, members)] if last > after else []
    _, previous, _, packed = members
    chain = previous.decode() if is_chained else ""
    try:
        return unpack_events(packed, stream.id, last, chain, after, limit)
    except ValueError:
        # Damaged: it breaks the chain, so followers report a gap and the verification names it.
        return [Entry(last, "", "", "", packed)] if last > after else []


def read_row_frame(row: EntryRow, stream: StreamRef, sequence: int) -> bytes:
    """The A2A frame of the event at a sequence; empty where it has none, or is damaged."""
    identifier, members = row
    last = int(identifier.partition(b"-")[0])
    if members[0] == b"i":
        return _read_single(last, members).cut_frame() if last == sequence else b""
    try:
        return unpack_frame(members[3], stream.id, last, sequence)
    except ValueError:
        return b""


def _read_single(sequence: int, members: list[bytes]) -> Entry:
    """An entry of one event with its whole envelope, as in schemas up to 2."""
    fields = dict(zip(members[::2], members[1::2], strict=True))
    frame = fields.get(b"w")
    facade = fields.get(b"t")
    offset, _, length = (frame or b"").partition(b",")
    return Entry(
        sequence=sequence,
        event_id=fields[b"i"].decode(),
        type=fields[b"k"].decode(),
        previous=fields[b"p"].decode(),
        data=fields[b"d"],
        frame=(int(offset), int(length)) if frame else None,
        facade=facade.decode() if facade else None,
    )
