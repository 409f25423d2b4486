"""Reads sessions from engine or archive: each complete and as of one moment, during concurrent writes.

Forgotten sessions are not read, from the moment their tombstone exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import MOST_PLAIN_BYTES, SessionFrame
from passerelle.store.archive.frame import is_home as is_home_session
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_hash, as_int, as_scores, as_sparse_list

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from passerelle.store.archive.owner_survey import SessionFinder
    from passerelle.store.archive.reader import Archive
    from passerelle.store.archive.tombstones import Tombstones
    from passerelle.store.exports.form import ExportScope
    from passerelle.store.exports.session_names import SessionNames
    from passerelle.store.nodes import Nodes

_LOOKS: Final = 8
"""How often a session that is being written to is read again."""

LeftOut: TypeAlias = Literal[
    "something is open in it",
    "it is the home session of a caller",
    "it is too long for one frame",
    "it is being written to",
]
"""Why a session is in no export: it has not ended, has its caller's permissions, or cannot be read consistently."""


class FoundSession(NamedTuple):
    """A session, and whether it was in the archive."""

    frame: SessionFrame
    is_archived: bool


@frozen
class SessionSource:
    """Reads sessions of one runtime. All raise StoreUnavailable: something does not answer, or is damaged."""

    nodes: Nodes
    archive: Archive
    finder: SessionFinder
    tombstones: Tombstones

    async def list_sessions(
        self, scope: ExportScope, names: SessionNames
    ) -> AsyncIterator[tuple[Shard, set[str]]]:
        """Session ids that may be in a scope, one shard at a time; ``names`` collects those in the engine.

        A session archived meanwhile is then read from the archive. Raises OSError: the disk is full.
        """
        if scope.session is not None:
            yield shard_of(scope.session), {scope.session}
            return
        for node in self.nodes.all:
            async for found in scan_keys(node, keys.EVERY_SESSION):
                for name in found:
                    names.add(name.decode().rpartition(":")[2])
        for shard in ALL_SHARDS:
            yield shard, names.list(shard) | set(await self.archive.list_sessions([shard]))

    async def read(
        self, session: str, *, may_be_open: bool = False
    ) -> FoundSession | LeftOut | None:
        """A session that has ended, or may be open; why it is left out; None: there is none, or it is forgotten."""
        shard = shard_of(session)
        for _ in range(_LOOKS):
            found = await self._read_live(shard, session, may_be_open=may_be_open)
            if found == "it is being written to":
                continue
            if found is None and (frame := await self.archive.find(shard, session)) is not None:
                found = FoundSession(frame, is_archived=True)
            if isinstance(found, FoundSession) and is_home(found.frame):
                return "it is the home session of a caller"
            if found is not None:
                return found
            if not await self._is_live(shard, session):
                return None
        return "it is being written to"

    async def find(self, session: str) -> SessionFrame | None:
        """The session with an id, ended or not; None if there is none, or it is forgotten."""
        shard = shard_of(session)
        for _ in range(_LOOKS):
            frame = await self.finder.read(shard, session)
            frame = frame or await self.archive.find(shard, session)
            if frame is not None or not await self._is_live(shard, session):
                return frame
        return None

    async def read_head(self, session: str) -> SessionFrame | None:
        """A session with at least its head; None if there is none."""
        head = EntityRef(EntityKind.SESSION, session)
        [flat] = await self.nodes.query_all(head.shard, pack("HGETALL", keys.entity(head)))
        if flat:
            return SessionFrame(session, {head: flat})
        return await self.archive.find(head.shard, session)

    async def is_in_scope(self, session: str, scope: ExportScope) -> bool:
        """Whether a session is in a scope, by its head."""
        head = await self.read_head(session)
        return head is not None and scope.takes(head, read_time(head))

    async def _is_live(self, shard: Shard, session: str) -> bool:
        head = keys.entity(EntityRef(EntityKind.SESSION, session))
        [count] = await self.nodes.query_all(shard, pack("EXISTS", head))
        return bool(as_int(count))

    async def _read_live(
        self, shard: Shard, session: str, *, may_be_open: bool
    ) -> FoundSession | LeftOut | None:
        """Reads a session twice after checking what is open: if both reads agree, it is as of that check."""
        head, still_open = await self.nodes.query_in_background(
            shard,
            pack("HMGET", keys.entity(EntityRef(EntityKind.SESSION, session)), "seq", "bytes"),
            pack("ZCARD", keys.session_open(shard, session)),
        )
        sequence, size = as_sparse_list(head)
        if sequence is None:
            return None
        if as_int(still_open) and not may_be_open:
            return "something is open in it"
        if as_int(size) > MOST_PLAIN_BYTES:
            return "it is too long for one frame"
        frame = await self.finder.read(shard, session)
        again = await self.finder.read(shard, session)
        if frame is None or frame != again or read_field(frame, "seq") != sequence:
            return "it is being written to"
        return None if await self._is_forgotten(frame) else FoundSession(frame, is_archived=False)

    async def _is_forgotten(self, frame: SessionFrame) -> bool:
        """Whether it is being forgotten at the moment."""
        owner = frame.find_owner()
        if owner is None:
            return False
        begun = await self.tombstones.list_in_engine(shard_of(owner))
        at_ms = read_time(frame)
        return any(one.owner == owner and at_ms <= one.at_ms for one in begun)


def read_field(frame: SessionFrame, name: str) -> bytes | None:
    """A field of the head of a session."""
    return as_hash(frame.hashes[EntityRef(EntityKind.SESSION, frame.session)]).get(name)


def read_time(frame: SessionFrame) -> int:
    """The time of the last event of a session, in ms; 0 if its head has none."""
    stored = read_field(frame, "at")
    return parse_ms(stored.decode()) if stored else 0


def is_home(frame: SessionFrame) -> bool:
    """Whether a session is a home session: devices, grants, rules of a caller, no conversation."""
    return is_home_session(frame.session, read_field(frame, "s") or b"")


def is_same(one: SessionFrame, other: SessionFrame) -> bool:
    """Whether two sessions have the same content: an engine returns the fields of a hash in any order."""
    return (
        one.session == other.session
        and _list_entries(one) == _list_entries(other)
        and sorted(as_scores(one.tasks)) == sorted(as_scores(other.tasks))
        and as_hash(one.targets) == as_hash(other.targets)
        and {ref: as_hash(flat) for ref, flat in one.hashes.items() if flat}
        == {ref: as_hash(flat) for ref, flat in other.hashes.items() if flat}
    )


def _list_entries(frame: SessionFrame) -> list[list[bytes]]:
    """An engine returns an entry as a list, a frame as a tuple."""
    return [[name, *members] for name, members in frame.entries]
