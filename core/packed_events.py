"""The stored and published form of the events of one append: shared members are written once.

Fields, separated by ``SEPARATOR``, which cannot occur in JSON text:

    time, schema version, runtime id, then of each event: event id, type, facade id, scope, rest, frame

Readers rebuild the envelope of an event from them, byte for byte: ``sequence`` and ``eventId`` to ``runtimeId``, the id
of the session, the scope, the rest, and the A2A frame, if any, followed by two braces. The scope has the other ids of
the event, each followed by a comma. A scope that was written before is given by its number, from 0. ``*`` means that
the event shares nothing, and the rest begins after the sequence: it is a copy from another stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.event_chain import extend_chain
from passerelle.core.events import close_envelope, write_head
from passerelle.core.ports.log import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.events import EncodedEvent

MOST_EVENTS: Final = 64
"""Maximum events of one append."""
SEPARATOR: Final = b"\x1f"
NO_HEAD: Final = (b"", b"", b"")
"""Time, schema version and runtime id of events that share nothing."""
_WHOLE: Final = b"*"
_NUMBERS: Final = {b"%d" % number: number for number in range(MOST_EVENTS)}
_HEAD_FIELDS: Final = len(NO_HEAD)
_EVENT_FIELDS: Final = 6
_SCOPE_FIELD: Final = 3
_FRAME_FIELD: Final = 5
_PAYLOAD: Final = b'"payload":'


def pack_events(events: Sequence[EncodedEvent], session: str) -> bytes:
    """The stored form of events (at least one) of a session's stream.

    Raises:
        ValueError: a field contains the separator.
    """
    head: Sequence[bytes] = next(
        (one.shared_members.head for one in events if one.shared_members), NO_HEAD
    )
    fields, scopes = [*head], dict[bytes, bytes]()
    for event in events:
        name, kind, shared_members = (
            event.event_id.encode(),
            event.type.encode(),
            event.shared_members,
        )
        facade = event.facade.encode() if event.facade else b""
        if (
            shared_members is None
            or shared_members.session != session
            or shared_members.head != head
        ):
            fields += (name, kind, facade, _WHOLE, event.begin, event.frame)
            continue
        scope = shared_members.ids
        written_scope = scopes.get(scope)
        if written_scope is None:
            written_scope, scopes[scope] = scope, b"%d" % len(scopes)
        fields += (name, kind, facade, written_scope, event.rest, event.frame)
    return _join(fields)


def pack_copy(event: EncodedEvent) -> bytes:
    """The fields of one event that shares nothing. Raises as ``pack_events`` does."""
    name, facade = event.event_id.encode(), (event.facade or "").encode()
    return _join([name, event.type.encode(), facade, _WHOLE, event.begin, event.frame])


def unpack_events(
    packed: bytes, session: str, last: int, chain: str, after: int = 0, limit: int = MOST_EVENTS
) -> list[Entry]:
    """Events of one append to a stream, at most ``limit`` of those with a sequence above ``after``.

    The last event of the append has the sequence ``last``; ``chain`` is the chain before its first. With an empty
    ``chain`` none is computed, and ``previous`` is empty as well.

    Raises:
        ValueError: these are not such fields.
    """
    fields, count = _split(packed, session, last)
    shared = b'%b"sessionId":"%b",' % (write_head(fields[:_HEAD_FIELDS]), session.encode())
    skipped = min(count, max(0, after - (last - count)))
    begin = _HEAD_FIELDS + _EVENT_FIELDS * skipped
    if chain:
        for name in fields[_HEAD_FIELDS:begin:_EVENT_FIELDS]:
            chain = extend_chain(chain, name.decode())
    places = range(begin, len(fields), _EVENT_FIELDS)[:limit]
    scopes = _list_scopes(fields[_HEAD_FIELDS + _SCOPE_FIELD : places.stop : _EVENT_FIELDS])
    entries = list[Entry]()
    for place in places:
        number, event_id = skipped + len(entries), fields[place].decode()
        scope = scopes[number]
        known = None if scope is None else shared + scope
        sequence = last - count + number + 1
        entries.append(_read_event(sequence, event_id, chain, known, fields, place))
        if chain:
            chain = extend_chain(chain, event_id)
    return entries


def unpack_frame(packed: bytes, session: str, last: int, sequence: int) -> bytes:
    """The A2A frame of one event of an append; empty if it has none, or belongs to another append.

    Raises:
        ValueError: these are not such fields.
    """
    fields, count = _split(packed, session, last)
    number = count - 1 - (last - sequence)
    return (
        fields[_HEAD_FIELDS + _EVENT_FIELDS * number + _FRAME_FIELD] if 0 <= number < count else b""
    )


def read_scopes(packed: bytes) -> list[bytes]:
    """The scope fields of the events of an append, besides their session: JSON members, and numbers of earlier ones.

    Raises:
        ValueError: these are not such fields.
    """
    fields, _ = _split(packed, "a session", 0)
    scopes = fields[_HEAD_FIELDS + _SCOPE_FIELD :: _EVENT_FIELDS]
    if _WHOLE in scopes:
        rests = fields[_HEAD_FIELDS + _SCOPE_FIELD + 1 :: _EVENT_FIELDS]
        return [
            rest.partition(_PAYLOAD)[0] if scope == _WHOLE else scope
            for scope, rest in zip(scopes, rests, strict=True)
        ]
    return scopes


def _split(packed: bytes, session: str, last: int) -> tuple[list[bytes], int]:
    """The fields, and the number of events."""
    fields = packed.split(SEPARATOR)
    count, odd = divmod(len(fields) - _HEAD_FIELDS, _EVENT_FIELDS)
    if odd or count < 1:
        message = f"the bytes at {last} of {session} are not the events of an append"
        raise ValueError(message)
    return fields, count


def _list_scopes(fields: Sequence[bytes]) -> list[bytes | None]:
    """The scope of each event; None for one that shares nothing."""
    written, scopes = list[bytes](), list[bytes | None]()
    for one in fields:
        number = _NUMBERS.get(one)
        if number is not None:
            if number >= len(written):
                message = f"no scope {number} was written before"
                raise ValueError(message)
            scopes.append(written[number])
        elif one == _WHOLE:
            scopes.append(None)
        else:
            written.append(one)
            scopes.append(one)
    return scopes


def _read_event(
    sequence: int, event_id: str, chain: str, shared: bytes | None, fields: list[bytes], place: int
) -> Entry:
    name, kind, facade, _, rest, frame = fields[place : place + _EVENT_FIELDS]
    if shared is None:
        data = b'{"sequence":%d,%b' % (sequence, rest)
    else:
        head = (sequence, name, kind, shared, rest)
        data = b'{"sequence":%d,"eventId":"%b","type":"%b%b%b' % head
    data, cut = close_envelope(data, frame)
    return Entry(sequence, event_id, kind.decode(), chain, data, cut, facade.decode() or None)


def _join(fields: Sequence[bytes]) -> bytes:
    packed = SEPARATOR.join(fields)
    if packed.count(SEPARATOR) != len(fields) - 1:
        message = "a field to be stored contains the separator"
        raise ValueError(message)
    return packed
