"""The events of one append as they are stored and published: what they share is written once.

Fields, with ``SEPARATOR`` between them, which stands in no JSON text:

    time, schema version, runtime id, then of each event: event id, type, facade id, scope, rest, frame

The envelope of an event is made of them again, byte for byte: ``sequence`` and ``eventId`` to ``runtimeId``, the id
of the session whose stream it is, the scope, the rest, and the A2A frame with two braces behind it where there is
one. The scope has the other ids that an event belongs to, each with a comma behind it. A scope that was written before
is named by its number, from 0. Where it is ``*`` the event shares nothing, and the rest begins behind the sequence: it
is a copy from another stream.
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
"""How many events one append has at most."""
SEPARATOR: Final = b"\x1f"
NO_HEAD: Final = (b"", b"", b"")
"""Time, schema version and runtime of events that share nothing."""
_WHOLE: Final = b"*"
_NUMBERS: Final = {b"%d" % number: number for number in range(MOST_EVENTS)}
_HEAD_FIELDS: Final = len(NO_HEAD)
_EVENT_FIELDS: Final = 6
_SCOPE_FIELD: Final = 3
_FRAME_FIELD: Final = 5
_PAYLOAD: Final = b'"payload":'


def pack_events(events: Sequence[EncodedEvent], session: str) -> bytes:
    """The stored form of events, at least one, of a session's stream.

    Raises:
        ValueError: a field has a control character in it.
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
        told = scopes.get(scope)
        if told is None:
            told, scopes[scope] = scope, b"%d" % len(scopes)
        fields += (name, kind, facade, told, event.rest, event.frame)
    return _join(fields)


def pack_copy(event: EncodedEvent) -> bytes:
    """The fields of one event that shares nothing with its neighbours. Raises as ``pack_events`` does."""
    name, facade = event.event_id.encode(), (event.facade or "").encode()
    return _join([name, event.type.encode(), facade, _WHOLE, event.begin, event.frame])


def unpack_events(
    packed: bytes, session: str, last: int, chain: str, after: int = 0, limit: int = MOST_EVENTS
) -> list[Entry]:
    """Events of one append to a stream, at most ``limit`` of those with a sequence above ``after``.

    The last event of the append is at sequence ``last``; ``chain`` is that before its first. Where it is empty nobody
    asks for the chain, and ``previous`` is empty as well.

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
    """The A2A frame of one event of an append; empty where it has none, or stands in another append.

    Raises:
        ValueError: these are not such fields.
    """
    fields, count = _split(packed, session, last)
    number = count - 1 - (last - sequence)
    return (
        fields[_HEAD_FIELDS + _EVENT_FIELDS * number + _FRAME_FIELD] if 0 <= number < count else b""
    )


def read_scopes(packed: bytes) -> list[bytes]:
    """What says which ids the events of an append belong to beside their session: JSON members, and numbers of earlier.

    Raises:
        ValueError: these are not such fields.
    """
    fields, _ = _split(packed, "a session", 0)
    scopes = fields[_HEAD_FIELDS + _SCOPE_FIELD :: _EVENT_FIELDS]
    if _WHOLE in scopes:
        rests = fields[_HEAD_FIELDS + _SCOPE_FIELD + 1 :: _EVENT_FIELDS]
        return [
            rest.partition(_PAYLOAD)[0] if told == _WHOLE else told
            for told, rest in zip(scopes, rests, strict=True)
        ]
    return scopes


def _split(packed: bytes, session: str, last: int) -> tuple[list[bytes], int]:
    """The fields, and of how many events."""
    fields = packed.split(SEPARATOR)
    count, odd = divmod(len(fields) - _HEAD_FIELDS, _EVENT_FIELDS)
    if odd or count < 1:
        message = f"what is stored at {last} of {session} are no events of an append"
        raise ValueError(message)
    return fields, count


def _list_scopes(told: Sequence[bytes]) -> list[bytes | None]:
    """The scope of each event; None of one that shares nothing."""
    written, scopes = list[bytes](), list[bytes | None]()
    for one in told:
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
        message = "a control character stands in what is to be stored"
        raise ValueError(message)
    return packed
