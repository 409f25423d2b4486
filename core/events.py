"""The event envelope: the form of every stored fact (ENV-1…ENV-13).

A fact is what was decided: a payload and the ids it belongs to. An event is a fact with an identity and a time. Its
bytes are made once, without the opening brace and without the sequence, which only the store knows; the store writes
``{"sequence":<n>,`` before them. The payload is the last member of the envelope, and the A2A frame of a visible event
is the last member of the payload. So readers cut the frame out by offset and length, and the read path decodes nothing.
"""

from __future__ import annotations

import re
from dataclasses import field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import orjson

from passerelle.core.errors import InvalidInput, MalformedBody
from passerelle.core.event_type import EventType
from passerelle.core.facts import Ref, Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads import PAYLOADS, Payload
from passerelle.core.wire.codec import from_wire, to_wire
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.wire.json import Json, JsonObject

SCHEMA_VERSION: Final = "1.0"
FRAME: Final = "a2a"
"""The member of a payload that holds the outgoing A2A frame."""
_ONLY_FRAME: Final = b'"%b":' % FRAME.encode()
_NEXT_FRAME: Final = b"," + _ONLY_FRAME
AFTER_FRAME: Final = b"}}"
"""The closing braces of payload and envelope."""
GENERATION: Final = "generation"
"""The envelope member with the 1-based position of the event among those that callers of the task see."""

_SCOPE_MEMBERS: Final = tuple(name for name in Scope.__dataclass_fields__)
_TURN: Final = ("session_id", "thread_id", "turn_id")
_REQUIRED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("turn.", _TURN),
    ("action.", (*_TURN, "action_id")),
    ("permission.", _TURN),
    ("routing.", _TURN),
    ("cost.", _TURN),
    ("task.attempt.", ("task_id", "run_id")),
    ("task.", ("task_id",)),
    ("run.", ("task_id", "run_id")),
    ("artifact.", ("task_id", "run_id")),
    ("thread.", ("session_id", "thread_id")),
    ("subagent.", ("subagent_id",)),
    ("tool.catalog.", _TURN),
    ("tool.", ("tool_call_id",)),
    ("job.item.", ("task_id",)),
)
_NO_REFS: Final[Mapping[str, Ref]] = MappingProxyType({})
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


@frozen
class VendorPayload:
    """The payload of a vendor type ``x.…``; always written together with a normalized event (ENV-12)."""

    name: str
    data: JsonObject

    @property
    def type(self) -> str:
        """The vendor type."""
        return self.name


@frozen
class OpaquePayload:
    """A payload of a newer schema or an unknown class: kept, not decoded (ENV-5, ENV-13)."""

    name: str
    data: JsonObject

    @property
    def type(self) -> str:
        """The type as it was written."""
        return self.name


AnyPayload: TypeAlias = Payload | VendorPayload | OpaquePayload


@value
class Fact:
    """What was decided. ``frame`` is the A2A StreamResponse that callers of ``facade`` see, if any."""

    scope: Scope
    payload: AnyPayload
    refs: Mapping[str, Ref] = field(default_factory=lambda: _NO_REFS)
    frame: bytes | None = None
    facade: str | None = None


@value
class Event:
    """A fact with identity, time (RFC 3339 UTC with milliseconds, the producer's) and position in its stream.

    ``sequence`` is 0 until the store has assigned one. ``generation`` counts the events of the facade task that callers
    have seen, this one included; 0 if they do not see it.
    """

    event_id: str
    timestamp: str
    runtime_id: str
    fact: Fact
    sequence: int = 0
    schema_version: str = SCHEMA_VERSION
    generation: int = 0

    @property
    def type(self) -> str:
        """The event class."""
        return self.fact.payload.type

    def at(self, sequence: int) -> Event:
        """The same event at a position in its stream."""
        return replace(self, sequence=sequence)


class SharedMembers(NamedTuple):
    """The members of an envelope between its type and its payload, shared by the events of one decision.

    ``head`` has time, schema version and runtime id; ``ids`` the other ids of the scope, each a JSON member followed by
    a comma.
    """

    head: tuple[bytes, bytes, bytes]
    session: str
    ids: bytes

    def write(self) -> bytes:
        """The bytes of these members, after the quote that ends the type."""
        return b'%b"sessionId":"%b",%b' % (write_head(self.head), self.session.encode(), self.ids)


def write_head(head: Sequence[bytes]) -> bytes:
    """Time, schema version and runtime id as written after the text of the type."""
    return b'","timestamp":"%b","schemaVersion":"%b","runtimeId":"%b",' % tuple(head)


@value
class EncodedEvent:
    """An event in the form that the store takes: the parts of its envelope after the sequence.

    ``rest`` ends where ``frame`` begins, or at the end of the envelope without a frame. Without ``shared_members`` it
    begins with the id of the event.
    """

    event_id: str
    type: str
    rest: bytes
    frame: bytes = b""
    facade: str | None = None
    shared_members: SharedMembers | None = None

    @property
    def begin(self) -> bytes:
        """The envelope after its sequence and before its frame."""
        if self.shared_members is None:
            return self.rest
        texts = (self.event_id.encode(), self.type.encode(), self.shared_members.write(), self.rest)
        return b'"eventId":"%b","type":"%b%b%b' % texts

    @property
    def body(self) -> bytes:
        """The envelope after its sequence."""
        return self.begin + self.frame + AFTER_FRAME if self.frame else self.begin

    def at(self, sequence: int) -> tuple[bytes, tuple[int, int] | None]:
        """The envelope at a position in a stream, with offset and length of its frame."""
        return close_envelope(b'{"sequence":%d,%b' % (sequence, self.begin), self.frame)


def close_envelope(begin: bytes, frame: bytes) -> tuple[bytes, tuple[int, int] | None]:
    """An envelope from the bytes before its frame, and the position of the frame; an empty frame is none."""
    if not frame:
        return begin, None
    return begin + frame + AFTER_FRAME, (len(begin), len(frame))


@lru_cache(maxsize=256)
def required_ids(kind: str) -> tuple[str, ...]:
    """The scope members that an event of this class requires (ENV-6, ENV-7)."""
    return next((names for prefix, names in _REQUIRED if kind.startswith(prefix)), ())


def check_scope(kind: str, scope: Scope) -> None:
    """Refuses an event that lacks a required id (ENV-6, ENV-7).

    Raises:
        InvalidInput: naming the missing id.
    """
    members = scope.__dict__
    for name in required_ids(kind):
        if members[name] is None:
            raise InvalidInput(name, f"an event {kind} must have it")


def encode_event(event: Event) -> EncodedEvent:
    """The stored form of an event.

    Raises:
        InvalidInput: a required id is missing, the time has not the form that ``Event`` documents, the type is neither
            normalized nor ``x.``, or an untyped payload claims a normalized class.
    """
    kind = event.type
    fact = event.fact
    check_type(kind)
    check_scope(kind, fact.scope)
    if not _is_timestamp(event.timestamp):
        raise InvalidInput("timestamp", "not RFC 3339 in UTC with milliseconds")
    _check_untyped(fact.payload, event.schema_version)
    members: JsonObject = {}
    if event.generation:
        members[GENERATION] = event.generation
    if fact.refs:
        members["refs"] = {name: to_wire(ref) for name, ref in fact.refs.items()}
    members["payload"] = show_payload(fact.payload)
    rest = orjson.dumps(members)[1:]
    if fact.frame is not None:
        rest = rest[: -len(AFTER_FRAME)] + (_ONLY_FRAME if rest.endswith(b"{}}") else _NEXT_FRAME)
    shared_members = _open(event.timestamp, event.schema_version, event.runtime_id, fact.scope)
    if shared_members and not (
        _is_plain(event.event_id) and (kind in _NORMALIZED or _is_plain(kind))
    ):
        shared_members = None
    if shared_members is None:
        rest = _write_opening(event) + rest
    return EncodedEvent(event.event_id, kind, rest, fact.frame or b"", fact.facade, shared_members)


def decode_event(
    data: bytes, frame: tuple[int, int] | None = None, facade: str | None = None
) -> Event:
    """The event of stored bytes; unknown classes and schemas stay opaque (ENV-5, ENV-13).

    Raises:
        InvalidInput: the bytes are not an envelope, or a known payload is damaged.
    """
    envelope = _read_envelope(data)
    kind, version = _read_text(envelope, "type"), _read_text(envelope, "schemaVersion")
    newer = version != SCHEMA_VERSION
    payload = _read_object(envelope, "payload")
    payload.pop(FRAME, None)
    known = {name: value for name, value in envelope.items() if name in _WIRE_SCOPE}
    refs = _read_object(envelope, "refs")
    return Event(
        event_id=_read_text(envelope, "eventId"),
        timestamp=_read_text(envelope, "timestamp"),
        runtime_id=_read_text(envelope, "runtimeId"),
        sequence=_read_count(envelope, "sequence"),
        schema_version=version,
        generation=_read_count(envelope, GENERATION),
        fact=Fact(
            scope=from_wire(Scope, known, "scope", newer=newer),
            payload=_decode_payload(kind, version, payload),
            refs={
                name: from_wire(Ref, ref, f"refs.{name}", newer=newer) for name, ref in refs.items()
            },
            frame=data[frame[0] : frame[0] + frame[1]] if frame else None,
            facade=facade,
        ),
    )


def _is_plain(text: str) -> bool:
    """Whether JSON writes the text without escapes."""
    return text.isidentifier() or _ESCAPED.search(text) is None


@lru_cache(256)
def _open(timestamp: str, version: str, runtime: str, scope: Scope) -> SharedMembers | None:
    """The members that events of a decision share; None if JSON escapes one of them, or there is no session."""
    head = _encode_head(timestamp, version, runtime)
    belonging = _encode_scope(scope)
    return None if head is None or belonging is None else SharedMembers(head, *belonging)


@lru_cache(64)
def _encode_head(timestamp: str, version: str, runtime: str) -> tuple[bytes, bytes, bytes] | None:
    """None if JSON escapes one of the texts."""
    texts = (timestamp, version, runtime)
    if not all(map(_is_plain, texts)):
        return None
    return timestamp.encode(), version.encode(), runtime.encode()


@lru_cache(256)
def _encode_scope(scope: Scope) -> tuple[str, bytes] | None:
    """The session, and the other ids as JSON members with commas; None without a session that JSON writes unescaped."""
    ids = to_wire(scope)
    session = ids.pop("sessionId", None)
    if not isinstance(session, str) or not _is_plain(session):
        return None
    return session, orjson.dumps(ids)[1:-1] + b"," if ids else b""


def _write_opening(event: Event) -> bytes:
    """All members of an envelope before its payload, escaped where needed."""
    members: JsonObject = {
        "eventId": event.event_id,
        "type": event.type,
        "timestamp": event.timestamp,
        "schemaVersion": event.schema_version,
        "runtimeId": event.runtime_id,
        **to_wire(event.fact.scope),
    }
    return orjson.dumps(members)[1:-1] + b","


@lru_cache(64)
def _is_timestamp(text: str) -> bool:
    """Cached, since all events of a decision have one time."""
    return _TIMESTAMP.fullmatch(text) is not None


def check_type(kind: str) -> None:
    """Refuses a type that is neither normalized nor a vendor's (ENV-1)."""
    if kind not in _NORMALIZED and not (kind.startswith("x.") and len(kind) > len("x.")):
        raise InvalidInput(
            "type", f"{kind[:60]!r} is neither a normalized class nor a vendor type ('x.…')"
        )


def read_schema_major(version: str) -> str:
    """The part of a schema version that a reader must know."""
    return version.partition(".")[0]


_NORMALIZED: Final = frozenset(member.value for member in EventType)
_WIRE_SCOPE: Final = frozenset(
    name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:])
    for name in _SCOPE_MEMBERS
)


def show_unsequenced(event: Event) -> JsonObject:
    """The envelope of an event that is in no stream, so without a sequence. Raises as ``encode_event`` does."""
    envelope: JsonObject = orjson.loads(b"{" + encode_event(event).body)
    return envelope


def show_payload(payload: AnyPayload) -> JsonObject:
    """The payload as written in its envelope."""
    return payload.data if isinstance(payload, VendorPayload | OpaquePayload) else to_wire(payload)


def _check_untyped(payload: AnyPayload, version: str) -> None:
    """An untyped payload must not claim a normalized class, since its type checks nothing (ENV-9)."""
    if not isinstance(payload, VendorPayload | OpaquePayload):
        return
    if payload.type in _NORMALIZED and (
        isinstance(payload, VendorPayload) or _is_readable(payload.type, version)
    ):
        raise InvalidInput("payload", f"{payload.type} has a payload type of its own")
    if FRAME in payload.data:
        raise InvalidInput(f"payload.{FRAME}", "the member is reserved for the A2A frame")


def _is_readable(kind: str, version: str) -> bool:
    return kind in _NORMALIZED and read_schema_major(version) == read_schema_major(SCHEMA_VERSION)


def _decode_payload(kind: str, version: str, payload: JsonObject) -> AnyPayload:
    if kind.startswith("x."):
        return VendorPayload(kind, payload)
    if not _is_readable(kind, version):
        return OpaquePayload(kind, payload)
    return from_wire(PAYLOADS[EventType(kind)], payload, "payload", newer=version != SCHEMA_VERSION)


def _read_envelope(data: bytes) -> JsonObject:
    try:
        envelope: Json = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedBody("event", "not JSON") from error
    if not isinstance(envelope, dict):
        raise MalformedBody("event", "not an object")
    return envelope


def _read_text(envelope: JsonObject, name: str) -> str:
    value = envelope.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(name, "an event must have it, as text")
    return value


def _read_count(envelope: JsonObject, name: str) -> int:
    value = envelope.get(name, 0)
    if type(value) is not int:
        raise InvalidInput(name, "not a whole number")
    return value


def _read_object(envelope: JsonObject, name: str) -> JsonObject:
    value = envelope.get(name, {})
    if not isinstance(value, dict):
        raise InvalidInput(name, "not an object")
    return value
