"""Deletes unreferenced segments: those that no row names any more, and those that were never named.

A segment is noted before it is written; the script that names it removes the note. So an object of a killed process
stays noted, and the storage is never listed: foreign objects in it are not touched. Once all sessions of a segment were
restored no row names it, and it is noted again.

An object with frames of several shards is noted before it is written, and deleted, in its own shard, and not while
another shard names it; the other shards only remove their own name of it, by the same rule.

What is noted is deleted ``GRACE_MS`` later, if no row names it then: a failover, or a restored backup of the store,
brings back rows that are as old. Nothing is deleted while sessions are being forgotten one by one: completing that
reads each object with a frame of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS
from passerelle.store import keys
from passerelle.store.archive.locator import BUCKETS, Locator, MergedNumber, follow_numbers
from passerelle.store.archive.segment import SegmentName
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_list, as_scores, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Copies
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_AT_ONCE: Final = 500
GRACE_MS: Final = 7 * 24 * 3_600_000
_NOTE: Final = Script("note_segment", as_int)


class CleanedSegments(NamedTuple):
    """The number of segments of a shard that were noted, and of objects deleted, with their bytes."""

    noted: int = 0
    deleted: int = 0
    bytes: int = 0


@frozen
class SegmentCleanup:
    """Cleans up the archive of one runtime, shard by shard; concurrent runs do no harm."""

    nodes: Nodes
    segments: Copies

    async def note(self, shard: Shard, name: str, now_ms: int) -> None:
        """Notes a segment that nothing names at the moment. Raises StoreUnavailable."""
        control: dict[str, ControlValue] = {"segment": name, "since": str(now_ms)}
        await self.nodes.run(_NOTE, shard, [keys.segment_notes(shard)], control)

    async def clean(self, shard: Shard, now_ms: int) -> CleanedSegments:
        """Notes segments that no row names, and deletes those noted long ago that still have no row.

        Raises:
            ArchiveDamaged: a row is invalid; nothing is deleted.
            StoreUnavailable: the engine or the archive storage does not answer; what is noted stays noted.
        """
        named, noted = await self._list_names(shard)
        if not named and not noted:
            return CleanedSegments()
        alive, merged = frozenset[int](), dict[int, MergedNumber]()
        if named:
            merged = await self._list_merged(shard, named.values())
            rows = await self._find_alive(shard)
            alive = rows.union(merged[number].number for number in rows if number in merged)
        count = deleted = size = 0
        old = [name for name, since_ms in noted.items() if since_ms <= now_ms - GRACE_MS]
        may_delete = bool(old) and not await self._is_forgetting()
        for name, number in named.items():
            if number not in alive and name not in noted:
                await self.note(shard, name, now_ms)
                count += 1
        for name in noted:
            if named.get(name) in alive:
                await self._update(shard, "ZREM", keys.segment_notes(shard), name)
            elif may_delete and name in old:
                await self._drop_numbers(shard, named.get(name), merged)
                if await self._delete(shard, name, now_ms):
                    deleted += 1
                    size += SegmentName.read(name).bytes
        return CleanedSegments(count, deleted, size)

    async def _list_names(self, shard: Shard) -> tuple[dict[str, int], dict[str, int]]:
        """Segments with their numbers, and notes with their times."""
        places = (keys.segments(shard), keys.segment_notes(shard))
        asked = (pack("ZRANGE", place, 0, -1, "WITHSCORES") for place in places)
        named, noted = await self.nodes.query_in_background(shard, *asked)
        return dict(as_scores(named)), dict(as_scores(noted))

    async def _list_merged(self, shard: Shard, named: Collection[int]) -> dict[int, MergedNumber]:
        """Where the numbers of merged segments lead."""
        command = pack("HGETALL", keys.merged_numbers(shard))
        [reply] = await self.nodes.query_in_background(shard, command)
        return follow_numbers(named, reply)

    async def _drop_numbers(
        self, shard: Shard, number: int | None, merged: Mapping[int, MergedNumber]
    ) -> None:
        """Removes the numbers that lead to a deleted segment."""
        gone = [one for one, at in merged.items() if at.number == number]
        for some in in_chunks(gone, _AT_ONCE):
            await self._update(shard, "HDEL", keys.merged_numbers(shard), *some)

    async def _is_forgetting(self) -> bool:
        """Whether sessions are being forgotten one by one, or that was interrupted."""
        for shard in ALL_SHARDS:
            command = pack("HKEYS", keys.forgotten_sessions(shard))
            [names] = await self.nodes.query_in_background(shard, command)
            if any(" " in name for name in as_texts(names)):
                return True
        return False

    async def _find_alive(self, shard: Shard) -> frozenset[int]:
        """Numbers of segments that a row names."""
        alive = set[int]()
        for bucket in range(BUCKETS):
            asked = pack("HVALS", keys.locators(shard, bucket))
            [rows] = await self.nodes.query_in_background(shard, asked)
            try:
                alive.update(Locator.read(row).number for row in as_list(rows))
            except ValueError as error:
                reason = f"a row of the archive of shard {shard.tag}: {error}"
                raise ArchiveDamaged(reason) from None
        return frozenset(alive)

    async def _delete(self, shard: Shard, name: str, now_ms: int) -> bool:
        """Deletes an object, in its own shard and while no other shard names it; returns whether it is gone."""
        # The note is removed last: after a kill another run continues from it.
        await self._update(shard, "ZREM", keys.segments(shard), name)
        segment = SegmentName.read(name)
        if is_home := segment.home == shard:
            if await self._is_named(name):
                return False
            if not await self.segments.expire(shard, segment.sha256, now_ms - GRACE_MS // 2):
                return False
            await self._update(shard, "HDEL", keys.segment_copies(shard), segment.sha256)
        await self._update(shard, "ZREM", keys.segment_notes(shard), name)
        return is_home

    async def _is_named(self, name: str) -> bool:
        """Whether a shard names a segment."""
        asked = (
            self.nodes.query_in_background(other, pack("ZSCORE", keys.segments(other), name))
            for other in ALL_SHARDS
        )
        return any(number is not None for [number] in await asyncio.gather(*asked))

    async def _update(self, shard: Shard, *words: str | int) -> None:
        await self.nodes.update_in_background(shard, pack(*words))
