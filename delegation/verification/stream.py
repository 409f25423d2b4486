"""Reads one stored session for verification, as of one moment, checks it, replays it and compares it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput
from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.events import OpaquePayload, VendorPayload, check_scope, decode_event
from passerelle.core.frozen import frozen
from passerelle.core.machine import read_schema, read_snapshot, replay, write_snapshot
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.edges import KEPT_EDGES, cut, join
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_bytes
from passerelle.delegation.verification.report import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.batch import Loaded
    from passerelle.core.events import Event
    from passerelle.core.machine import Record
    from passerelle.core.ports.log import Entry, EventLog, Head
    from passerelle.delegation.verification.report import VerifyReport

_PAGE: Final = 512
_LOOKS: Final = 8
"""How often a session that is being written is read again before the last read is judged."""


@frozen
class SessionReplay:
    """A session at one moment: its stream, what it replays to, and what is stored."""

    session: str
    head: Head
    entries: Sequence[Entry]
    events: Sequence[Event]
    states: dict[EntityRef, Record]
    stored: Sequence[Loaded]
    problems: Sequence[Problem]
    """Problems of single entries."""

    @property
    def is_whole(self) -> bool:
        """Whether the stream begins with its first event. Archived events are not replayed here."""
        return self.head.first == 1


async def replay_session(facts: EventLog, session: str) -> SessionReplay | None:
    """Reads a session between two equal heads; None if there is no such stream."""
    stream = StreamRef(StreamKind.SESSION, session)
    looks = 0
    while True:
        looks += 1
        head = await facts.read_head(stream)
        if head is None:
            return None
        entries = await _read_entries(facts, stream)
        problems: list[Problem] = []
        events = _decode_all(session, entries, problems)
        states = replay(events)
        refs = dict.fromkeys((*states, EntityRef(EntityKind.SESSION, session)))
        stored = await facts.load(list(refs))
        if await facts.read_head(stream) == head or looks == _LOOKS:
            return SessionReplay(session, head, entries, events, states, stored, problems)


async def _read_entries(facts: EventLog, stream: StreamRef) -> list[Entry]:
    entries: list[Entry] = []
    after = 0
    while page := await facts.read_page(stream, after, _PAGE):
        entries += page
        after = page[-1].sequence
    return entries


def _decode_all(session: str, entries: Sequence[Entry], found: list[Problem]) -> list[Event]:
    """The events of entries; unreadable entries are reported and left out."""
    events: list[Event] = []
    seen: set[str] = set()
    for entry in entries:
        try:
            event = decode_event(entry.data, entry.frame, entry.facade)
        except InvalidInput as error:
            found.append(Problem("unreadable", session, entry.event_id, str(error)))
            continue
        if entry.event_id in seen:
            found.append(Problem("repeated", session, entry.event_id, "the id occurs twice"))
        seen.add(entry.event_id)
        found += _check_entry(session, entry, event)
        events.append(event)
    return events


def _check_entry(session: str, entry: Entry, event: Event) -> list[Problem]:
    found: list[Problem] = []
    scope = event.fact.scope
    envelope = (event.event_id, event.type, event.sequence, scope.session_id)
    if envelope != (entry.event_id, entry.type, entry.sequence, session):
        detail = f"entry {entry.sequence} does not match its envelope: {envelope}"
        found.append(Problem("entry", session, entry.event_id, detail))
    try:
        check_scope(event.type, scope)
    except InvalidInput as error:
        detail = f"{event.type} without {error.field}"
        found.append(Problem("missing_id", session, entry.event_id, detail))
    return found


def check_chain(session: str, head: Head, entries: Sequence[Entry]) -> list[Problem]:
    """Gaps and breaks of a stream: each gap is reported once, and the check continues after it."""
    found: list[Problem] = []
    expected = head.first
    chain = start_chain(head.epoch) if head.first == 1 else None
    for entry in entries:
        if entry.sequence != expected:
            detail = f"{expected} to {entry.sequence - 1} are missing"
            found.append(Problem("gap", session, entry.event_id, detail))
        elif chain is not None and entry.previous != chain:
            detail = f"entry {entry.sequence} follows {entry.previous}, not {chain}"
            found.append(Problem("chain", session, entry.event_id, detail))
        expected, chain = entry.sequence + 1, extend_chain(entry.previous, entry.event_id)
    if expected != head.sequence + 1:
        detail = f"the head is at {head.sequence}, the last entry is {expected - 1}"
        found.append(Problem("gap", session, session, detail))
    elif chain is not None and chain != head.chain:
        detail = f"the head has chain {head.chain}, the last entry {chain}"
        found.append(Problem("chain", session, session, detail))
    return found


def count_events(events: Sequence[Event], report: VerifyReport) -> None:
    """Counts events, and those that no state machine reads (ENV-13)."""
    report.events += len(events)
    report.vendor_events += sum(isinstance(e.fact.payload, VendorPayload) for e in events)
    report.unknown_events += sum(isinstance(e.fact.payload, OpaquePayload) for e in events)


def compare_all(session: SessionReplay, report: VerifyReport) -> list[Problem]:
    """Compares each stored snapshot with the replay, byte for byte, within one schema (I4)."""
    found: list[Problem] = []
    for loaded in session.stored:
        record = session.states.get(loaded.ref)
        replayed = b"" if record is None else write_snapshot(record)
        if not replayed and not loaded.snapshot:
            continue
        report.entities += 1
        if _is_same(record, loaded, replayed):
            continue
        if replayed and _is_other_schema(loaded.snapshot, replayed):
            report.other_schema += 1
            continue
        if loaded.snapshot and replayed and _is_earlier_form(record, loaded, replayed):
            report.earlier_form += 1
            continue
        if loaded.snapshot == replayed:
            detail = "the edges stored with the snapshot differ from the facts"
        else:
            detail = _differ(loaded.snapshot, replayed)
        found.append(Problem("mismatch", session.session, loaded.ref.id, detail))
    return found


def _is_same(record: Record | None, loaded: Loaded, replayed: bytes) -> bool:
    """Whether a record is stored as its facts state: in one snapshot, or a task with edges in separate fields.

    Before there were such fields, the snapshot of a task contained all of its edges.
    """
    if not isinstance(record, TaskRecord):
        return loaded.snapshot == replayed
    try:
        edges = join(cut(record), loaded.fields).relationships
    except InvalidInput:
        return False
    if loaded.snapshot == replayed:
        return edges == record.relationships
    return len(record.relationships) > KEPT_EDGES and loaded.snapshot == to_bytes(record)


def _is_other_schema(stored: bytes, replayed: bytes) -> bool:
    try:
        return read_schema(stored) != read_schema(replayed)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return False


def _is_earlier_form(record: Record | None, loaded: Loaded, replayed: bytes) -> bool:
    """Whether an older version wrote it: only members that it did not know are missing, and it reads as equal."""
    if not _is_same(record, replace(loaded, snapshot=replayed), replayed):
        return False  # the fields stored with the snapshot are wrong
    try:
        read = read_snapshot(loaded.ref.kind, loaded.snapshot)
        stored, ours = orjson.loads(loaded.snapshot), orjson.loads(replayed)
    except (InvalidInput, orjson.JSONDecodeError):
        return False
    return read is not None and write_snapshot(read) == replayed and _is_within(stored, ours)


def _is_within(stored: object, ours: object) -> bool:
    """Whether every stored member is one of this version."""
    if isinstance(stored, dict) and isinstance(ours, dict):
        members, known = cast("dict[str, object]", stored), cast("dict[str, object]", ours)
        return all(name in known and _is_within(one, known[name]) for name, one in members.items())
    if isinstance(stored, list) and isinstance(ours, list):
        items, others = cast("list[object]", stored), cast("list[object]", ours)
        return len(items) == len(others) and all(map(_is_within, items, others))
    return stored == ours


def _differ(stored: bytes, replayed: bytes) -> str:
    if not stored or not replayed:
        return "nothing is stored" if not stored else "it has no facts"
    pairs = enumerate(zip(stored, replayed, strict=False))
    shorter = min(len(stored), len(replayed))
    at = next((place for place, (one, two) in pairs if one != two), shorter)
    return f"differs at byte {at} (stored {len(stored)} bytes, replayed {len(replayed)})"
