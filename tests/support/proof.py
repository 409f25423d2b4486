"""Invariants of every stored session after any test (I3, I4, ENV-6, ENV-7, ENV-12, ENV-13)."""

from __future__ import annotations

from typing import Final

from passerelle.core import machine
from passerelle.core.batch import Loaded
from passerelle.core.events import Event, VendorPayload, check_scope, decode_event
from passerelle.core.ports.log import Entry, EventLog, StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.runtime.records.contents import Contents

SNAPSHOT_CAP: Final = 16 * 1024


async def read_stream(log: EventLog, session_id: str) -> list[Entry]:
    """Every entry of a session."""
    stream = StreamRef(StreamKind.SESSION, session_id)
    found: list[Entry] = []
    while page := await log.read_page(stream, found[-1].sequence if found else 0):
        found += page
    return found


async def prove_session(log: EventLog, contents: Contents, session_id: str) -> None:
    """Checks sequences for gaps, the ids of each class, and the snapshots against a replay, with and without vendors.

    The content stored with an ended task equals the fold of its frames.
    """
    events, held = await _read_still(log, session_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    for event in events:
        check_scope(event.type, event.fact.scope)
    _prove_generations(events)
    await _prove_snapshots(contents, events, held)


async def _read_still(log: EventLog, session_id: str) -> tuple[list[Event], list[Loaded]]:
    """A stream and its fold at the same moment: drivers may go on writing meanwhile."""
    while True:
        entries = await read_stream(log, session_id)
        events = [decode_event(entry.data, entry.frame, entry.facade) for entry in entries]
        held = await log.load(list(machine.replay(events)))
        last = entries[-1].sequence if entries else 0
        if not await log.read_page(StreamRef(StreamKind.SESSION, session_id), last):
            return events, held


def _prove_generations(events: list[Event]) -> None:
    """The events of a facade task that callers see are counted from 1 without gaps (A2A extension resume, R10)."""
    seen: dict[str, list[int]] = {}
    for event in events:
        if event.fact.facade is not None and event.generation:
            seen.setdefault(event.fact.facade, []).append(event.generation)
        frame = b"" if event.fact.frame is None else event.fact.frame[:12]
        shown = event.fact.facade is not None and frame != b'{"message":{'
        assert bool(event.generation) is shown, event.type
    assert seen == {facade: [*range(1, len(found) + 1)] for facade, found in seen.items()}


async def _prove_snapshots(contents: Contents, events: list[Event], held: list[Loaded]) -> None:
    replayed = machine.replay(events)
    normalized = [e for e in events if not isinstance(e.fact.payload, VendorPayload)]
    assert machine.replay(normalized) == replayed
    for loaded in held:
        record = replayed[loaded.ref]
        assert loaded.snapshot == machine.write_snapshot(record), loaded.ref
        assert machine.read_loaded(loaded) == record, loaded.ref
        assert len(loaded.snapshot) <= SNAPSHOT_CAP
        if isinstance(record, TaskRecord) and record.status in ENDED and record.shown:
            kept = await contents.read_task(record, loaded.fields)
            assert kept == (await contents.fold_task(record)).task
