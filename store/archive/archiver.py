"""Archives ended sessions: moves sessions without recent activity from the engine to segments, in batches.

They are read, packed and written first; the script that removes them compares everything once more. If the process is
killed at any step, a session is in the engine, or in the archive, or in both; then the engine's copy counts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.chunks import in_chunks
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.ended_sessions import EndedSession
from passerelle.store.archive.frame import pack_frame
from passerelle.store.archive.leaving_session import read_leaving
from passerelle.store.archive.sealed_frame import FramePlace, seal_frame
from passerelle.store.archive.segment import PackedFrame, SegmentName, pack_segment
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from passerelle.core.ports.blobs import Blobs
    from passerelle.store.archive.leaving_session import LeavingSession
    from passerelle.store.archive.locator import Locator
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.segment import Segment
    from passerelle.store.archive.segment_cleanup import SegmentCleanup
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

MOST_AT_ONCE: Final = 64
"""Sessions of a segment."""
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of their history together: all of it is read before anything is written."""
_COMMITS: Final = 16
"""Sessions of one script call: each blocks the server for about a tenth of a millisecond."""
_PACKED_AT_ONCE: Final = 8
"""Frames of a few kB packed before other tasks get their turn."""

_Placed: TypeAlias = "tuple[LeavingSession, Locator]"
"""A session with the position of its frame."""


def split_into_segments(sessions: Sequence[EndedSession]) -> list[list[EndedSession]]:
    """The sessions in their order, in parts that ``archive`` accepts."""
    parts, size = list[list[EndedSession]](), _MOST_BYTES
    for one in sessions:
        if size + one.bytes > _MOST_BYTES or len(parts[-1]) == MOST_AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += one.bytes
    return parts


def join_parts(
    parts: Iterable[tuple[Shard, Sequence[EndedSession]]],
) -> list[dict[Shard, list[str]]]:
    """Merges parts of several shards, as many together as ``archive_together`` accepts."""
    joined, room, size = list[dict[Shard, list[str]]](), 0, 0
    for shard, part in parts:
        more = sum(one.bytes for one in part)
        if len(part) > room or size + more > _MOST_BYTES or shard in joined[-1]:
            joined.append({})
            room, size = MOST_AT_ONCE, 0
        joined[-1][shard] = [one.session for one in part]
        room -= len(part)
        size += more
    return joined


@frozen
class ArchiveResult:
    """The outcome of a call: archived sessions with their bytes in the archive, and sessions that stay."""

    sessions: list[str]
    bytes: int
    stay: list[str]


@dataclass(slots=True)
class Archiver:
    """Moves sessions of one runtime from the engine to segments of the archive."""

    nodes: Nodes
    segments: Blobs
    cleanup: SegmentCleanup
    owner_keys: OwnerKeys
    on_left: Callable[[str, int, str, bytes], None]
    """Called for each archived session: its last event, the chain after it, and its archive row."""

    async def archive(
        self, shard: Shard, sessions: Sequence[str], before_ms: int | None = None
    ) -> ArchiveResult:
        """``archive_together`` for sessions of one shard."""
        return await self.archive_together({shard: sessions}, before_ms)

    async def archive_together(
        self, sessions: Mapping[Shard, Sequence[str]], before_ms: int | None = None
    ) -> ArchiveResult:
        """Moves sessions, at most ``MOST_AT_ONCE``, into one segment. Sessions changed meanwhile stay.

        Sessions with an event since ``before_ms`` stay as well.

        Raises:
            StoreUnavailable: the engine or the archive storage does not answer; each session is in one of them.
        """
        packed = await self._pack_all(await read_leaving(self.nodes, sessions, before_ms))
        left = list[_Placed]()
        if packed:
            home = shard_of(packed[0][0].frame.session)
            runtime_id = self.owner_keys.runtime_id
            segment = pack_segment(home, runtime_id, [one for _, one in packed])
            name = await self._write(home, segment)
            places = defaultdict[Shard, list[_Placed]](list)
            for (one, _), place in zip(packed, segment.places, strict=True):
                places[shard_of(one.frame.session)].append((one, place))
            commits = (self._commit(shard, name, part) for shard, part in places.items())
            left = [one for part in await asyncio.gather(*commits) for one in part]
        names = {one.frame.session for one, _ in left}
        asked = [session for part in sessions.values() for session in part]
        return ArchiveResult(
            [session for session in asked if session in names],
            sum(place.length for _, place in left),
            [session for session in asked if session not in names],
        )

    async def _pack_all(
        self, leaving: Sequence[LeavingSession]
    ) -> list[tuple[LeavingSession, PackedFrame]]:
        """Packs and seals the sessions that are not too long.

        This runs in the event loop: a thread would wait for the interpreter after each frame for longer than it takes.
        """
        every = [*dict.fromkeys(one.owner for one in leaving)]
        found = dict(
            zip(every, await asyncio.gather(*map(self.owner_keys.obtain, every)), strict=True)
        )
        packed = list[tuple["LeavingSession", PackedFrame]]()
        for number, one in enumerate(leaving):
            if number % _PACKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            key = found[one.owner]
            place = FramePlace(self.owner_keys.runtime_id, shard_of(one.frame.session))
            try:
                stored = seal_frame(pack_frame(one.frame), key, place)
            except ValueError:
                continue
            names = tuple([ref.id for ref in one.frame.hashes])
            packed.append((one, PackedFrame(names, stored, key.name.text, one.at_ms)))
        return packed

    async def _write(self, home: Shard, segment: Segment) -> str:
        """Notes the object before writing it: an unreferenced object of a killed process is found by its note."""
        digest = hashlib.sha256(segment.content).hexdigest()
        name = str(SegmentName(digest, len(segment.content), home))
        await self.cleanup.note(home, name, self.nodes.node(home).time.now_ms())
        await self.segments.put_pieces(home, digest, (segment.content,))
        return name

    async def _commit(self, shard: Shard, name: str, placed: Sequence[_Placed]) -> list[_Placed]:
        """Returns the sessions that were archived."""
        number, left = 0, list[_Placed]()
        for part in in_chunks(placed, _COMMITS):
            number, stay = await self._commit_part(shard, name, part, number)
            for place, (one, at) in enumerate(part, 1):
                if place not in stay:
                    left.append((one, at))
                    self.on_left(one.frame.session, one.last, one.chain, at.pack(number))
        return left

    async def _commit_part(
        self, shard: Shard, name: str, part: Sequence[_Placed], number: int
    ) -> tuple[int, list[int]]:
        """Returns the number of the segment, and the places of sessions that stay."""
        names = [
            keys.meta(shard),
            keys.segments(shard),
            keys.due(shard),
            keys.segment_notes(shard),
        ]
        values, sessions = list[bytes](), list["ControlValue"]()
        for one, place in part:
            # The control argument is the first of ARGV.
            sessions.append((len(names) + 1, len(values) + 2, *one.counts))
            names += one.keys
            values.append(place.pack_rest())
            values += one.values
        control: dict[str, ControlValue] = {
            "segment": name,
            "number": str(number),
            "sessions": sessions,
        }
        return await self.nodes.run(_COMMIT, shard, names, control, values)


def _read_commit(reply: RespValue) -> tuple[int, list[int]]:
    number, stay = cast("tuple[int, list[int]]", reply)
    return number, stay


_COMMIT: Final = Script("archive_commit", _read_commit)
