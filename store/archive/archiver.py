"""The way out: sessions in which nothing has happened for a while leave the engine, together.

They are read, packed and written first; the script that takes them out compares all of it once more. Killed at any
step, a session is in the engine, or in the archive, or in both places with the engine counting.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.archive.ended_sessions import EndedSession
from passerelle.store.archive.frame import (
    SessionFrame,
    list_entities,
    pack_frame,
)
from passerelle.store.archive.locator import place_row
from passerelle.store.archive.sealed_frame import FramePlace, seal_frame
from passerelle.store.archive.segment import PackedFrame, SegmentName, pack_segment
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_list, as_texts
from passerelle.store.scripts import Script
from passerelle.store.stream_entries import as_entry_rows
from passerelle.store.targets import decode_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from passerelle.core.ports.blobs import Blobs
    from passerelle.store.archive.locator import Locator
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.segment import Segment
    from passerelle.store.archive.segment_cleanup import SegmentCleanup
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes
    from passerelle.store.stream_entries import EntryRow

MOST_AT_ONCE: Final = 64
"""Sessions of a segment."""
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Of their history together: all of it is read before anything of it is written."""
_COMMITS: Final = 16
"""Sessions of one call of the script: it holds up its server for about a tenth of a millisecond each."""
_PACKED_AT_ONCE: Final = 8
"""Frames of a few kB, before callers have their turn."""

_Stream: TypeAlias = "tuple[list[EntryRow], RespValue, RespValue]"
"""Entries of a session, its list of tasks, its webhook receivers."""
_Placed: TypeAlias = "tuple[SessionFrame, Locator]"
"""A session with where its frame stands."""


def split_into_segments(sessions: Sequence[EndedSession]) -> list[list[EndedSession]]:
    """The same in the same order, in parts that ``archive`` takes."""
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
    """Such parts of shards, as many together as ``archive_together`` takes."""
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


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What a call has done: sessions that left with their bytes in the archive, and those that stay."""

    sessions: list[str] = field(default_factory=list[str])
    bytes: int = 0
    stay: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Archiver:
    """Moves sessions of one runtime from the engine to segments of the archive."""

    nodes: Nodes
    segments: Blobs
    cleanup: SegmentCleanup
    owner_keys: OwnerKeys

    async def archive(
        self, shard: Shard, sessions: Sequence[str], before_ms: int | None = None
    ) -> ArchiveResult:
        """``archive_together`` of sessions of one shard."""
        return await self.archive_together({shard: sessions}, before_ms)

    async def archive_together(
        self, sessions: Mapping[Shard, Sequence[str]], before_ms: int | None = None
    ) -> ArchiveResult:
        """Takes sessions, at most ``MOST_AT_ONCE``, into one segment. What has changed meanwhile stays.

        One that has an event since ``before_ms`` stays as well.

        Raises:
            StoreUnavailable: the engine or the place of the archive does not answer; each session is in one of them.
        """
        reads = (self._read(shard, part, before_ms) for shard, part in sessions.items())
        frames = [one for part in await asyncio.gather(*reads) for one in part]
        packed = await self._pack_all(frames)
        left = list[_Placed]()
        if packed:
            home = shard_of(packed[0][0].session)
            runtime_id = self.owner_keys.runtime_id
            segment = pack_segment(home, runtime_id, [one for _, one in packed])
            name = await self._write(home, segment)
            places = defaultdict[Shard, list[_Placed]](list)
            for (frame, _), place in zip(packed, segment.places, strict=True):
                places[shard_of(frame.session)].append((frame, place))
            commits = (self._commit(shard, name, part) for shard, part in places.items())
            left = [one for part in await asyncio.gather(*commits) for one in part]
        names = {frame.session for frame, _ in left}
        asked = [session for part in sessions.values() for session in part]
        return ArchiveResult(
            [session for session in asked if session in names],
            sum(place.length for _, place in left),
            [session for session in asked if session not in names],
        )

    async def _read(
        self, shard: Shard, sessions: Sequence[str], before_ms: int | None
    ) -> list[SessionFrame]:
        streams = await self._read_streams(shard, sessions)
        return await self._read_frames(shard, streams, before_ms)

    async def _pack_all(
        self, frames: Sequence[SessionFrame]
    ) -> list[tuple[SessionFrame, PackedFrame]]:
        """Those that are not too long, and whose records say whose they are.

        A thread would wait for the interpreter behind the event loop after each frame, longer than the frame takes.
        """
        owners = {frame.session: owner for frame in frames if (owner := frame.find_owner())}
        every = [*dict.fromkeys(owners.values())]
        found = dict(
            zip(every, await asyncio.gather(*map(self.owner_keys.obtain, every)), strict=True)
        )
        packed = list[tuple[SessionFrame, PackedFrame]]()
        for number, frame in enumerate(frames):
            if number % _PACKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (owner := owners.get(frame.session)) is None:
                continue
            key = found[owner]
            place = FramePlace(self.owner_keys.runtime_id, shard_of(frame.session))
            try:
                stored = seal_frame(pack_frame(frame), key, place)
            except ValueError:
                continue
            names = tuple(ref.id for ref in frame.hashes)
            at_ms = frame.find_end() or self.nodes.node(place.shard).time.now_ms()
            packed.append((frame, PackedFrame(names, stored, key.name.text, at_ms)))
        return packed

    async def _write(self, home: Shard, segment: Segment) -> str:
        """Noted before it is there: what a killed process has written, and nothing names, is found by its note."""
        digest = hashlib.sha256(segment.content).hexdigest()
        name = str(SegmentName(digest, len(segment.content), home))
        await self.cleanup.note(home, name, self.nodes.node(home).time.now_ms())
        await self.segments.put_pieces(home, digest, (segment.content,))
        return name

    async def _read_streams(self, shard: Shard, sessions: Sequence[str]) -> dict[str, _Stream]:
        asked = list[bytes]()
        for session in sessions:
            stream = StreamRef(StreamKind.SESSION, session)
            asked += [
                pack("XRANGE", keys.entries(stream), "-", "+"),
                pack("ZRANGE", keys.session_tasks(shard, session), 0, -1, "WITHSCORES"),
                pack("HGETALL", keys.stream_targets(stream)),
            ]
        replies = await self.nodes.query_in_background(shard, *asked)
        parts = zip(sessions, replies[::3], replies[1::3], replies[2::3], strict=True)
        return {
            session: (as_entry_rows(entries), tasks, targets)
            for session, entries, tasks, targets in parts
            if entries
        }

    async def _read_frames(
        self, shard: Shard, streams: dict[str, _Stream], before_ms: int | None
    ) -> list[SessionFrame]:
        refs = {
            session: [ref for ref in _list_entities(session, entries) if ref.shard == shard]
            for session, (entries, _, _) in streams.items()
        }
        # An object with what the commit refuses would be written in vain, and once more at each look.
        live = [name for _, _, targets in streams.values() for name in _list_live(targets)]
        asked = [
            *(pack("ZSCORE", keys.due(shard), f"target:{name}") for name in live),
            *(pack("HGETALL", keys.entity(ref)) for named in refs.values() for ref in named),
        ]
        answers = await self.nodes.query_in_background(shard, *asked)
        owed = {name for name, at in zip(live, answers, strict=False) if at is not None}
        replies = iter(answers[len(live) :])
        frames = list[SessionFrame]()
        for session, named in refs.items():
            entries, tasks, targets = streams[session]
            name = session.encode()
            found = {ref: next(replies) for ref in named}
            own = {ref: flat for ref, flat in found.items() if _belongs(name, ref, flat)}
            head = own.get(EntityRef(EntityKind.SESSION, session))
            # The head was read behind the entries: they are whole if they end where it does.
            is_whole = head is not None and _ends(entries, as_hash(head), before_ms)
            if is_whole and not _owes(targets, owed):
                frames.append(SessionFrame(session, own, entries, tasks, targets))
        return frames

    async def _commit(self, shard: Shard, name: str, placed: Sequence[_Placed]) -> list[_Placed]:
        """Those that have left."""
        number, left = 0, list[_Placed]()
        for first in range(0, len(placed), _COMMITS):
            part = placed[first : first + _COMMITS]
            number, stay = await self._commit_part(shard, name, part, number)
            left += [one for place, one in enumerate(part, 1) if place not in stay]
        return left

    async def _commit_part(
        self, shard: Shard, name: str, part: Sequence[_Placed], number: int
    ) -> tuple[int, list[int]]:
        """The number of the segment, and the places of those that stay."""
        shard_keys = (keys.meta, keys.segments, keys.due, keys.segment_notes)
        arguments = Arguments(key(shard) for key in shard_keys)
        sessions = [
            _write_session(shard, frame, place.pack_rest(), arguments) for frame, place in part
        ]
        control: dict[str, ControlValue] = {
            "segment": name,
            "number": str(number),
            "sessions": sessions,
        }
        return await self.nodes.run(_COMMIT, shard, arguments.keys, control, arguments.values)


def _list_entities(session: str, entries: Sequence[EntryRow]) -> list[EntityRef]:
    try:
        return list_entities(session, entries)
    except (LookupError, ValueError):
        return []  # a damaged append: the session stays, and the verification names it


def _belongs(session: bytes, ref: EntityRef, flat: RespValue) -> bool:
    """Whether an entity that events of a session name is its own: its snapshot names the session."""
    words = as_list(flat)
    if ref.kind is EntityKind.SESSION or not words:
        return bool(words)
    return any(
        session in words[place + 1] for place in range(0, len(words), 2) if words[place] == b"s"
    )


def _ends(entries: Sequence[EntryRow], head: dict[str, bytes], before_ms: int | None) -> bool:
    """Whether the last of its entries is that of a session, and is old enough."""
    if head["seq"] != entries[-1][0].partition(b"-")[0]:
        return False
    return before_ms is None or parse_ms(head["at"].decode()) < before_ms


def _list_live(targets: RespValue) -> list[str]:
    found = as_hash(targets).items()
    return [name for name, stored in found if decode_target(stored).state == "live"]


def _owes(targets: RespValue, owed: set[str]) -> bool:
    """Whether a receiver waits for its next try, or is one of those that are ``owed`` something."""
    return any(
        name in owed or decode_target(stored).state == "backoff"
        for name, stored in as_hash(targets).items()
    )


def _read_stamp(flat: RespValue) -> tuple[str, str]:
    words = as_list(flat)
    fields = dict(zip(words[::2], words[1::2], strict=True))
    return fields.get(b"v", b"0").decode(), fields.get(b"op", b"").decode()


def _write_session(
    shard: Shard, frame: SessionFrame, rest: bytes, arguments: Arguments
) -> list[ControlValue]:
    session, stream = frame.session, StreamRef(StreamKind.SESSION, frame.session)
    head = as_hash(frame.hashes[EntityRef(EntityKind.SESSION, session)])
    entities = list["ControlValue"]()
    rows = list["ControlValue"]()
    place_of_rest = arguments.value(rest)
    for ref, flat in frame.hashes.items():
        entities.append([arguments.key(keys.entity(ref)), *_read_stamp(flat)])
        bucket, name = place_row(shard, ref.id)
        rows.append([arguments.key(bucket), arguments.value(name), place_of_rest])
    receivers: list[ControlValue] = [
        [name, stored.decode()] for name, stored in as_hash(frame.targets).items()
    ]
    tasks = as_texts(frame.tasks)
    listed: list[ControlValue] = [
        [facade, at] for facade, at in zip(tasks[::2], tasks[1::2], strict=True)
    ]
    return [
        arguments.key(keys.head(stream)),
        arguments.key(keys.entries(stream)),
        arguments.key(keys.session_open(shard, session)),
        arguments.key(keys.session_tasks(shard, session)),
        arguments.key(keys.stream_targets(stream)),
        head["seq"].decode(),
        head["chain"].decode(),
        entities,
        listed,
        receivers,
        rows,
    ]


def _read_commit(reply: RespValue) -> tuple[int, list[int]]:
    number, stay = cast("tuple[int, list[int]]", reply)
    return number, stay


_COMMIT: Final = Script("archive_commit", _read_commit)
