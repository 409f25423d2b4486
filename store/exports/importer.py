"""Puts sessions of an export into a store, as they were: the same ids, the same bytes.

Each session goes in by one script, whole or not at all, behind the content that it names. What is there already stays
as it is. So an import that was killed is simply made again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InvalidInput
from passerelle.core.ids import shard_of
from passerelle.store.archive.restoring import put_session
from passerelle.store.exports.session_source import is_same, read_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from passerelle.core.ids import Shard
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.session_tombstones import SessionTombstone, SessionTombstones
    from passerelle.store.archive.tombstones import LegalHold, Tombstones
    from passerelle.store.blobs import BlobStore
    from passerelle.store.exports.form import ExportPart, PartKind
    from passerelle.store.exports.session_source import SessionSource
    from passerelle.store.nodes import Nodes

ImportOutcome: TypeAlias = Literal["imported", "there", "differs", "forgotten"]
"""``there``: with the same bytes; ``differs``: with others; ``forgotten``: it is, or its owner with what was before."""
_TRIES: Final = 2


@dataclass(frozen=True, slots=True)
class Importer:
    """Imports into one runtime; ``content`` says where content stands, by the kind of its members.

    All raise StoreUnavailable: something does not answer, or does not take it; what was put is there.
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
    """Of single sessions, as they were when the first session of a shard was put."""

    async def put_content(self, part: ExportPart, pieces: Iterable[bytes]) -> None:
        """Puts content. Raises InvalidInput: the pieces have another hash, and nothing is put."""
        place = self.content[part.kind]
        await place.put_pieces(part.shard, part.id, _verify(part, pieces))

    async def put_hold(self, owner: str, hold: LegalHold) -> bool:
        """Holds an owner, unless somebody does; False: it is being forgotten at this moment."""
        return await self.tombstones.hold(owner, hold)

    async def put_session(self, frame: SessionFrame) -> ImportOutcome:
        """Puts a session that has ended, unless something stands under its ids."""
        if await self._is_forgotten(frame):
            return "forgotten"
        for _ in range(_TRIES):
            there = await self.source.find(frame.session)
            if there is not None:
                return "there" if is_same(there, frame) else "differs"
            if await put_session(self.nodes, frame, None):
                return "imported"
        # One of its entities is that of another session.
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
    """The same pieces; an error in place of the end where they are others than their name says."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != part.id:
        raise InvalidInput(part.member, "was changed while it was imported")
