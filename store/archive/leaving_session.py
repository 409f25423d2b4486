"""A session that is to leave the engine, as it is read there: what is stored of it, and what the commit compares.

Read in two exchanges: entries, list of tasks and receivers; then its entities, which its entries name. The head is read
behind the entries, so they are whole if they end where it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from passerelle.core.batch import EntityKind
from passerelle.core.ids import read_shard
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import SessionFrame, list_entities, read_owner
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack_words
from passerelle.store.replies import as_hash, as_list
from passerelle.store.stream_entries import as_entry_rows
from passerelle.store.targets import decode_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes
    from passerelle.store.stream_entries import EntryRow


class LeavingSession(NamedTuple):
    """A session whose entries are whole, and in which nothing is owed."""

    frame: SessionFrame
    owner: str
    at_ms: int
    """The time of its last event."""
    keys: list[str]
    """Those of ``keys.session_keys``, of its entities, and of the bucket of the row of each of these."""
    values: list[bytes]
    """Sequence, chain; version, operation and name of the row of each entity; its list of tasks; its receivers."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many entities, words of its list, and words of its receivers ``values`` has."""
        frame = self.frame
        return len(frame.hashes), len(as_list(frame.tasks)), len(as_list(frame.targets))


class _Stream(NamedTuple):
    session: str
    keys: list[str]
    entries: list[EntryRow]
    tasks: RespValue
    targets: RespValue


async def read_leaving(
    nodes: Nodes, shard: Shard, sessions: Sequence[str], before_ms: int | None
) -> list[LeavingSession]:
    """Those of the sessions of a shard that may leave, as far as they can be read one after the other.

    One that has an event since ``before_ms`` is left out; so is one that is damaged, or whose record does not say whose
    it is.

    Raises:
        StoreUnavailable: the engine does not answer.
    """
    streams = await _read_streams(nodes, shard, sessions)
    refs = [_list_entities(shard, stream) for stream in streams]
    entity_keys = [[keys.entity_in(shard, ref) for ref in named] for named in refs]
    # An object with what the commit refuses would be written in vain, and once more at each look.
    live = [name for stream in streams for name in _list_live(stream.targets)]
    asked = [pack_words(("ZSCORE", keys.due(shard), f"target:{name}")) for name in live]
    asked += [pack_words(("HGETALL", key)) for named in entity_keys for key in named]
    answers = await nodes.query_in_background(shard, *asked)
    owed = {name for name, at in zip(live, answers, strict=False) if at is not None}
    found, first = list[LeavingSession](), len(live)
    for stream, named, names in zip(streams, refs, entity_keys, strict=True):
        hashes = answers[first : first + len(named)]
        first += len(named)
        one = _read_one(shard, stream, named, names, hashes, before_ms)
        if one is not None and not _owes(stream.targets, owed):
            found.append(one)
    return found


async def _read_streams(nodes: Nodes, shard: Shard, sessions: Sequence[str]) -> list[_Stream]:
    names, asked = list[list[str]](), list[bytes]()
    for session in sessions:
        own = keys.session_keys(shard, session)
        names.append(own)
        _, entries, _, tasks, targets = own
        asked += (
            pack_words(("XRANGE", entries, "-", "+")),
            pack_words(("ZRANGE", tasks, 0, -1, "WITHSCORES")),
            pack_words(("HGETALL", targets)),
        )
    replies = await nodes.query_in_background(shard, *asked)
    parts = zip(sessions, names, replies[::3], replies[1::3], replies[2::3], strict=True)
    return [
        _Stream(session, own, as_entry_rows(entries), tasks, targets)
        for session, own, entries, tasks, targets in parts
        if entries
    ]


def _list_entities(shard: Shard, stream: _Stream) -> list[EntityRef]:
    try:
        found = list_entities(stream.session, stream.entries)
    except (LookupError, ValueError):
        return []  # a damaged append: the session stays, and the verification names it
    return [ref for ref in found if read_shard(ref.id) == shard]


def _read_one(
    shard: Shard,
    stream: _Stream,
    refs: Sequence[EntityRef],
    names: Sequence[str],
    hashes: Sequence[RespValue],
    before_ms: int | None,
) -> LeavingSession | None:
    """None of a session that changed between the reads, or after ``before_ms``, or that nobody owns."""
    if not refs or not hashes[0]:
        return None
    session, head = stream.session, as_hash(hashes[0])
    at = head.get("at")
    if at is None or head["seq"] != stream.entries[-1][0].partition(b"-")[0]:
        return None
    at_ms = parse_ms(at.decode())
    if (before_ms is not None and at_ms >= before_ms) or (owner := read_owner(hashes[0])) is None:
        return None
    own, buckets = dict["EntityRef", "RespValue"](), list[str]()
    places, stamps = [*stream.keys], [head["seq"], head["chain"]]
    mark = session.encode()
    for ref, name, flat in zip(refs, names, hashes, strict=True):
        words = as_list(flat)
        fields = dict(zip(words[::2], words[1::2], strict=True))
        # Events of a session may name what belongs to another one: the snapshot says whose it is.
        if not words or (ref.kind is not EntityKind.SESSION and mark not in fields.get(b"s", b"")):
            continue
        own[ref] = flat
        bucket, field = place_row(shard, ref.id)
        places.append(name)
        buckets.append(bucket)
        stamps += (fields.get(b"v", b"0"), fields.get(b"op", b""), field)
    frame = SessionFrame(session, own, stream.entries, stream.tasks, stream.targets)
    stamps += as_list(stream.tasks)
    stamps += as_list(stream.targets)
    return LeavingSession(frame, owner, at_ms, places + buckets, stamps)


def _list_live(targets: RespValue) -> list[str]:
    found = as_hash(targets).items()
    return [name for name, stored in found if decode_target(stored).state == "live"]


def _owes(targets: RespValue, owed: set[str]) -> bool:
    """Whether a receiver waits for its next try, or is one of those that are ``owed`` something."""
    return any(
        name in owed or decode_target(stored).state == "backoff"
        for name, stored in as_hash(targets).items()
    )
