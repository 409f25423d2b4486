"""Merges small segments of one shard into one: frames are copied unchanged, and no row changes.

Before the new object is written it is noted, and recorded as a copy of each old one. Then it is read back, frames
forgotten meanwhile are erased in it, and each shard that names old ones names it instead, by one script; the shard of
the objects is the last. Then the old ones are noted, and deleted a week later.

After a kill at any step, each shard names the old ones or the new one, and both exist. The next look continues.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS
from passerelle.store import keys
from passerelle.store.archive.joined_segment import (
    NOTE_BYTES,
    JoinedPart,
    check_segment,
    join_segments,
)
from passerelle.store.archive.segment import SegmentName, read_footer, split_segment
from passerelle.store.archive.segment_copies import SegmentCopies, SegmentCopy
from passerelle.store.archive.segment_erasure import SegmentErasure
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_int, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from passerelle.core.ids import Shard
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.blobs import BlobStore
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

MOST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a merged segment: it is read completely if something in it is forgotten."""
FEW: Final = 8
"""Fewer small segments wait for more, unless they fill half a segment: a byte is copied only a few times."""
_LATE_MS: Final = 24 * 3_600_000
"""A merge begun longer ago is not continued: its object is deleted a week later."""
_TRIES: Final = 3
_BEGIN: Final = Script("begin_merge", as_text)
_MERGE: Final = Script("merge_segments", as_int)


@dataclass(slots=True)
class MergedSegments:
    """The result of a look: new objects, the objects merged into them with their bytes, and damaged objects."""

    made: int = 0
    merged: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list[str])


class _Begun(NamedTuple):
    name: SegmentName
    parts: list[JoinedPart]
    whole: frozenset[int]
    """Offsets of the frames that are not erased."""


def choose_segments(small: Collection[SegmentName], few: int = FEW) -> list[SegmentName]:
    """The segments to merge next, the smallest first; empty if a merge does not pay yet."""
    group, total = list[SegmentName](), 0
    for one in sorted((one for one in small if one.bytes < MOST_BYTES // 2), key=_order):
        if total + one.bytes + NOTE_BYTES > MOST_BYTES:
            break
        group.append(one)
        total += one.bytes + NOTE_BYTES
    # A segment twice as large as all others together would be copied again with each few new ones.
    while group and 3 * (group[-1].bytes + NOTE_BYTES) > 2 * total and total < MOST_BYTES // 2:
        total -= group.pop().bytes + NOTE_BYTES
    is_worth_it = len(group) >= few or (len(group) > 1 and total >= MOST_BYTES // 2)
    return group if is_worth_it else []


def _order(name: SegmentName) -> tuple[int, str]:
    return name.bytes, name.sha256


@frozen
class SegmentMerge:
    """Merges in one runtime. Concurrent merges do no harm: both objects have all frames, and a shard names one."""

    nodes: Nodes
    segments: BlobStore
    owner_keys: OwnerKeys
    erasure: SegmentErasure
    few: int = FEW

    @classmethod
    def over(cls, nodes: Nodes, segments: BlobStore, owner_keys: OwnerKeys) -> Self:
        """Creates it with its own erasure."""
        return cls(
            nodes, segments, owner_keys, SegmentErasure(nodes, segments, SegmentCopies(nodes))
        )

    async def merge(self, home: Shard, now_ms: int, most: int = 1) -> MergedSegments:
        """Continues an interrupted merge, and makes at most ``most`` new objects of segments in this shard.

        An object that is damaged or missing is left as it is, reported, and does not block others.

        Raises:
            StoreUnavailable: the engine or the archive storage does not answer; all reads work as before.
        """
        done = MergedSegments()
        if (begun := await self._find_begun(home)) is not None:
            await self._try(home, begun, now_ms, done)
        left_out = set[SegmentName]()
        while done.made < most:
            small = await self._list_small(home)
            group = choose_segments([one for one in small if one not in left_out], self.few)
            if not group:
                break
            contents, damaged = await self._read_group(home, group)
            left_out |= damaged.keys()
            done.damaged += damaged.values()
            if not damaged:
                name = await self._write(home, contents, now_ms)
                if not await self._try(home, name, now_ms, done):
                    break
        return done

    async def _try(self, home: Shard, name: SegmentName, now_ms: int, done: MergedSegments) -> bool:
        """Makes shards name an object, if it is complete; returns whether all of them do."""
        try:
            begun = await self._read_begun(home, name, now_ms)
            if begun is None:
                return False
            await self._erase_forgotten(begun)
            if not await self._name_everywhere(home, begun, now_ms):
                return False
        except ArchiveDamaged as error:
            await self._drop(home, name, now_ms)
            done.damaged.append(error.reason)
            return False
        done.made += 1
        done.merged += len(begun.parts)
        done.bytes += name.bytes
        return True

    async def _find_begun(self, home: Shard) -> SegmentName | None:
        command = pack("HGET", keys.meta(home), "merge")
        [name] = await self.nodes.query_in_background(home, command)
        return None if name is None else SegmentName.read(as_text(name))

    async def _list_small(self, home: Shard) -> list[SegmentName]:
        """Segments in this shard that it names and that are not noted as dead."""
        named, noted = await self.nodes.query_in_background(
            home,
            pack("ZRANGE", keys.segments(home), 0, -1),
            pack("ZRANGE", keys.segment_notes(home), 0, -1),
        )
        dead = {*as_texts(noted)}
        every = [SegmentName.read(name) for name in as_texts(named) if name not in dead]
        return [one for one in every if one.home == home]

    async def _read_group(
        self, home: Shard, group: Sequence[SegmentName]
    ) -> tuple[list[tuple[SegmentName, bytes]], dict[SegmentName, str]]:
        """The contents, and the reasons for segments that are not complete."""
        contents, damaged = list[tuple[SegmentName, bytes]](), dict[SegmentName, str]()
        for one in group:
            content = await self.segments.read(home, one.sha256, 0, one.bytes)
            if content is None:
                damaged[one] = f"segment {one.sha256} of the archive is gone"
                continue
            try:
                await asyncio.to_thread(check_segment, content, one, self.owner_keys.runtime_id)
            except (LookupError, TypeError, ValueError) as error:
                damaged[one] = str(error)
            else:
                contents.append((one, content))
        return contents, damaged

    async def _write(
        self, home: Shard, contents: Sequence[tuple[SegmentName, bytes]], now_ms: int
    ) -> SegmentName:
        """The written object; if another merge was begun meanwhile, that one's object."""
        runtime_id = self.owner_keys.runtime_id
        content = await asyncio.to_thread(join_segments, home, runtime_id, contents, now_ms)
        digest = hashlib.sha256(content).hexdigest()
        name = SegmentName(digest, len(content), home)
        parts = check_segment(content, name, runtime_id)
        control: dict[str, ControlValue] = {
            "segment": str(name),
            "since": str(now_ms),
            "copies": [[one.name.sha256, str(SegmentCopy(name, one.shift))] for one in parts],
        }
        where = [keys.meta(home), keys.segment_notes(home), keys.segment_copies(home)]
        begun = await self.nodes.run(_BEGIN, home, where, control)
        if begun != str(name):
            return SegmentName.read(begun)
        await self.segments.put_pieces(home, digest, (content,))
        return name

    async def _read_begun(self, home: Shard, name: SegmentName, now_ms: int) -> _Begun | None:
        """The object, verified as it is read back; None if it is too old, or was never written."""
        since, number = await self.nodes.query_in_background(
            home,
            pack("ZSCORE", keys.segment_notes(home), str(name)),
            pack("ZSCORE", keys.segments(home), str(name)),
        )
        is_late = since is None or float(as_text(since)) < now_ms - _LATE_MS
        content = await self.segments.read(home, name.sha256, 0, name.bytes)
        if (is_late and number is None) or content is None:
            await self._drop(home, name, now_ms)
            return None
        try:
            check = asyncio.to_thread(check_segment, content, name, self.owner_keys.runtime_id)
            parts = await check
            notes = read_footer(split_segment(content)[1])
        except (LookupError, TypeError, ValueError) as error:
            raise ArchiveDamaged(str(error)) from None
        return _Begun(name, parts, frozenset(note.offset for note in notes))

    async def _drop(self, home: Shard, name: SegmentName, now_ms: int) -> None:
        """Gives up an object: it stays noted, and is deleted for that."""
        await self._name(home, home, name, [], now_ms)

    async def _erase_forgotten(self, begun: _Begun) -> None:
        """Erases frames that were forgotten in the old segments since they were read.

        A later erasure finds the copy, because that is recorded by now.
        """
        forgotten = await self.erasure.read_noted(begun.name)
        for part in begun.parts:
            for offset, tombstone in (await self.erasure.read_noted(part.name)).items():
                forgotten.setdefault(offset + part.shift, tombstone)
        left = {at: name for at, name in forgotten.items() if at in begun.whole}
        if left:
            await self.erasure.erase(begun.name, left)

    async def _name_everywhere(self, home: Shard, begun: _Begun, now_ms: int) -> bool:
        """Makes each shard name the new object; returns whether no shard names an old one any more, as far as seen."""
        for shard in (*(one for one in ALL_SHARDS if one != home), home):
            for _ in range(_TRIES):
                old = await self._list_old(shard, begun.parts)
                if not old and shard != home:
                    break
                if await self._name(home, shard, begun.name, old, now_ms):
                    break
            else:
                return False
        return True

    async def _list_old(self, shard: Shard, parts: Sequence[JoinedPart]) -> list[ControlValue]:
        asked = (pack("ZSCORE", keys.segments(shard), str(one.name)) for one in parts)
        replies = await self.nodes.query_in_background(shard, *asked)
        numbers = map(as_bytes, replies)
        return [
            [str(one.name), number.decode(), one.shift]
            for one, number in zip(parts, numbers, strict=True)
            if number is not None
        ]

    async def _name(
        self,
        home: Shard,
        shard: Shard,
        name: SegmentName,
        old: Sequence[ControlValue],
        now_ms: int,
    ) -> int:
        places = (keys.meta, keys.segments, keys.segment_notes, keys.merged_numbers)
        control: dict[str, ControlValue] = {
            "segment": str(name),
            "old": old,
            "home": int(shard == home),
            "since": str(now_ms),
        }
        return await self.nodes.run(_MERGE, shard, [place(shard) for place in places], control)
