"""Reads archived sessions: the row, then one byte range of one object.

Recently read frames are cached while their key exists, because a reader of a task usually reads its events next.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.erased_frame import read_erased
from passerelle.store.archive.frame import SessionFrame, read_frame
from passerelle.store.archive.locator import Locator, MergedNumber, follow_numbers, place_row
from passerelle.store.archive.owner_keys import FRESH_S
from passerelle.store.archive.sealed_frame import FramePlace, KeyName, open_frame, read_key_name
from passerelle.store.archive.segment import (
    TRAILER,
    SegmentName,
    read_footer,
    read_footer_size,
)
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_scores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from passerelle.core.ports.blobs import Blobs
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.segment import FrameNote
    from passerelle.store.connection import RespValue

_READS_AT_ONCE: Final = 8
_KEPT_BYTES: Final = 1024 * 1024
"""Bytes of cached frames as stored; parsed, they take up to ten times as much."""
_TRIES: Final = 2
_CHANCE_BITS: Final = 64


class SegmentRef(NamedTuple):
    """A segment as a shard numbers it.

    ``shifts``: numbers of segments merged into it, which rows still have, with the shift of their frames. A merge
    changes no row, so what was read before stays valid for the old segment.
    """

    number: int
    name: SegmentName
    shifts: Mapping[int, int] = MappingProxyType({})

    def has(self, at: Locator, offset: int) -> bool:
        """Whether a row leads to the frame at this offset."""
        shift = 0 if at.number == self.number else self.shifts.get(at.number)
        return shift is not None and at.offset + shift == offset


class _SegmentGone(ArchiveDamaged):
    """An object is missing: it was deleted after a merge, or is lost."""


class _KeptFrame(NamedTuple):
    frame: SessionFrame
    key: KeyName
    read_s: float
    """When it was in its segment, on the monotonic clock: another instance may have erased it since."""


@frozen
class _Forgotten:
    """A row whose session is forgotten: its removal has not reached the row yet."""

    row: bytes


_FORGOTTEN: Final = "forgotten"
_FramePlace: TypeAlias = tuple[str, Locator]
"""The hash of a segment, and the position of the frame in it."""


class Archive:
    """Finds a session by its own id, or by that of one of its entities.

    ``ask`` is ``Nodes.query_all``. A frame that is missing or damaged raises ArchiveDamaged, which names the object: an
    incomplete answer would be wrong.
    """

    def __init__(
        self,
        ask: Callable[..., Awaitable[list[RespValue]]],
        segments: Blobs,
        owner_keys: OwnerKeys,
    ) -> None:
        self._ask = ask
        self._segments = segments
        self._owner_keys = owner_keys
        self._places: dict[tuple[Shard, int], tuple[SegmentName, int]] = {}
        self._kept: OrderedDict[_FramePlace, _KeptFrame] = OrderedDict()
        self._kept_bytes = 0
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._reading: dict[_FramePlace, asyncio.Task[bytes]] = {}

    @staticmethod
    def ask_row(shard: Shard, name: str) -> bytes:
        """The command that reads the row of an id; ``read`` takes its reply."""
        return pack("HGET", *place_row(shard, name))

    async def find(self, shard: Shard, name: str) -> SessionFrame | None:
        """The session of an id; None if it is not archived. Raises as ``locate`` does."""
        located = await self.locate(shard, name)
        return None if located is None else located[0]

    async def read(self, shard: Shard, name: str, row: RespValue) -> SessionFrame | None:
        """The session of an id with this row; None if there is none. Raises as ``locate`` does."""
        if row is None:
            return None
        located = await self._follow(shard, name, as_bytes(row))
        return located[0] if isinstance(located, tuple) else None

    async def locate(self, shard: Shard, name: str) -> tuple[SessionFrame, bytes] | None:
        """The session of an id, and the row of it and all its entities; None if it is not archived.

        Raises:
            ArchiveDamaged: the object is missing or damaged.
            StoreUnavailable: the engine, or the archive storage, does not answer.
        """
        located = await self._find_row_and_follow(shard, name)
        return located if isinstance(located, tuple) else None

    async def find_forgotten(self, shard: Shard, name: str) -> bytes | None:
        """The row of an id whose session is forgotten, if it still has one. Raises as ``locate`` does."""
        located = await self._find_row_and_follow(shard, name)
        return located.row if isinstance(located, _Forgotten) else None

    async def _find_row_and_follow(
        self, shard: Shard, name: str
    ) -> tuple[SessionFrame, bytes] | _Forgotten | None:
        [row] = await self._ask(shard, self.ask_row(shard, name))
        return await self._follow(shard, name, as_bytes(row))

    async def _follow(
        self, shard: Shard, name: str, stored: bytes | None
    ) -> tuple[SessionFrame, bytes] | _Forgotten | None:
        if stored is None:
            return None
        reason = ""
        for _ in range(_TRIES):
            at = read_row(shard, stored)
            found = await self._find_segment(shard, at.number)
            if found is None:
                reason = f"the archive of shard {shard.tag} has no segment {at.number}"
            else:
                segment, shift = found
                try:
                    frame = await self._read_frame(shard, segment, at.move(shift))
                except _SegmentGone as error:
                    frame, reason = None, error.reason
                else:
                    reason = _describe_segment(shard, segment, "is damaged")
                if frame == "forgotten":
                    return _Forgotten(stored)
                if frame is not None and frame.names(name):
                    return frame, stored
            # The segment was merged, or a failover has lost its row and another one has its number.
            self._places.pop((shard, at.number), None)
            [row] = await self._ask(shard, self.ask_row(shard, name))
            if (stored := as_bytes(row)) is None:
                return None
        raise ArchiveDamaged(reason)

    async def list_sessions(self, shards: Iterable[Shard]) -> list[str]:
        """Every session in the archive of these shards. Raises as ``locate`` does."""
        found = list[str]()
        for shard in shards:
            for segment in await self.list_segments(shard):
                found += await self.list_archived(shard, segment)
        return found

    async def draw_segments(
        self, shards: Iterable[Shard], count: int, draw: Callable[[int], int]
    ) -> list[tuple[Shard, SegmentRef]]:
        """At most ``count`` random segments of these shards, by ``draw(bits)``. Raises as ``locate`` does."""
        places = [(shard, one) for shard in shards for one in await self.list_segments(shard)]
        return heapq.nsmallest(count, places, key=lambda _: draw(_CHANCE_BITS))

    async def list_segments(self, shard: Shard) -> list[SegmentRef]:
        """The segments of a shard, oldest first."""
        # Merged numbers are read after the segments: a segment merged in between is still found under its old name.
        named, merged = await self._ask(
            shard,
            pack("ZRANGE", keys.segments(shard), 0, -1, "WITHSCORES"),
            pack("HGETALL", keys.merged_numbers(shard)),
        )
        scores = as_scores(named)
        shifts = dict[int, dict[int, int]]()
        for number, found in follow_numbers({number for _, number in scores}, merged).items():
            shifts.setdefault(found.number, {})[number] = found.shift
        return [
            SegmentRef(number, SegmentName.read(member), shifts.get(number, {}))
            for member, number in scores
        ]

    async def list_archived(self, shard: Shard, segment: SegmentRef) -> list[str]:
        """The sessions with a row in this segment; others were restored, or archived again. Raises as ``locate``."""
        frames = await self.list_frames(shard, segment)
        rows = await self._ask(shard, *(self.ask_row(shard, one.session) for one in frames))
        stored = zip(frames, map(as_bytes, rows), strict=True)
        return [
            one.session
            for one, row in stored
            if row and segment.has(read_row(shard, row), one.offset)
        ]

    async def _find_segment(self, shard: Shard, number: int) -> tuple[SegmentName, int] | None:
        """The segment with the frames of this number, and their shift in it."""
        if (known := self._places.get((shard, number))) is not None:
            return known
        at, shift = number, 0
        while True:
            named, merged = await self._ask(
                shard,
                pack("ZRANGE", keys.segments(shard), at, at, "BYSCORE", "WITHSCORES"),
                pack("HGET", keys.merged_numbers(shard), at),
            )
            for member, _ in as_scores(named):
                self._places[shard, number] = found = SegmentName.read(member), shift
                return found
            if (said := as_bytes(merged)) is None:
                return None
            further = MergedNumber.read(said)
            if further.number <= at:
                return None
            at, shift = further.number, shift + further.shift

    async def _read_frame(
        self, shard: Shard, segment: SegmentName, at: Locator
    ) -> SessionFrame | Literal["forgotten"] | None:
        """None: the bytes are not the frame that the row describes."""
        place, asked_s = (segment.sha256, at), monotonic()
        kept = self._kept.get(place)
        if kept is not None and asked_s - kept.read_s >= FRESH_S:
            self._drop_place(place)
        elif kept is not None:
            try:
                key = await self._owner_keys.find(kept.key)
            except ArchiveDamaged:
                self._drop(kept.key)
                raise
            if key is None:
                self._drop(kept.key)
                return _FORGOTTEN
            self._kept.move_to_end(place)
            return kept.frame
        stored = await self._read_together(shard, segment, at)
        if (kept := self._kept.get(place)) is not None:
            return kept.frame  # read by a concurrent call
        if read_erased(stored) is not None:
            return _FORGOTTEN
        if not at.fits(stored):
            return None
        try:
            name = read_key_name(stored)
            key = await self._owner_keys.find(name)
            if key is None:
                return _FORGOTTEN
            sealed_for = FramePlace(self._owner_keys.runtime_id, shard)
            frame = read_frame(open_frame(stored, key, sealed_for))
        except ValueError:
            return None
        self._keep(place, _KeptFrame(frame, name, asked_s))
        return frame

    async def _read_together(self, shard: Shard, segment: SegmentName, at: Locator) -> bytes:
        """A stored frame, read once for all entities of a session that are requested concurrently."""
        place = (segment.sha256, at)
        reading = self._reading.get(place)
        if reading is None:
            reading = asyncio.create_task(self._read_in_turn(shard, segment, at))
            self._reading[place] = reading

            def end(task: asyncio.Task[bytes]) -> None:
                del self._reading[place]
                if not task.cancelled():
                    task.exception()  # waiters have it; there may be none

            reading.add_done_callback(end)
        # A cancelled waiter does not cancel the read of the others.
        return await asyncio.shield(reading)

    async def _read_in_turn(self, shard: Shard, segment: SegmentName, at: Locator) -> bytes:
        async with self._reads:
            return await self._read_part(shard, segment, at.offset, at.length)

    def _keep(self, place: _FramePlace, kept: _KeptFrame) -> None:
        if place not in self._kept:
            self._kept_bytes += place[1].length
        self._kept[place] = kept
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            (_, at), _ = self._kept.popitem(last=False)
            self._kept_bytes -= at.length

    def _drop(self, key: KeyName) -> None:
        """Drops cached frames whose key is gone."""
        for place in [place for place, kept in self._kept.items() if kept.key == key]:
            self._drop_place(place)

    def _drop_place(self, place: _FramePlace) -> None:
        del self._kept[place]
        self._kept_bytes -= place[1].length

    async def read_sealed(self, shard: Shard, segment: SegmentRef, note: FrameNote) -> bytes:
        """A frame as stored in its segment. Raises as ``locate`` does."""
        return await self._read_part(shard, segment.name, note.offset, note.length)

    async def list_frames(self, shard: Shard, segment: SegmentRef) -> list[FrameNote]:
        """The footer notes for the frames of this shard. Raises as ``locate`` does."""
        notes = await self.read_notes(segment.name)
        return [note for note in notes if shard_of(note.session) == shard]

    async def read_notes(self, name: SegmentName) -> list[FrameNote]:
        """The footer notes for each frame that is not forgotten. Raises as ``locate`` does."""
        shard, end = name.home, name.bytes - TRAILER
        trailer = await self._read_part(shard, name, end, TRAILER)
        try:
            length = read_footer_size(trailer)
            return read_footer(await self._read_part(shard, name, end - length, length))
        except ValueError as error:
            raise ArchiveDamaged(
                _describe_segment(shard, name, f"has no footer: {error}")
            ) from None

    async def _read_part(self, shard: Shard, segment: SegmentName, start: int, size: int) -> bytes:
        if start < 0:
            return b""
        part = await self._segments.read(segment.home, segment.sha256, start, size)
        if part is None:
            raise _SegmentGone(_describe_segment(shard, segment, "is gone"))
        return part


def _describe_segment(shard: Shard, segment: SegmentName, what: str) -> str:
    return f"segment {segment.sha256} of the archive of shard {shard.tag} {what}"


def read_row(shard: Shard, row: bytes) -> Locator:
    """The place that a row of the archive names. Raises ArchiveDamaged."""
    try:
        return Locator.read(row)
    except ValueError as error:
        reason = f"a row of the archive of shard {shard.tag}: {error}"
        raise ArchiveDamaged(reason) from None
