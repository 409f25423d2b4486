"""Which sessions may be forgotten, one by one: what of each is in the engine, in the archive, and what it leads to.

Of a session every frame is found, those of earlier stays in the archive as well, to which no row leads any more: they
are sealed with a key that is there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.batch import EntityRef
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.locator import Locator
from passerelle.store.archive.owner_survey import ArchivedSession, LiveSession, SessionTraces
from passerelle.store.archive.reader import SegmentRef
from passerelle.store.archive.segment import SegmentName
from passerelle.store.archive.session_tombstones import ForgottenFrame, ForgottenSession
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence

    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.owner_survey import SessionFinder
    from passerelle.store.archive.segment import FrameNote

MOST_AT_ONCE: Final = 5_000
"""Sessions of one part: about 2 kB each are held meanwhile."""


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """Sessions without an event after ``before_ms``, and only these where ``sessions`` are named.

    ``accepts`` has the last word, once a session is read.
    """

    before_ms: int
    sessions: frozenset[str] | None = None
    shards: Collection[Shard] = ALL_SHARDS
    accepts: Callable[[SessionFrame], bool] = lambda _frame: True

    def names(self, session: str, at_ms: int) -> bool:
        """Whether a session is one of them, as far as that is known before it is read."""
        if self.sessions is not None and session not in self.sessions:
            return False
        return at_ms <= self.before_ms and shard_of(session) in self.shards


@dataclass(frozen=True, slots=True)
class ChosenSession:
    """A session that may go: where it is, and what goes with it. One of ``live`` and ``row`` is given."""

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
    """What one part of a walk has found."""

    chosen: list[ChosenSession] = field(default_factory=list[ChosenSession])
    open: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])


class _Site(NamedTuple):
    segment: SegmentName
    note: FrameNote


class _Place(NamedTuple):
    """A session in the engine, or a frame of one (``here``); ``sites`` has all frames of it that are known."""

    session: str
    here: _Site | None
    sites: tuple[_Site, ...]


@dataclass(frozen=True, slots=True)
class SessionSurvey:
    """Looks through the store and the archive of one runtime; reads only. Raises as ``SessionFinder`` does."""

    finder: SessionFinder

    async def begin(self, choice: SessionChoice) -> SessionWalk:
        """A walk through all sessions of a choice; each footer is read once for it, and once more in its part."""
        # What leaves the engine meanwhile is found at both places rather than at none.
        live = [one.session async for one in self._list_heads(choice)]
        segments = await self._list_objects()
        earlier = await self._list_earlier(choice, {*live}, segments)
        return SessionWalk(self, choice, deque(live), deque(segments.items()), earlier)

    async def list_sessions(self, shard: Shard) -> set[str]:
        """Each session of a shard, in the engine or in any segment."""
        every = SessionChoice(_LATEST_MS, shards=(shard,))
        found = {one.session async for one in self._list_heads(every)}
        for segment, is_named in (await self._list_objects()).items():
            found |= {
                note.session for note in await self.read_notes(every, segment, is_named=is_named)
            }
        return found

    async def read_notes(
        self, choice: SessionChoice, segment: SegmentName, *, is_named: bool
    ) -> list[FrameNote]:
        """Frames of a segment whose sessions may be chosen."""
        try:
            notes = await self.finder.archive.read_notes(segment)
        except ArchiveDamaged:
            if is_named:
                raise
            return []
        return [note for note in notes if choice.names(note.session, note.at_ms)]

    async def look_at(self, choice: SessionChoice, places: Sequence[_Place]) -> ChosenSessions:
        """What of these may go."""
        found = ChosenSessions()
        by_shard = defaultdict[Shard, list[_Place]](list)
        for place in places:
            by_shard[shard_of(place.session)].append(place)
        for shard, some in by_shard.items():
            rows = await self._read_rows(shard, [place.session for place in some])
            wanted = [place.session for place in some if place.here is None]
            heads = await self.finder.read_heads(shard, wanted)
            live = {one.session: one for _, one in heads if choice.names(one.session, one.at_ms)}
            numbers = await self._read_numbers(shard, some)
            for place, row in zip(some, rows, strict=True):
                chosen: ChosenSession | None = None
                if row is not None:
                    chosen = await self._choose_archived(choice, place, row, numbers)
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

    async def _list_objects(self) -> dict[SegmentName, bool]:
        """Each segment, and whether a shard names it: others are only noted, and may be gone or never have been."""
        found = dict[SegmentName, bool]()
        for shard in ALL_SHARDS:
            places = (keys.segment_notes(shard), keys.segments(shard))
            asked = (pack("ZRANGE", place, 0, -1) for place in places)
            noted, named = await self.finder.nodes.query_in_background(shard, *asked)
            for name in as_texts(noted):
                found.setdefault(SegmentName.read(name), False)
            for name in as_texts(named):
                found[SegmentName.read(name)] = True
        return found

    async def _list_earlier(
        self, choice: SessionChoice, live: set[str], segments: Mapping[SegmentName, bool]
    ) -> dict[str, list[_Site]]:
        """Frames to which no row leads, of sessions that are there: few, those of sessions that came back once."""
        found = dict[str, list[_Site]]()
        for segment, is_named in segments.items():
            by_shard = defaultdict[Shard, list[_Place]](list)
            for note in await self.read_notes(choice, segment, is_named=is_named):
                place = _Place(note.session, _Site(segment, note), ())
                by_shard[shard_of(note.session)].append(place)
            for shard, places in by_shard.items():
                rows = await self._read_rows(shard, [place.session for place in places])
                numbers = await self._read_numbers(shard, places)
                for place, row in zip(places, rows, strict=True):
                    is_there = row is not None or place.session in live
                    if is_there and place.here and not _leads_to(shard, row, place.here, numbers):
                        found.setdefault(place.session, []).append(place.here)
        return found

    async def _read_rows(self, shard: Shard, sessions: Iterable[str]) -> list[bytes | None]:
        asked = (self.finder.archive.ask_row(shard, session) for session in sessions)
        return [*map(as_bytes, await self.finder.nodes.query_in_background(shard, *asked))]

    async def _read_numbers(
        self, shard: Shard, places: Iterable[_Place]
    ) -> dict[SegmentName, int | None]:
        """The numbers of the segments of these frames in a shard; None where it does not name one."""
        names = [*dict.fromkeys(place.here.segment for place in places if place.here)]
        asked = (pack("ZSCORE", keys.segments(shard), str(name)) for name in names)
        replies = await self.finder.nodes.query_in_background(shard, *asked)
        scores = map(as_bytes, replies)
        return {
            name: None if score is None else int(float(score))
            for name, score in zip(names, scores, strict=True)
        }

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
        numbers: Mapping[SegmentName, int | None],
    ) -> ChosenSession | None:
        """None: it has left once more, or came back and is younger than this frame."""
        shard, here = shard_of(place.session), place.here
        if here is None or not _leads_to(shard, row, here, numbers):
            return None
        at = _read_row(shard, row)
        one = ArchivedSession(shard, SegmentRef(at.number, here.segment), here.note, row)
        frame = await self.finder.open(one)
        if frame is None or not choice.accepts(frame):
            return None
        leads = _describe(place, frame, at.length, is_archived=True)
        return ChosenSession(leads, tuple(frame.hashes), None, row)


@dataclass(slots=True)
class SessionWalk:
    """Goes through engine and archive once, in parts; what it holds grows with what came back, not with all."""

    survey: SessionSurvey
    choice: SessionChoice
    _live: deque[str]
    _segments: deque[tuple[SegmentName, bool]]
    _earlier: Mapping[str, list[_Site]]
    _sites: deque[_Site] = field(default_factory=deque["_Site"])
    """Frames of the segment that was read last."""
    deferred: set[str] = field(default_factory=set[str])
    """Tombstones of which content is left: whether another session names it takes a look at all of these."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to look at."""
        return not (self._live or self._sites or self._segments)

    async def look(self, most: int = MOST_AT_ONCE) -> ChosenSessions:
        """What may go of the next sessions, at most so many. Raises as ``SessionFinder`` does."""
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
        return await self.survey.look_at(self.choice, places)


def _leads_to(
    shard: Shard, row: bytes | None, here: _Site, numbers: Mapping[SegmentName, int | None]
) -> bool:
    """Whether the row of a session leads to this frame of it."""
    if row is None:
        return False
    at = _read_row(shard, row)
    return (at.number, at.offset) == (numbers.get(here.segment), here.note.offset)


def _read_row(shard: Shard, row: bytes) -> Locator:
    try:
        return Locator.read(row)
    except ValueError as error:
        reason = f"a row of the archive of shard {shard.tag}: {error}"
        raise ArchiveDamaged(reason) from None


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
