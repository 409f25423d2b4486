"""A stream of facts in the form of the log, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.events import Event, Fact, encode_event
from passerelle.core.evidence.selection import BundleScope, StoredFact
from passerelle.core.ids import ALL_SHARDS, derive_id
from passerelle.core.ports.log import Entry, Head

EPOCH = "0badcafe"
AT = "2026-01-02T03:04:05.678Z"
SHARD = ALL_SHARDS[7]
SESSION = derive_id("se", SHARD, "session")


def store(facts: Sequence[Fact]) -> list[StoredFact]:
    """The facts as entries of one stream, from its beginning."""
    stored: list[StoredFact] = []
    chain = start_chain(EPOCH)
    for sequence, fact in enumerate(facts, 1):
        event_id = derive_id("ev", SHARD, str(sequence))
        event = Event(event_id, AT, "rt_1", fact, sequence)
        data, frame = encode_event(event).at(sequence)
        entry = Entry(sequence, event_id, event.type, chain, data, frame)
        stored.append(StoredFact(entry, event))
        chain = extend_chain(chain, event_id)
    return stored


def find_head(facts: Sequence[StoredFact], first: int = 1) -> Head:
    """The head behind the last of them."""
    last = facts[-1].entry
    chain = extend_chain(last.previous, last.event_id)
    return Head(EPOCH, last.sequence, chain, first)


def name_scope(kind: str, subject: str) -> BundleScope:
    """A scope of the session."""
    return BundleScope(kind, subject, SESSION)  # type: ignore[arg-type]  # one of the four
