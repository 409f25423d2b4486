"""A session to be archived, as read from the engine: its stored data, and the values that the commit compares.

Read in two exchanges: entries, task list and receivers; then the entities that its entries name. The head is read after
the entries, so they are complete if they end where it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from passerelle.core.batch import EntityKind
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import SessionFrame, find_owner, list_entities
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack_words
from passerelle.store.replies import as_hash, as_list
from passerelle.store.stream_entries import as_entry_rows
from passerelle.store.targets import decode_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes
    from passerelle.store.stream_entries import EntryRow


class LeavingSession(NamedTuple):
    """A session with complete entries and no pending deliveries."""

    frame: SessionFrame
    owner: str
    at_ms: int
    """The time of its last event."""
    keys: list[str]
    """Those of ``keys.session_keys``, of its entities, and of the archive row bucket of each of these."""
    values: list[bytes]
    """Sequence, chain; version, operation and row name of each entity; its task list; its receivers."""

    @property
    def last(self) -> int:
        """The sequence of its last event."""
        return int(self.values[0])

    @property
    def chain(self) -> str:
        """The chain after its last event."""
        return self.values[1].decode()

    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of entities, of words of its task list, and of words of its receivers in ``values``."""
        frame = self.frame
        return len(frame.hashes), len(as_list(frame.tasks)), len(as_list(frame.targets))


class _Stream(NamedTuple):
    shard: Shard
    session: str
    keys: list[str]
    entries: list[EntryRow]
    tasks: RespValue
    targets: RespValue


async def read_leaving(
    nodes: Nodes, sessions: Mapping[Shard, Sequence[str]], before_ms: int | None
) -> list[LeavingSession]:
    """Reads the sessions of some shards that may be archived, as far as consecutive reads agree.

    Sessions with an event since ``before_ms`` are left out; so are those that are damaged, or whose record names no
    owner.

    Raises:
        StoreUnavailable: the engine does not answer.
    """
    streams = await _read_streams(nodes, sessions)
    refs = [_list_entities(stream) for stream in streams]
    # Otherwise an object that the commit refuses would be written for nothing, and again at each look.
    live = [(one.shard, name) for one in streams if one.targets for name in _list_live(one.targets)]
    asked = [
        (shard, pack_words(("ZSCORE", keys.due(shard), f"target:{name}"))) for shard, name in live
    ]
    names = list[list[str]]()
    for stream, named in zip(streams, refs, strict=True):
        shard = stream.shard
        own = [keys.entity_in(shard, ref) for ref in named]
        names.append(own)
        asked += [(shard, pack_words(("HGETALL", name))) for name in own]
    answers = await nodes.query_each_in_background(asked)
    owed = {name for (_, name), at in zip(live, answers, strict=False) if at is not None}
    found, first = list[LeavingSession](), len(live)
    for stream, named, own in zip(streams, refs, names, strict=True):
        hashes = answers[first : first + len(named)]
        first += len(named)
        one = _read_one(stream, named, own, hashes, before_ms)
        if one is not None and not (stream.targets and _has_pending(stream.targets, owed)):
            found.append(one)
    return found


async def _read_streams(nodes: Nodes, sessions: Mapping[Shard, Sequence[str]]) -> list[_Stream]:
    every = [(shard, session) for shard, part in sessions.items() for session in part]
    names, asked = list[list[str]](), list[tuple["Shard", bytes]]()
    for shard, session in every:
        own = keys.session_keys(shard, session)
        names.append(own)
        _, entries, _, tasks, targets = own
        asked += (
            (shard, pack_words(("XRANGE", entries, "-", "+"))),
            (shard, pack_words(("ZRANGE", tasks, 0, -1, "WITHSCORES"))),
            (shard, pack_words(("HGETALL", targets))),
        )
    replies = await nodes.query_each_in_background(asked)
    parts = zip(every, names, replies[::3], replies[1::3], replies[2::3], strict=True)
    return [
        _Stream(shard, session, own, as_entry_rows(entries), tasks, targets)
        for (shard, session), own, entries, tasks, targets in parts
        if entries
    ]


def _list_entities(stream: _Stream) -> list[EntityRef]:
    try:
        return list_entities(stream.session, stream.entries)
    except (LookupError, ValueError):
        return []  # a damaged append: the session stays, and the verification names it


def _read_one(
    stream: _Stream,
    refs: Sequence[EntityRef],
    names: Sequence[str],
    hashes: Sequence[RespValue],
    before_ms: int | None,
) -> LeavingSession | None:
    """None for a session that changed between the reads, or after ``before_ms``, or that has no owner."""
    own, buckets = dict["EntityRef", "RespValue"](), list[str]()
    places, stamps = [*stream.keys], list[bytes]()
    head = dict[bytes, bytes]()
    mark = stream.session.encode()
    for ref, name, flat in zip(refs, names, hashes, strict=True):
        words = as_list(flat)
        fields = dict(zip(words[::2], words[1::2], strict=True))
        if ref.kind is EntityKind.SESSION:
            head = fields
        # Events of a session may name entities of another one: the snapshot has their session.
        elif mark not in fields.get(b"s", b""):
            continue
        own[ref] = flat
        bucket, field = place_row(stream.shard, ref.id)
        places.append(name)
        buckets.append(bucket)
        stamps += (fields.get(b"v", b"0"), fields.get(b"op", b""), field)
    at, sequence = head.get(b"at"), head.get(b"seq", b"")
    if at is None or sequence != stream.entries[-1][0].partition(b"-")[0]:
        return None
    at_ms, owner = parse_ms(at.decode()), find_owner(head.get(b"s", b""))
    if owner is None or (before_ms is not None and at_ms >= before_ms):
        return None
    tasks, receivers = as_list(stream.tasks), as_list(stream.targets)
    return LeavingSession(
        SessionFrame(stream.session, own, stream.entries, stream.tasks, stream.targets),
        owner,
        at_ms,
        places + buckets,
        [sequence, head[b"chain"], *stamps, *tasks, *receivers],
    )


def _list_live(targets: RespValue) -> list[str]:
    found = as_hash(targets).items()
    return [name for name, stored in found if decode_target(stored).state == "live"]


def _has_pending(targets: RespValue, owed: set[str]) -> bool:
    """Whether a receiver waits for its next try, or has a pending delivery (``owed``)."""
    return any(
        name in owed or decode_target(stored).state == "backoff"
        for name, stored in as_hash(targets).items()
    )
