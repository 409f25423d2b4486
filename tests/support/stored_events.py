"""Rewrites stored streams directly, since no command edits an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from passerelle.core.packed_events import NO_HEAD, SEPARATOR, pack_copy, unpack_events
from passerelle.core.ports.log import Entry, StreamKind, StreamRef
from passerelle.delegation.projections import copy_event
from passerelle.store import keys
from tests.support.engine import ask


def mark_type(kind: str) -> bytes:
    """The bytes that mark the type of an event in an append."""
    return SEPARATOR + kind.encode() + SEPARATOR


def list_stored(url: str, stream: StreamRef) -> list[Entry]:
    """The events of a stream as they are stored."""
    rows = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", ask(url, "XRANGE", keys.entries(stream), "-", "+")
    )
    return [
        entry
        for identifier, members in rows
        for entry in unpack_events(
            members[b"d"], stream.id, int(identifier.split(b"-")[0]), members[b"p"].decode()
        )
    ]


def find_streams(url: str, session: str = "se_*") -> list[StreamRef]:
    """Every stored stream, or that of one session."""
    names = cast("list[bytes]", ask(url, "KEYS", f"{{*}}:e:{session}"))
    return [StreamRef(StreamKind.SESSION, name.rpartition(b":")[2].decode()) for name in names]


def rewrite_stream(
    url: str, stream: StreamRef, change: Callable[[Entry], Entry | None] = lambda entry: entry
) -> None:
    """Rewrites a stream, each event appended separately, so that one of them can be changed.

    ``change`` returns None to drop an event.
    """
    entries = list_stored(url, stream)
    ask(url, "DEL", keys.entries(stream))
    for stored in entries:
        entry = change(stored)
        if entry is not None:
            packed = SEPARATOR.join((*NO_HEAD, pack_copy(copy_event(entry))))
            place = f"{stored.sequence}-0"
            ask(url, "XADD", keys.entries(stream), place, "p", entry.previous, "d", packed)
