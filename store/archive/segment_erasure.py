"""Erases forgotten frames from segments: an object is rewritten under its name, and everything else in it stays.

Concurrent erasures end with all frames erased: each first notes its frames, writes the object without all noted frames,
and checks whether more were noted meanwhile; it is not done before that. A writer that replaced a newer state with an
older one sees it and writes once more. After a kill, the interrupted forgetting is repeated.

A frame is in several objects if segments were merged, or are being merged: it is erased in all of them. A merge records
its copies before it writes, and then reads the notes of each old segment (``segment_merge.py``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.store import keys
from passerelle.store.archive.erased_frame import erase_frames
from passerelle.store.archive.joined_segment import read_parts
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.store.archive.joined_segment import JoinedPart
    from passerelle.store.archive.segment import SegmentName
    from passerelle.store.archive.segment_copies import SegmentCopies
    from passerelle.store.blobs import BlobStore
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_KEEP_MS: Final = 7 * 24 * 3_600_000
"""Longer than any write takes."""


def _read_noted(reply: RespValue) -> dict[int, str]:
    return {int(offset): tombstone.decode() for offset, tombstone in as_hash(reply).items()}


_NOTE: Final = Script("note_erasures", _read_noted)


@frozen
class SegmentErasure:
    """Erases frames of the archive of one runtime."""

    nodes: Nodes
    segments: BlobStore
    copies: SegmentCopies

    async def erase(self, segment: SegmentName, tombstones: Mapping[int, str]) -> None:
        """Erases the frames at these offsets, each with its tombstone, in all copies.

        A missing object needs no erasure.

        Raises:
            ArchiveDamaged: it is no such segment, or a copy of it is damaged; that one is left as it is.
            StoreUnavailable: the engine or the archive storage does not answer.
        """
        left = deque([(segment, dict(tombstones))])
        done, damaged = set[tuple["SegmentName", int]](), list[ArchiveDamaged]()
        while left:
            one, asked = left.popleft()
            fresh = {at: name for at, name in asked.items() if (one, at) not in done}
            if not fresh:
                continue
            done |= {(one, at) for at in fresh}
            try:
                parts = await self._erase_here(one, fresh)
            except ArchiveDamaged as error:
                damaged.append(error)
                parts = []
            # Read after the note: a copy recorded later is checked by the merge that makes it.
            for copy in await self.copies.find(one):
                left.append((copy.name, {at + copy.shift: name for at, name in fresh.items()}))
            for part in parts:
                own = {at - part.shift: name for at, name in fresh.items() if part.holds(at)}
                left.append((part.name, own))
        if damaged:
            raise damaged[0]

    async def read_noted(self, segment: SegmentName) -> dict[int, str]:
        """The frames that are or will be erased in a segment, by their offsets. Raises StoreUnavailable."""
        command = pack("HGETALL", keys.erasures(segment.home, segment.sha256))
        return await self.nodes.query(segment.home, command, _read_noted)

    async def _erase_here(
        self, segment: SegmentName, tombstones: Mapping[int, str]
    ) -> list[JoinedPart]:
        """Erases frames of one object; returns the segments that it was made of."""
        noted = await self._note(segment, tombstones)
        while True:
            content = await self.segments.read(segment.home, segment.sha256, 0, segment.bytes)
            if content is None:
                return []
            try:
                erased = erase_frames(content, noted)
                parts = read_parts(content)
            except (LookupError, TypeError, ValueError) as error:
                reason = f"segment {segment.sha256} of the archive: {error}"
                raise ArchiveDamaged(reason) from None
            if erased != content:
                await self.segments.replace(segment.home, segment.sha256, erased)
            before, noted = noted, await self.read_noted(segment)
            if noted.keys() <= before.keys():
                return parts

    async def _note(self, segment: SegmentName, tombstones: Mapping[int, str]) -> dict[int, str]:
        control: dict[str, ControlValue] = {
            "frames": [[str(offset), name] for offset, name in tombstones.items()],
            "keep": _KEEP_MS,
        }
        key = keys.erasures(segment.home, segment.sha256)
        return await self.nodes.run(_NOTE, segment.home, [key], control)
