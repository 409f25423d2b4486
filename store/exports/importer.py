"""Imports sessions of an export into a store, unchanged: the same ids, the same bytes.

Each session is imported by one script, completely or not at all, after the content that it names. Existing data stays
as it is. So an interrupted import can be repeated.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.store.archive.restoring import put_session
from passerelle.store.exports.session_source import is_same, read_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from passerelle.core.ids import Shard
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.session_tombstones import SessionTombstone, SessionTombstones
    from passerelle.store.archive.tombstones import Tombstones
    from passerelle.store.blobs import BlobStore
    from passerelle.store.exports.form import ExportPart, PartKind
    from passerelle.store.exports.session_source import SessionSource
    from passerelle.store.nodes import Nodes

ImportOutcome: TypeAlias = Literal["imported", "there", "differs", "forgotten"]
"""``there``: with the same bytes; ``differs``: with others; ``forgotten``: the session, or its owner's earlier data."""
_TRIES: Final = 2


@frozen
class Importer:
    """Imports into one runtime; ``content`` has the storage of each kind of content member.

    All raise StoreUnavailable: something does not answer, or does not take it; what was put stays.
    """

    nodes: Nodes
    source: SessionSource
    owner_keys: OwnerKeys
    tombstones: Tombstones
    session_tombstones: SessionTombstones
    content: Mapping[PartKind, BlobStore]
    _forgotten: dict[Shard, list[SessionTombstone]] = field(
        default_factory=dict["Shard", "list[SessionTombstone]"]
    )
    """Tombstones of single sessions, read when the first session of a shard is imported."""

    async def put_content(self, part: ExportPart, pieces: Iterable[bytes]) -> None:
        """Stores content. Raises InvalidInput: the pieces have another hash, and nothing is stored."""
        place = self.content[part.kind]
        await place.put_pieces(part.shard, part.id, _verify(part, pieces))

    async def put_session(self, frame: SessionFrame) -> ImportOutcome:
        """Stores a session that has ended, unless one of its ids exists."""
        if await self._is_forgotten(frame):
            return "forgotten"
        for _ in range(_TRIES):
            there = await self.source.find(frame.session)
            if there is not None:
                return "there" if is_same(there, frame) else "differs"
            if await put_session(self.nodes, frame, None):
                return "imported"
        # One of its entities belongs to another session.
        return "differs"

    async def _is_forgotten(self, frame: SessionFrame) -> bool:
        return await self._is_forgotten_alone(frame) or await self._is_owner_forgotten(frame)

    async def _is_forgotten_alone(self, frame: SessionFrame) -> bool:
        shard = shard_of(frame.session)
        if shard not in self._forgotten:
            self._forgotten[shard] = await self.session_tombstones.list_all(shard)
        stones = self._forgotten[shard]
        if not stones:
            return False
        tag, at_ms = await self.owner_keys.tag(frame.session), read_time(frame)
        return any(tag in one.tags and at_ms <= one.at_ms for one in stones)

    async def _is_owner_forgotten(self, frame: SessionFrame) -> bool:
        owner = frame.find_owner()
        stones = await self.tombstones.list_in_engine(shard_of(owner)) if owner else []
        if owner is None or not stones:
            return False
        tag, at_ms = await self.owner_keys.tag(owner), read_time(frame)
        return any(one.owner_tag == tag and at_ms <= one.at_ms for one in stones)


def _verify(part: ExportPart, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces; raises at the end if they do not match the hash in their name."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != part.id:
        raise InvalidInput(part.member, "was changed while it was imported")
