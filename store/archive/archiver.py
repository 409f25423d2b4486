"""The way out: sessions in which nothing has happened for a while leave the engine, together.

Found by SCAN, since what tells them (nothing open, the time of the last event) stands in what they have anyway: no
append pays for it, and nothing can be forgotten. They are read, packed and written first; the script that takes them
out compares all of it once more. Killed at any step, a session is in the engine, or in the archive, or in both places
with the engine counting.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.archive.frame import (
    MOST_PLAIN_BYTES,
    SessionFrame,
    list_entities,
    pack_frame,
)
from passerelle.store.archive.locator import place_row
from passerelle.store.archive.sealed_frame import FramePlace, seal_frame
from passerelle.store.archive.segment import PackedFrame, name_segment, pack_segment
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_hash, as_int, as_list, as_texts
from passerelle.store.scripts import Script
from passerelle.store.stream_entries import as_entry_rows
from passerelle.store.targets import decode_target

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from passerelle.core.ports.blobs import Blobs
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
_LOOKS: Final = 256
_HOME_KINDS: Final = (EntityKind.DEVICES, EntityKind.GRANTS, EntityKind.RULES)
"""What stands beside the session of a person, which never ends."""


_Stream: TypeAlias = "tuple[list[EntryRow], RespValue, RespValue]"
"""Entries of a session, its list of tasks, its webhook receivers."""


class EndedSession(NamedTuple):
    """A session in which nothing is open: the time of its last event, and the length of its history."""

    session: str
    at_ms: int
    bytes: int


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

    async def find_ended(
        self, shards: Collection[Shard], before_ms: int
    ) -> dict[Shard, list[EndedSession]]:
        """Sessions in which nothing is open and nothing has happened since, by shard, oldest first.

        One that is too long for a frame is left out, and that of a person who has devices, grants or rules.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        wanted = {shard.number: shard for shard in shards}
        heads = defaultdict[Shard, set[str]](set)
        for node in self.nodes.all:
            async for names in scan_keys(node, keys.EVERY_SESSION):
                for name in names:
                    if (shard := wanted.get(int(name[1:3], 16))) is not None:
                        heads[shard].add(name.decode())
        found = dict[Shard, list[EndedSession]]()
        before = format_ms(before_ms)
        for shard, keys_of in heads.items():
            every, ended = list(keys_of), list[EndedSession]()
            for first in range(0, len(every), _LOOKS):
                ended += await self._find_old(shard, every[first : first + _LOOKS], before)
            if ended := await self._drop_busy(shard, ended):
                found[shard] = sorted(ended, key=lambda one: one.at_ms)
        return found

    async def archive(self, shard: Shard, sessions: Sequence[str]) -> ArchiveResult:
        """Takes sessions of a shard, at most ``MOST_AT_ONCE``, into one segment. What has changed meanwhile stays.

        Raises:
            StoreUnavailable: the engine or the place of the archive does not answer; each session is in one of them.
        """
        streams = await self._read_streams(shard, sessions)
        packed = await self._pack_all(shard, await self._read_frames(shard, streams))
        if not packed:
            return ArchiveResult(stay=[*sessions])
        segment = pack_segment(shard, self.owner_keys.runtime_id, [one for _, one in packed])
        digest = await self._write(shard, segment)
        number, left = 0, list[int]()
        places = range(len(packed))
        for first in range(0, len(packed), _COMMITS):
            part = places[first : first + _COMMITS]
            number, stay = await self._commit(shard, digest, segment, packed, part, number)
            left += [part[place - 1] for place in stay]
        gone = [place for place in places if place not in set(left)]
        names = [packed[place][0].session for place in gone]
        return ArchiveResult(
            names,
            sum(segment.places[place].length for place in gone),
            [session for session in sessions if session not in set(names)],
        )

    async def _pack_all(
        self, shard: Shard, frames: Sequence[SessionFrame]
    ) -> list[tuple[SessionFrame, PackedFrame]]:
        """Those that are not too long, and whose records say whose they are.

        A thread would wait for the interpreter behind the event loop after each frame, longer than the frame takes.
        """
        owners = {frame.session: owner for frame in frames if (owner := frame.find_owner())}
        every = [*dict.fromkeys(owners.values())]
        found = dict(
            zip(every, await asyncio.gather(*map(self.owner_keys.obtain, every)), strict=True)
        )
        place = FramePlace(self.owner_keys.runtime_id, shard)
        packed = list[tuple[SessionFrame, PackedFrame]]()
        for number, frame in enumerate(frames):
            if number % _PACKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (owner := owners.get(frame.session)) is None:
                continue
            key = found[owner]
            try:
                stored = seal_frame(pack_frame(frame), key, place)
            except ValueError:
                continue
            names = tuple(ref.id for ref in frame.hashes)
            packed.append((frame, PackedFrame(names, stored, key.name.text)))
        return packed

    async def _write(self, shard: Shard, segment: Segment) -> str:
        """Noted before it is there: what a killed process has written, and nothing names, is found by its note."""
        digest = hashlib.sha256(segment.content).hexdigest()
        name = name_segment(digest, len(segment.content))
        await self.cleanup.note(shard, name, self.nodes.node(shard).time.now_ms())
        await self.segments.put_pieces(shard, digest, (segment.content,))
        return digest

    async def _find_old(
        self, shard: Shard, heads: Sequence[str], before: str
    ) -> list[EndedSession]:
        packed = _FIND_ENDED.file.pack_call(heads, {"before": before})
        [reply] = await self.nodes.query_in_background(shard, packed)
        return [
            EndedSession(heads[place - 1].rpartition(":")[2], parse_ms(at), size)
            for place, at, size in _FIND_ENDED.decode(reply)
            if size <= MOST_PLAIN_BYTES // 2
        ]

    async def _drop_busy(self, shard: Shard, old: Sequence[EndedSession]) -> list[EndedSession]:
        """Those in which nothing is open. The session of a person with devices, grants or rules never ends."""
        free = list[EndedSession]()
        for first in range(0, len(old), _LOOKS):
            part = old[first : first + _LOOKS]
            asked = [command for one in part for command in _ask_state(shard, one.session)]
            looks = await self.nodes.query_in_background(shard, *asked)
            each = len(looks) // len(part)
            free += [
                one
                for place, one in enumerate(part)
                if not any(map(as_int, looks[place * each : (place + 1) * each]))
            ]
        return free

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

    async def _read_frames(self, shard: Shard, streams: dict[str, _Stream]) -> list[SessionFrame]:
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
        answers = await self.nodes.query_in_background(shard, *asked) if asked else []
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
            is_whole = (
                head is not None and as_hash(head)["seq"] == entries[-1][0].partition(b"-")[0]
            )
            if is_whole and not _owes(targets, owed):
                frames.append(SessionFrame(session, own, entries, tasks, targets))
        return frames

    async def _commit(
        self,
        shard: Shard,
        digest: str,
        segment: Segment,
        packed: Sequence[tuple[SessionFrame, PackedFrame]],
        part: Sequence[int],
        number: int,
    ) -> tuple[int, list[int]]:
        shard_keys = (keys.meta, keys.segments, keys.due, keys.segment_notes)
        arguments = Arguments(key(shard) for key in shard_keys)
        sessions = [
            _write_session(shard, packed[place][0], segment.places[place].pack_rest(), arguments)
            for place in part
        ]
        control: dict[str, ControlValue] = {
            "segment": name_segment(digest, len(segment.content)),
            "number": str(number),
            "sessions": sessions,
        }
        return await self.nodes.run(_COMMIT, shard, arguments.keys, control, arguments.values)


def _list_entities(session: str, entries: Sequence[EntryRow]) -> list[EntityRef]:
    try:
        return list_entities(session, entries)
    except (KeyError, ValueError):
        return []  # a damaged append: the session stays, and the verification names it


def _ask_state(shard: Shard, session: str) -> list[bytes]:
    beside = [pack("HLEN", keys.entity(EntityRef(kind, session))) for kind in _HOME_KINDS]
    return [pack("ZCARD", keys.session_open(shard, session)), *beside]


def _belongs(session: bytes, ref: EntityRef, flat: RespValue) -> bool:
    """Whether an entity that events of a session name is its own: its snapshot names the session."""
    words = as_list(flat)
    if ref.kind is EntityKind.SESSION or not words:
        return bool(words)
    return any(
        session in words[place + 1] for place in range(0, len(words), 2) if words[place] == b"s"
    )


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
        rows.append([arguments.key(bucket), name, place_of_rest])
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


def _read_ended(reply: RespValue) -> list[tuple[int, str, int]]:
    rows = cast("list[tuple[int, bytes, bytes]]", reply)
    return [(place, at.decode(), int(size)) for place, at, size in rows]


def _read_commit(reply: RespValue) -> tuple[int, list[int]]:
    number, stay = cast("tuple[int, list[int]]", reply)
    return number, stay


_COMMIT: Final = Script("archive_commit", _read_commit)
_FIND_ENDED: Final = Script("find_ended", _read_ended, lane="reads")
