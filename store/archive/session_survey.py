"""Which sessions may be forgotten, one by one: what of each is in the engine, in the archive, and what it leads to.

Of a session every frame is found, those of earlier stays in the archive as well, to which no row leads any more: they
are sealed with a key that is there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from passerelle.core.batch import EntityRef
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.locator import Locator
from passerelle.store.archive.owner_survey import ArchivedSession, LiveSession, SessionTraces
from passerelle.store.archive.segment import SegmentName
from passerelle.store.archive.session_tombstones import ForgottenFrame, ForgottenSession
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.owner_survey import SessionFinder
    from passerelle.store.archive.reader import SegmentRef
    from passerelle.store.archive.segment import FrameNote

MOST_AT_ONCE: Final = 5_000
"""Sessions of one look: about 2 kB each are held meanwhile."""


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
    """What was found; ``looked`` has all that was looked at, and ``is_all`` is False where there is more."""

    chosen: list[ChosenSession] = field(default_factory=list[ChosenSession])
    open: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    looked: set[str] = field(default_factory=set[str])
    is_all: bool = True


class _Site(NamedTuple):
    segment: SegmentName
    note: FrameNote


class _Place(NamedTuple):
    """What the engine and the archive say of one session."""

    session: str
    live: LiveSession | None
    sites: list[_Site]
    row: bytes | None


@dataclass(frozen=True, slots=True)
class SessionSurvey:
    """Looks through the store and the archive of one runtime; reads only. Raises as ``SessionFinder`` does."""

    finder: SessionFinder

    async def find(
        self, choice: SessionChoice, passed: Collection[str] = (), most: int = MOST_AT_ONCE
    ) -> ChosenSessions:
        """Sessions of a choice but those that were ``passed``, at most so many."""
        # What leaves the engine meanwhile is found at both places rather than at none.
        live = await self._list_live(choice, passed, most + 1)
        sites = await self._list_sites(choice, passed, most + 1)
        every = sorted({*live, *sites})
        found = ChosenSessions(looked=set(every[:most]), is_all=len(every) <= most)
        by_shard = defaultdict[Shard, list[str]](list)
        for session in every[:most]:
            by_shard[shard_of(session)].append(session)
        for shard, sessions in by_shard.items():
            segments = {one.number: one for one in await self.finder.archive.list_segments(shard)}
            for session, row in zip(sessions, await self._read_rows(shard, sessions), strict=True):
                place = _Place(session, live.get(session), sites.get(session, []), row)
                await self._look_at(found, choice, place, segments)
        return found

    async def list_sessions(self, shard: Shard) -> set[str]:
        """Each session of a shard, in the engine or in any segment."""
        every = SessionChoice(_LATEST_MS, shards=(shard,))
        live = await self._list_live(every, (), _LATEST_MS)
        return {*live, *await self._list_sites(every, (), _LATEST_MS)}

    async def _list_live(
        self, choice: SessionChoice, passed: Collection[str], most: int
    ) -> dict[str, LiveSession]:
        found = dict[str, LiveSession]()
        async for one in self._list_heads(choice):
            is_chosen = one.session not in passed and choice.names(one.session, one.at_ms)
            if is_chosen and len(found) < most:
                found[one.session] = one
        return found

    async def _list_heads(self, choice: SessionChoice) -> AsyncIterator[LiveSession]:
        if choice.sessions is None:
            async for _, one in self.finder.list_heads(choice.shards):
                yield one
        else:
            for session in choice.sessions:
                for _, one in await self.finder.read_heads(shard_of(session), [session]):
                    yield one

    async def _list_sites(
        self, choice: SessionChoice, passed: Collection[str], most: int
    ) -> dict[str, list[_Site]]:
        found = dict[str, list[_Site]]()
        for segment, is_named in (await self._list_objects()).items():
            for note in await self._read_notes(segment, is_named=is_named):
                session = note.session
                is_chosen = session not in passed and choice.names(session, note.at_ms)
                if is_chosen and (session in found or len(found) < most):
                    found.setdefault(session, []).append(_Site(segment, note))
        return found

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

    async def _read_notes(self, segment: SegmentName, *, is_named: bool) -> list[FrameNote]:
        try:
            return await self.finder.archive.read_notes(segment)
        except ArchiveDamaged:
            if is_named:
                raise
            return []

    async def _read_rows(self, shard: Shard, sessions: Iterable[str]) -> list[bytes | None]:
        asked = (self.finder.archive.ask_row(shard, session) for session in sessions)
        return [*map(as_bytes, await self.finder.nodes.query_in_background(shard, *asked))]

    async def _look_at(
        self,
        found: ChosenSessions,
        choice: SessionChoice,
        place: _Place,
        segments: dict[int, SegmentRef],
    ) -> None:
        chosen: ChosenSession | None = None
        if place.row is not None:
            chosen = await self._choose_archived(place, place.row, segments, choice)
        elif place.live is not None:
            match await self.finder.judge(place.live):
                case "open":
                    found.open.append(place.session)
                case "kept":
                    found.kept.append(place.session)
                case "over":
                    chosen = await self._choose_live(place, place.live, choice)
        found.chosen += [] if chosen is None else [chosen]

    async def _choose_live(
        self, place: _Place, live: LiveSession, choice: SessionChoice
    ) -> ChosenSession | None:
        frame = await self.finder.read(live.shard, place.session)
        if frame is None or not choice.accepts(frame):
            return None
        leads = _describe(place, frame, live.bytes, is_archived=False)
        return ChosenSession(leads, tuple(frame.hashes), live, None)

    async def _choose_archived(
        self,
        place: _Place,
        row: bytes,
        segments: dict[int, SegmentRef],
        choice: SessionChoice,
    ) -> ChosenSession | None:
        shard = shard_of(place.session)
        try:
            at = Locator.read(row)
        except ValueError as error:
            reason = f"a row of the archive of shard {shard.tag}: {error}"
            raise ArchiveDamaged(reason) from None
        segment = segments.get(at.number)
        for site in place.sites:
            if segment is not None and (site.segment, site.note.offset) == (
                segment.name,
                at.offset,
            ):
                one = ArchivedSession(shard, segment, site.note, row)
                frame = await self.finder.open(one)
                if frame is None or not choice.accepts(frame):
                    return None
                leads = _describe(place, frame, at.length, is_archived=True)
                return ChosenSession(leads, tuple(frame.hashes), None, row)
        # It has left once more, or came back and is younger than its earlier frames.
        return None


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
