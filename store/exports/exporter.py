"""Writes sessions of a scope to a file, with the content that they name, byte for byte as stored.

One session, or one piece of content, is in memory at a time; besides that session ids, and content hashes of one shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, shard_of
from passerelle.store.archive.frame import pack_frame
from passerelle.store.archive.owner_survey import find_digests
from passerelle.store.exports.form import (
    HEAD,
    SUMMARY,
    ExportHead,
    ExportPart,
    ExportScope,
    ExportSummary,
    write_hold,
)
from passerelle.store.exports.member_file import PIECE_BYTES
from passerelle.store.exports.session_source import FoundSession, SessionSource, read_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.tombstones import Tombstones
    from passerelle.store.blobs import BlobStore
    from passerelle.store.exports.form import PartKind
    from passerelle.store.exports.member_file import MemberWriter
    from passerelle.store.exports.session_names import SessionNames

_TOO_LONG: Final = "it is too long for one frame"


@frozen
class Exporter:
    """Exports of one runtime; ``content`` has the storage of each kind of content member."""

    source: SessionSource
    tombstones: Tombstones
    content: Mapping[PartKind, BlobStore]

    async def export(
        self, head: ExportHead, members: MemberWriter, names: SessionNames
    ) -> ExportSummary:
        """Writes all members, the manifest last. If this ends early the file has no manifest, and is no export.

        Raises:
            OSError: the file cannot be written.
            StoreUnavailable: something does not answer, or is damaged.
        """
        writing = _Writing(self, head.scope, members)
        members.add(HEAD, head.write())
        async for shard, sessions in self.source.list_sessions(head.scope, names):
            writing.seen.clear()
            for session in sorted(sessions):
                await writing.add_session(shard, session)
        members.add(SUMMARY, writing.summary.write())
        members.finish()
        return writing.summary


@dataclass(slots=True)
class _Writing:
    """One export that is being written."""

    exporter: Exporter
    scope: ExportScope
    members: MemberWriter
    summary: ExportSummary = field(default_factory=ExportSummary)
    seen: set[tuple[PartKind, str]] = field(default_factory=set["tuple[PartKind, str]"])
    """Content of the current shard that is already written."""
    owners: set[str] = field(default_factory=set[str])

    async def add_session(self, shard: Shard, session: str) -> None:
        """Adds a session of the scope, after the content that it names."""
        found = await self.exporter.source.read(session)
        if isinstance(found, FoundSession):
            if self.scope.takes(found.frame, read_time(found.frame)):
                await self._add_frame(shard, found.frame, is_archived=found.is_archived)
        elif found is not None and await self.exporter.source.is_in_scope(session, self.scope):
            self.summary.left_out[session] = found

    async def _add_frame(self, shard: Shard, frame: SessionFrame, *, is_archived: bool) -> None:
        try:
            packed = pack_frame(frame)
        except ValueError:
            self.summary.left_out[frame.session] = _TOO_LONG
            return
        await self._add_hold(frame)
        for digest in sorted(find_digests(frame)):
            for kind in self.exporter.content:
                await self._add_content(ExportPart(kind, shard, digest))
        self.members.add(ExportPart("sessions", shard, frame.session).member, packed)
        self.summary.sessions += 1
        self.summary.archived += is_archived

    async def _add_hold(self, frame: SessionFrame) -> None:
        owner = frame.find_owner()
        if owner is None or owner in self.owners:
            return
        self.owners.add(owner)
        hold = await self.exporter.tombstones.find_hold(owner)
        if hold is not None:
            part = ExportPart("holds", shard_of(owner), owner)
            self.members.add(part.member, write_hold(hold))
            self.summary.holds += 1

    async def _add_content(self, part: ExportPart) -> None:
        """Adds content; a missing one is no error: the hash is no content hash, or the copy has expired."""
        if (part.kind, part.id) in self.seen:
            return
        self.seen.add((part.kind, part.id))
        place = self.exporter.content[part.kind]
        size = await place.measure(part.shard, part.id)
        if size is None:
            return
        try:
            with self.members.open(part.member, size, part.id) as write:
                for start in range(0, size, PIECE_BYTES):
                    write(await place.read(part.shard, part.id, start, PIECE_BYTES) or b"")
        except ValueError as error:
            reason = f"content is damaged, or went while it was read: {error}"
            raise StoreUnavailable(reason, "no") from None
        self.summary.content += 1
