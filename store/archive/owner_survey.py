"""Finds an owner's data: sessions in the engine and in the archive, and references to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.erased_frame import read_erased
from passerelle.store.archive.frame import (
    SessionFrame,
    is_home,
    list_entities,
    read_frame,
    read_owner,
)
from passerelle.store.archive.reader import read_row
from passerelle.store.archive.sealed_frame import FramePlace, KeyName, open_frame, read_key_name
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_bytes, as_hash, as_int, as_list, as_sparse_list
from passerelle.store.stream_entries import as_entry_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from passerelle.store.archive.owner_home import HomeFinder, OwnerHome
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.reader import Archive, SegmentRef
    from passerelle.store.archive.segment import FrameNote
    from passerelle.store.nodes import Nodes
    from passerelle.store.stream_entries import EntryRow

_LOOKS: Final = 256
_WITH_HOME: Final = (EntityKind.GRANTS, EntityKind.RULES)
"""Entities stored with a home session, under its id."""
_OWNER: Final = re.compile(rb'"owner":"([a-z]{2,5}_[0-9a-z]+)"')
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


SessionState: TypeAlias = Literal["open", "kept", "over"]
"""``kept``: a home session, which is removed only with its owner."""


class LiveSession(NamedTuple):
    """A session in the engine: the sequence of its last event, and its time in ms."""

    session: str
    shard: Shard
    sequence: str
    at_ms: int
    bytes: int


class ArchivedSession(NamedTuple):
    """A session in the archive, and the row of its ids."""

    shard: Shard
    segment: SegmentRef
    note: FrameNote
    row: bytes

    @property
    def session(self) -> str:
        """Its id."""
        return self.note.session


@dataclass(slots=True)
class OwnerSurvey:
    """What was found. ``open``: sessions with something open; ``home``: the owner's data outside of conversations."""

    live: list[LiveSession] = field(default_factory=list[LiveSession])
    archived: list[ArchivedSession] = field(default_factory=list[ArchivedSession])
    open: list[str] = field(default_factory=list[str])
    home: OwnerHome | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing removable is left."""
        return not self.live and not self.archived and self.home is None


@dataclass(slots=True)
class SessionTraces:
    """References to sessions: ids of them and their entities, owners whose lists name these, and content by shard."""

    ids: set[str] = field(default_factory=set[str])
    owners: set[str] = field(default_factory=set[str])
    digests: dict[Shard, set[str]] = field(default_factory=dict[Shard, set[str]])

    def add(self, shard: Shard, frame: SessionFrame) -> None:
        """Adds the references to a session."""
        self.ids |= {ref.id for ref in frame.hashes}
        for ref, flat in frame.hashes.items():
            if ref.kind in {EntityKind.TASK, EntityKind.SESSION}:
                self.owners |= {
                    owner.decode() for owner in _OWNER.findall(b" ".join(as_list(flat)))
                }
        self.digests.setdefault(shard, set()).update(find_digests(frame))


def find_digests(frame: SessionFrame) -> set[str]:
    """Texts in a session that may be content hashes."""
    return {one.decode() for words in _list_words(frame) for one in _DIGEST.findall(words)}


def _list_words(frame: SessionFrame) -> Iterator[bytes]:
    for flat in frame.hashes.values():
        yield from as_list(flat)
    for _, members in frame.entries:
        yield from members


@frozen
class SessionFinder:
    """Scans the store and the archive of one runtime; reads only.

    All raise StoreUnavailable if something does not answer, or is damaged: its references would be missed.
    """

    nodes: Nodes
    archive: Archive
    owner_keys: OwnerKeys
    homes: HomeFinder

    async def survey(self, owner: str, key: KeyName | None, before_ms: int) -> OwnerSurvey:
        """An owner's data without later events, and the archived sessions sealed with this key."""
        found = OwnerSurvey(home=await self.homes.find(owner, before_ms))
        async for whose, one in self.list_heads():
            if whose != owner or one.at_ms > before_ms:
                continue
            match await self.judge(one):
                case "open":
                    found.open.append(one.session)
                case "kept":
                    pass
                case "over":
                    found.live.append(one)
        if key is not None:
            found.archived = [one async for one in self._list_archived(key)]
        return found

    async def judge(self, one: LiveSession) -> SessionState:
        """Whether something is open in a session, or it is a home session."""
        head = keys.entity(EntityRef(EntityKind.SESSION, one.session))
        asked = [
            pack("ZCARD", keys.session_open(one.shard, one.session)),
            pack("HGET", head, "s"),
            *(pack("HLEN", keys.entity(EntityRef(kind, one.session))) for kind in _WITH_HOME),
        ]
        still_open, record, *further = await self.nodes.query_in_background(one.shard, *asked)
        if as_int(still_open):
            return "open"
        is_kept = any(map(as_int, further)) or is_home(one.session, as_bytes(record) or b"")
        return "kept" if is_kept else "over"

    async def read(self, shard: Shard, session: str) -> SessionFrame | None:
        """A session from the engine; None if it has none."""
        stream = StreamRef(StreamKind.SESSION, session)
        head = EntityRef(EntityKind.SESSION, session)
        entries, flat, tasks, targets = await self.nodes.query_in_background(
            shard,
            pack("XRANGE", keys.entries(stream), "-", "+"),
            pack("HGETALL", keys.entity(head)),
            pack("ZRANGE", keys.session_tasks(shard, session), 0, -1, "WITHSCORES"),
            pack("HGETALL", keys.stream_targets(stream)),
        )
        if not as_list(flat):
            return None
        rows = as_entry_rows(entries)
        refs = [ref for ref in _list_entities(session, rows) if ref != head and ref.shard == shard]
        asked = [pack("HGETALL", keys.entity(ref)) for ref in refs]
        replies = await self.nodes.query_in_background(shard, *asked)
        # An event may name entities of another session.
        hashes = {head: flat} | {
            ref: reply
            for ref, reply in zip(refs, replies, strict=True)
            if session.encode() in as_hash(reply).get("s", b"")
        }
        return SessionFrame(session, hashes, rows, tasks, targets)

    async def open(self, one: ArchivedSession) -> SessionFrame | None:
        """A session from the archive; None if it is forgotten, or its key is gone."""
        sealed = await self.archive.read_sealed(one.shard, one.segment, one.note)
        if read_erased(sealed) is not None:
            return None
        place = FramePlace(self.owner_keys.runtime_id, one.shard)
        try:
            key = await self.owner_keys.recall(read_key_name(sealed))
            return None if key is None else read_frame(open_frame(sealed, key, place))
        except ValueError as error:
            reason = f"segment {one.segment.name.sha256} of the archive of shard {one.shard.tag}: {error}"
            raise ArchiveDamaged(reason) from None

    async def list_others(self, shard: Shard, ids: set[str]) -> AsyncIterator[SessionFrame]:
        """Every session of a shard except ``ids``."""
        async for one in self._scan([shard]):
            frame = None if one in ids else await self.read(shard, one)
            if frame is not None:
                yield frame
        for segment in await self.archive.list_segments(shard):
            for note in await self.archive.list_frames(shard, segment):
                if note.session not in ids and (row := await self._find_row(shard, segment, note)):
                    frame = await self.open(ArchivedSession(shard, segment, note, row))
                    if frame is not None:
                        yield frame

    async def list_owners(self) -> set[str]:
        """The owners with a session in the engine."""
        found = set[str]()
        async for owner, _ in self.list_heads():
            found.add(owner)
        return found

    async def list_heads(
        self, shards: Iterable[Shard] = ALL_SHARDS
    ) -> AsyncIterator[tuple[str, LiveSession]]:
        """Each session in the engine with its owner."""
        by_shard = dict[Shard, list[str]]()
        async for session in self._scan(shards):
            by_shard.setdefault(shard_of(session), []).append(session)
        for shard, sessions in by_shard.items():
            for part in in_chunks(sessions, _LOOKS):
                for one in await self.read_heads(shard, part):
                    yield one

    async def read_heads(
        self, shard: Shard, sessions: Sequence[str]
    ) -> list[tuple[str, LiveSession]]:
        """The given sessions that are in the engine, each with its owner."""
        asked = [
            pack("HMGET", keys.entity(EntityRef(EntityKind.SESSION, name)), *_FIELDS)
            for name in sessions
        ]
        found = list[tuple[str, LiveSession]]()
        replies = await self.nodes.query_in_background(shard, *asked)
        for session, reply in zip(sessions, replies, strict=True):
            snapshot, sequence, at, size = as_sparse_list(reply)
            owner = read_owner([b"s", snapshot or b""])
            if owner is not None and sequence is not None:
                at_ms = parse_ms(at.decode()) if at else 0
                row = LiveSession(session, shard, sequence.decode(), at_ms, int(size or 0))
                found.append((owner, row))
        return found

    async def _scan(self, shards: Iterable[Shard]) -> AsyncIterator[str]:
        """Each session in the engine once."""
        wanted, seen = set(shards), set[str]()
        for node in {self.nodes.node(shard): None for shard in wanted}:
            async for names in scan_keys(node, keys.EVERY_SESSION):
                for name in names:
                    session = name.decode().rpartition(":")[2]
                    if session not in seen and _find_shard_of_key(name) in wanted:
                        seen.add(session)
                        yield session

    async def _list_archived(self, key: KeyName) -> AsyncIterator[ArchivedSession]:
        for shard in ALL_SHARDS:
            for segment in await self.archive.list_segments(shard):
                for note in await self.archive.list_frames(shard, segment):
                    if note.key == key.text and (row := await self._find_row(shard, segment, note)):
                        yield ArchivedSession(shard, segment, note, row)

    async def _find_row(self, shard: Shard, segment: SegmentRef, note: FrameNote) -> bytes | None:
        """The row that leads to a frame; None if the session was restored, or archived once more."""
        asked = (self.archive.ask_row(shard, name) for name in note.names)
        for row in map(as_bytes, await self.nodes.query_in_background(shard, *asked)):
            if row is not None and segment.has(read_row(shard, row), note.offset):
                return row
        return None


_FIELDS: Final = ("s", "seq", "at", "bytes")


def _list_entities(session: str, rows: list[EntryRow]) -> list[EntityRef]:
    try:
        return list_entities(session, rows)
    except (LookupError, ValueError) as error:
        reason = f"session {session} is damaged, which passerelle verify names: {error}"
        raise StoreUnavailable(reason, "no") from None


def _find_shard_of_key(key: bytes) -> Shard:
    return ALL_SHARDS[int(key[1:3], 16)]
