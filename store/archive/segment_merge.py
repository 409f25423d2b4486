"""Small segments of one shard become one: frames are copied as they stand, and no row changes.

Before the new object is written it is noted, and it is said of each old one that its frames stand there too. Then it
is read back, what was forgotten meanwhile is erased in it, and each shard that names old ones names it in their place,
by one script; the shard where they stand is the last. From there on the old ones are noted, and go a week later.

Killed at any step, each shard names the old ones or the new one, and both are there. The next look goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from passerelle.core.errors import ArchiveDamaged
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
"""Of a merged segment: it is read whole where something in it is forgotten."""
FEW: Final = 8
"""Fewer small ones wait for more, unless they are half of the most together: a byte is copied a few times at most."""
_LATE_MS: Final = 24 * 3_600_000
"""What was begun so long ago is not gone on with: it is deleted a week after that."""
_TRIES: Final = 3
_BEGIN: Final = Script("begin_merge", as_text)
_MERGE: Final = Script("merge_segments", as_int)


@dataclass(slots=True)
class MergedSegments:
    """What a look has done: objects that are new, those that went into them with their bytes, and what is damaged."""

    made: int = 0
    merged: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list[str])


class _Begun(NamedTuple):
    name: SegmentName
    parts: list[JoinedPart]
    whole: frozenset[int]
    """Offsets of the frames that are not erased."""


def choose_segments(
    small: Collection[SegmentName], few: int = FEW, most: int = MOST_BYTES
) -> list[SegmentName]:
    """Those to be merged next, the smallest first; none where it does not pay yet."""
    group, total = list[SegmentName](), 0
    for one in sorted((one for one in small if one.bytes < most // 2), key=_order):
        if total + one.bytes + NOTE_BYTES > most:
            break
        group.append(one)
        total += one.bytes + NOTE_BYTES
    # One that is twice as large as all others together would be copied anew each time that these few have come.
    while group and 3 * (group[-1].bytes + NOTE_BYTES) > 2 * total and total < most // 2:
        total -= group.pop().bytes + NOTE_BYTES
    is_worth_it = len(group) >= few or (len(group) > 1 and total >= most // 2)
    return group if is_worth_it else []


def _order(name: SegmentName) -> tuple[int, str]:
    return name.bytes, name.sha256


@dataclass(frozen=True, slots=True)
class SegmentMerge:
    """Merges in one runtime. Two at once do no harm: what both make has all frames, and a shard names one of them."""

    nodes: Nodes
    segments: BlobStore
    owner_keys: OwnerKeys
    erasure: SegmentErasure
    few: int = FEW

    @classmethod
    def over(cls, nodes: Nodes, segments: BlobStore, owner_keys: OwnerKeys) -> Self:
        """With an erasure of its own."""
        return cls(
            nodes, segments, owner_keys, SegmentErasure(nodes, segments, SegmentCopies(nodes))
        )

    async def merge(self, home: Shard, now_ms: int, most: int = 1) -> MergedSegments:
        """Goes on with what was begun, and makes so many new objects at most, of segments that stand in this shard.

        An object that is damaged or gone is left as it is, named, and not in the way of others.

        Raises:
            StoreUnavailable: the engine or the place of the archive does not answer; all is read as before.
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
        """Has shards name an object, if it is whole; whether all of them do."""
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
        """Segments that stand here, which this shard names and does not think dead."""
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
        """The contents; and why not, of those that are not whole."""
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
        """The object that was written; where another one was begun meanwhile, that one."""
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
        """What was written, compared as it is read back; None where it is too late for it, or it was never written."""
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
        """Gives up what was begun: it stays noted, and is deleted for that."""
        await self._name(home, home, name, [], now_ms)

    async def _erase_forgotten(self, begun: _Begun) -> None:
        """Erases what was said to be forgotten of the old ones since they were read.

        Who says so behind this finds the copy, since that stands in the store by now.
        """
        forgotten = await self.erasure.read_noted(begun.name)
        for part in begun.parts:
            for offset, tombstone in (await self.erasure.read_noted(part.name)).items():
                forgotten.setdefault(offset + part.shift, tombstone)
        left = {at: name for at, name in forgotten.items() if at in begun.whole}
        if left:
            await self.erasure.erase(begun.name, left)

    async def _name_everywhere(self, home: Shard, begun: _Begun, now_ms: int) -> bool:
        """Whether no shard names an old one any more, as far as could be seen."""
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
