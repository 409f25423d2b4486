"""Selects single sessions to forget: their data in the engine and in the archive, and the references to them.

Every frame of a session is found, including those of earlier archivings, to which no row leads any more: they are
sealed with an existing key.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.batch import EntityRef
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.owner_survey import ArchivedSession, LiveSession, SessionTraces
from passerelle.store.archive.reader import SegmentRef, read_row
from passerelle.store.archive.segment import SegmentName
from passerelle.store.archive.segment_copies import SegmentCopies, find_covered
from passerelle.store.archive.session_tombstones import ForgottenFrame, ForgottenSession
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.owner_survey import SessionFinder
    from passerelle.store.archive.segment import FrameNote
    from passerelle.store.archive.segment_copies import SegmentCopy

MOST_AT_ONCE: Final = 5_000
"""Sessions of one part: about 2 kB each are held meanwhile."""


@frozen
class SessionChoice:
    """Sessions without an event after ``before_ms``, and only these ``sessions`` if given.

    ``accepts`` decides finally, once a session is read.
    """

    before_ms: int
    sessions: frozenset[str] | None = None
    shards: Collection[Shard] = ALL_SHARDS
    accepts: Callable[[SessionFrame], bool] = lambda _frame: True

    def names(self, session: str, at_ms: int) -> bool:
        """Whether a session matches, as far as that is known before it is read."""
        if self.sessions is not None and session not in self.sessions:
            return False
        return at_ms <= self.before_ms and shard_of(session) in self.shards


@frozen
class ChosenSession:
    """A session that may be forgotten: its position and references. Either ``live`` or ``row`` is given."""

    leads: ForgottenSession
    entities: tuple[EntityRef, ...]
    live: LiveSession | None
    row: bytes | None

    @property
    def session(self) -> str:
        """Its id."""
        return self.leads.session


@dataclass(slots=True)
class ChosenSessions:
    """The result of one part of a walk."""

    chosen: list[ChosenSession] = field(default_factory=list[ChosenSession])
    open: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])


class _Site(NamedTuple):
    segment: SegmentName
    note: FrameNote


class _Place(NamedTuple):
    """A session in the engine, or a frame of one (``here``); ``sites`` has all its known frames."""

    session: str
    here: _Site | None
    sites: tuple[_Site, ...]


class _Numbered(NamedTuple):
    segment: SegmentName
    shift: int


@frozen
class _Listed:
    """Segments, whether a shard names each, and the segment of each number of a shard when they were listed.

    A merge changes no row: it leads to one frame of these, whatever is merged meanwhile, and so counts once.
    """

    segments: dict[SegmentName, bool]
    numbers: dict[Shard, dict[int, _Numbered]]

    def leads_to(self, shard: Shard, row: bytes | None, here: _Site) -> bool:
        """Whether the row of a session leads to this frame."""
        if row is None:
            return False
        at = read_row(shard, row)
        found = self.numbers[shard].get(at.number)
        return found is not None and (found.segment, at.offset + found.shift) == (
            here.segment,
            here.note.offset,
        )


@frozen
class SessionSurvey:
    """Scans the store and the archive of one runtime; reads only. Raises as ``SessionFinder`` does."""

    finder: SessionFinder

    async def begin(self, choice: SessionChoice) -> SessionWalk:
        """Starts a walk through all sessions of a choice; it reads each footer once, and once more in its part."""
        # A session archived meanwhile is found in both places rather than in neither.
        live = [one.session async for one in self._list_heads(choice)]
        listed = await self._list_objects()
        earlier = await self._list_earlier(choice, {*live}, listed)
        return SessionWalk(
            self, choice, deque(live), deque(listed.segments.items()), listed, earlier
        )

    async def list_sessions(self, shard: Shard) -> set[str]:
        """Each session of a shard, in the engine or in any segment."""
        every = SessionChoice(_LATEST_MS, shards=(shard,))
        found = {one.session async for one in self._list_heads(every)}
        for segment, is_named in (await self._list_objects()).segments.items():
            found |= {
                note.session for note in await self.read_notes(every, segment, is_named=is_named)
            }
        return found

    async def read_notes(
        self, choice: SessionChoice, segment: SegmentName, *, is_named: bool
    ) -> list[FrameNote]:
        """Frames of a segment whose sessions may match."""
        try:
            notes = await self.finder.archive.read_notes(segment)
        except ArchiveDamaged:
            if is_named:
                raise
            return []
        return [note for note in notes if choice.names(note.session, note.at_ms)]

    async def look_at(
        self, choice: SessionChoice, places: Sequence[_Place], listed: _Listed
    ) -> ChosenSessions:
        """Selects the sessions of these places that may be forgotten."""
        found = ChosenSessions()
        by_shard = defaultdict[Shard, list[_Place]](list)
        for place in places:
            by_shard[shard_of(place.session)].append(place)
        for shard, some in by_shard.items():
            rows = await self._read_rows(shard, [place.session for place in some])
            wanted = [place.session for place in some if place.here is None]
            heads = await self.finder.read_heads(shard, wanted)
            live = {one.session: one for _, one in heads if choice.names(one.session, one.at_ms)}
            for place, row in zip(some, rows, strict=True):
                chosen: ChosenSession | None = None
                if row is not None:
                    chosen = await self._choose_archived(choice, place, row, listed)
                elif (one := live.get(place.session)) is not None:
                    chosen = await self._judge(found, choice, place, one)
                found.chosen += [] if chosen is None else [chosen]
        return found

    async def _list_heads(self, choice: SessionChoice) -> AsyncIterator[LiveSession]:
        if choice.sessions is None:
            heads = self.finder.list_heads(choice.shards)
            async for _, one in heads:
                if choice.names(one.session, one.at_ms):
                    yield one
        else:
            for session in sorted(choice.sessions):
                for _, one in await self.finder.read_heads(shard_of(session), [session]):
                    if choice.names(one.session, one.at_ms):
                        yield one

    async def _list_objects(self) -> _Listed:
        """Each segment, except those whose frames are all in another named one: erasing follows the copies to these.

        An unnamed but noted segment may be deleted or never written. A segment whose note is added or removed between
        two of the reads is found by another of them.
        """
        nodes = self.finder.nodes
        found, numbers = dict[SegmentName, bool](), dict[Shard, dict[int, _Numbered]]()
        copies = dict[str, list["SegmentCopy"]]()
        for shard in ALL_SHARDS:
            note = pack("ZRANGE", keys.segment_notes(shard), 0, -1)
            [before] = await nodes.query_in_background(shard, note)
            named = await self.finder.archive.list_segments(shard)
            [behind] = await nodes.query_in_background(shard, note)
            for name in (*as_texts(before), *as_texts(behind)):
                found.setdefault(SegmentName.read(name), False)
            found |= dict.fromkeys((one.name for one in named), True)
            numbers[shard] = {
                number: _Numbered(one.name, shift)
                for one in named
                for number, shift in ((one.number, 0), *one.shifts.items())
            }
            copies |= await SegmentCopies(nodes).list(shard)
        noted = {name for name, is_named in found.items() if not is_named}
        for covered in find_covered(copies, found.keys() - noted, noted):
            del found[covered]
        return _Listed(found, numbers)

    async def _list_earlier(
        self, choice: SessionChoice, live: set[str], listed: _Listed
    ) -> dict[str, list[_Site]]:
        """Frames of existing sessions to which no row leads: few, of sessions that were restored once."""
        found = dict[str, list[_Site]]()
        for segment, is_named in listed.segments.items():
            by_shard = defaultdict[Shard, list[_Place]](list)
            for note in await self.read_notes(choice, segment, is_named=is_named):
                place = _Place(note.session, _Site(segment, note), ())
                by_shard[shard_of(note.session)].append(place)
            for shard, places in by_shard.items():
                rows = await self._read_rows(shard, [place.session for place in places])
                for place, row in zip(places, rows, strict=True):
                    is_there = row is not None or place.session in live
                    if is_there and place.here and not listed.leads_to(shard, row, place.here):
                        found.setdefault(place.session, []).append(place.here)
        return found

    async def _read_rows(self, shard: Shard, sessions: Iterable[str]) -> list[bytes | None]:
        asked = (self.finder.archive.ask_row(shard, session) for session in sessions)
        return [*map(as_bytes, await self.finder.nodes.query_in_background(shard, *asked))]

    async def _judge(
        self, found: ChosenSessions, choice: SessionChoice, place: _Place, live: LiveSession
    ) -> ChosenSession | None:
        match await self.finder.judge(live):
            case "open":
                found.open.append(place.session)
            case "kept":
                found.kept.append(place.session)
            case "over":
                return await self._choose_live(choice, place, live)
        return None

    async def _choose_live(
        self, choice: SessionChoice, place: _Place, live: LiveSession
    ) -> ChosenSession | None:
        frame = await self.finder.read(live.shard, place.session)
        if frame is None or not choice.accepts(frame):
            return None
        leads = _describe(place, frame, live.bytes, is_archived=False)
        return ChosenSession(leads, tuple(frame.hashes), live, None)

    async def _choose_archived(
        self,
        choice: SessionChoice,
        place: _Place,
        row: bytes,
        listed: _Listed,
    ) -> ChosenSession | None:
        """None: it was archived again, or was restored and is newer than this frame."""
        shard, here = shard_of(place.session), place.here
        if here is None or not listed.leads_to(shard, row, here):
            return None
        at = read_row(shard, row)
        one = ArchivedSession(shard, SegmentRef(at.number, here.segment), here.note, row)
        frame = await self.finder.open(one)
        if frame is None or not choice.accepts(frame):
            return None
        leads = _describe(place, frame, at.length, is_archived=True)
        return ChosenSession(leads, tuple(frame.hashes), None, row)


@dataclass(slots=True)
class SessionWalk:
    """Walks engine and archive once, in parts; memory grows with restored sessions, not with all."""

    survey: SessionSurvey
    choice: SessionChoice
    _live: deque[str]
    _segments: deque[tuple[SegmentName, bool]]
    _listed: _Listed
    _earlier: Mapping[str, list[_Site]]
    _sites: deque[_Site] = field(default_factory=deque["_Site"])
    """Frames of the last read segment."""
    deferred: set[str] = field(default_factory=set[str])
    """Tombstones with content left: checking whether another session refers to it reads all of these."""

    @property
    def is_over(self) -> bool:
        """Whether the walk is complete."""
        return not (self._live or self._sites or self._segments)

    async def look(self, most: int = MOST_AT_ONCE) -> ChosenSessions:
        """Selects from the next sessions, at most ``most``. Raises as ``SessionFinder`` does."""
        places = list[_Place]()
        while len(places) < most and not self.is_over:
            if self._live:
                session = self._live.popleft()
                places.append(_Place(session, None, tuple(self._earlier.get(session, ()))))
            elif self._sites:
                here = self._sites.popleft()
                sites = dict.fromkeys((here, *self._earlier.get(here.note.session, ())))
                places.append(_Place(here.note.session, here, tuple(sites)))
            else:
                segment, is_named = self._segments.popleft()
                notes = await self.survey.read_notes(self.choice, segment, is_named=is_named)
                self._sites.extend(_Site(segment, note) for note in notes)
        return await self.survey.look_at(self.choice, places, self._listed)


_LATEST_MS: Final = 1 << 52


def _describe(
    place: _Place, frame: SessionFrame, size: int, *, is_archived: bool
) -> ForgottenSession:
    shard, traces = shard_of(place.session), SessionTraces()
    traces.add(shard, frame)
    return ForgottenSession(
        place.session,
        tuple(sorted(traces.ids)),
        tuple(sorted(traces.owners)),
        tuple(sorted(traces.digests[shard])),
        tuple(ForgottenFrame(site.segment, site.note.offset) for site in place.sites),
        size,
        is_archived,
    )
