"""Tombstones of singly forgotten sessions: up to ``MOST_SESSIONS`` of a shard under one tombstone.

A tombstone is stored in their shard, and as an object with the archive. It has a keyed hash of each session and nothing
of its content. While forgetting is in progress, the engine also has the references to each session: after a kill
another process can complete it. Then these are deleted, and the engine keeps when and by whom.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, cast

import orjson

from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, read_shard
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.store import keys
from passerelle.store.archive.segment import SegmentName
from passerelle.store.archive.tombstones import ForgottenCounts
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.blobs import BlobStore
    from passerelle.store.nodes import Nodes

MOST_SESSIONS: Final = 256
_ID_BYTES: Final = 8


@frozen
class ForgottenFrame:
    """A frame of a session in the archive, whether a row led to it or not."""

    segment: SegmentName
    offset: int


@frozen
class ForgottenSession:
    """References to a removed session: ids, owners whose lists name it, content that it named, frames."""

    session: str
    names: tuple[str, ...]
    owners: tuple[str, ...]
    digests: tuple[str, ...]
    frames: tuple[ForgottenFrame, ...]
    size: int
    """Bytes, as stored."""
    is_archived: bool

    @property
    def shard(self) -> Shard:
        """Its shard."""
        return cast("Shard", read_shard(self.session))

    def write(self) -> str:
        """The stored form, which is deleted once nothing is left."""
        frames = [[str(one.segment), one.offset] for one in self.frames]
        lists = (self.names, self.owners, self.digests, frames)
        return orjson.dumps((self.session, *lists, self.size, self.is_archived)).decode()

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Reads a stored form."""
        session, *lists, frames, size, is_archived = orjson.loads(stored)
        sites = tuple(ForgottenFrame(SegmentName.read(name), offset) for name, offset in frames)
        names, owners, digests = map(tuple, lists)
        return cls(session, names, owners, digests, sites, size, is_archived)


def count_sessions(sessions: Iterable[ForgottenSession]) -> ForgottenCounts:
    """The totals of these sessions."""
    every = [*sessions]
    names = [name for one in every for name in one.names]
    return ForgottenCounts(
        len(every),
        sum(one.is_archived for one in every),
        sum(name.startswith("task_") for name in names),
        sum(name.startswith("act_") for name in names),
        sum(one.size for one in every),
    )


@frozen
class SessionTombstone:
    """States that sessions without an event after ``at_ms`` are forgotten.

    ``tags`` has a keyed hash of each, if it was read from the archive.
    """

    id: str
    at_ms: int
    by: str
    sessions: Mapping[str, ForgottenSession] = field(default_factory=dict[str, ForgottenSession])
    """By field of each, while forgetting is in progress. The engine's log has the names of removed fields, so a name
    must reveal nothing."""
    tags: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def shard(self) -> Shard:
        """The shard of its sessions."""
        return Shard(int(self.id[:2], 16))

    @property
    def header(self) -> str:
        """The part that the engine keeps for good."""
        return orjson.dumps([format_ms(self.at_ms), self.by]).decode()


def draw_id(shard: Shard) -> str:
    """The id of a new tombstone, in 18 hexadecimal digits; it reveals nothing."""
    return shard.tag + secrets.token_hex(_ID_BYTES)


@dataclass(slots=True)
class SessionTombstones:
    """The tombstones of one runtime. ``objects`` is their storage with the archive; all raise StoreUnavailable."""

    nodes: Nodes
    owner_keys: OwnerKeys
    objects: BlobStore
    _read: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Id and time of objects that were read: there may be thousands, and they do not change."""

    async def list_begun(self, shard: Shard) -> list[SessionTombstone]:
        """The tombstones of a shard in progress, with their sessions."""
        stored = await self._read_engine(shard)
        begun = dict[str, dict[str, ForgottenSession]]()
        for name, value in stored.items():
            tombstone, _, number = name.partition(" ")
            if number:
                begun.setdefault(tombstone, {})[name] = ForgottenSession.read(value)
        return [
            _read_header(tombstone, stored[tombstone], sessions)
            for tombstone, sessions in sorted(begun.items())
        ]

    async def write_object(self, tombstone: SessionTombstone) -> None:
        """Stores a tombstone with the archive; the same bytes for the same one."""
        tags = await self.owner_keys.tag_all([one.session for one in tombstone.sessions.values()])
        counts = count_sessions(tombstone.sessions.values())
        words = {
            "runtimeId": self.owner_keys.runtime_id,
            "tombstone": tombstone.id,
            "at": format_ms(tombstone.at_ms),
            "by": tombstone.by,
            "sessionTags": sorted(tags),
            "archived": counts.archived,
            "tasks": counts.tasks,
            "approvals": counts.approvals,
            "bytes": counts.bytes,
        }
        await self.objects.put(tombstone.shard, orjson.dumps(words))

    async def end(self, tombstone: SessionTombstone) -> None:
        """Deletes the references to its sessions: nothing of them is left."""
        where = keys.forgotten_sessions(tombstone.shard)
        await self.nodes.update(tombstone.shard, pack("HDEL", where, *tombstone.sessions))

    async def list_lost(self, shard: Shard, since_ms: int) -> list[SessionTombstone]:
        """Archived tombstones that the engine does not know, or that were set since; with their tags."""
        known = await self._read_engine(shard)
        found = list[SessionTombstone]()
        for digest in await self.objects.list_digests(shard):
            seen = self._read.get(digest)
            if seen is not None and seen[0] in known and seen[1] < since_ms:
                continue
            one = await self._read_object(shard, digest)
            if one is None:
                continue
            self._read[digest] = (one.id, one.at_ms)
            if one.id not in known or one.at_ms >= since_ms:
                found.append(one)
        return found

    async def list_all(self, shard: Shard) -> list[SessionTombstone]:
        """All archived tombstones for sessions of a shard, with their tags."""
        read = [
            await self._read_object(shard, digest)
            for digest in await self.objects.list_digests(shard)
        ]
        return [one for one in read if one is not None]

    async def keep(self, tombstone: SessionTombstone) -> None:
        """Makes the engine know a tombstone without remaining data."""
        where = keys.forgotten_sessions(tombstone.shard)
        command = pack("HSET", where, tombstone.id, tombstone.header)
        await self.nodes.update(tombstone.shard, command)

    async def _read_engine(self, shard: Shard) -> dict[str, bytes]:
        command = pack("HGETALL", keys.forgotten_sessions(shard))
        return await self.nodes.query(shard, command, as_hash)

    async def _read_object(self, shard: Shard, digest: str) -> SessionTombstone | None:
        stored = await self.objects.get(shard, digest)
        return None if stored is None else _read_object(stored, self.owner_keys.runtime_id)


def _read_header(
    tombstone: str, stored: bytes, sessions: Mapping[str, ForgottenSession]
) -> SessionTombstone:
    at, by = cast("list[str]", orjson.loads(stored))
    return SessionTombstone(tombstone, parse_ms(at), by, sessions)


def _read_object(stored: bytes, runtime_id: str) -> SessionTombstone | None:
    """None: it belongs to another runtime, or is a tombstone of an owner."""
    try:
        said = cast("Mapping[str, Any]", orjson.loads(stored))
        if said["runtimeId"] != runtime_id:
            return None
        tags = frozenset[str](said["sessionTags"])
        return SessionTombstone(
            str(said["tombstone"]), parse_ms(said["at"]), str(said["by"]), tags=tags
        )
    except (LookupError, TypeError, ValueError):
        return None
