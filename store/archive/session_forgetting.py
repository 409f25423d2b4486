"""Forgets single sessions, by id or by age, of any owner.

The key of the owner stays, so the content itself has to be removed. One script in the shard of a session removes it
from the engine, or its archive rows, unless there is a legal hold on an owner, and records all other references to it.
From then on it cannot be read. Then the tombstone is stored with the archive, the references are removed, the frames
are erased, and the record is deleted. After a kill the next call, or the duty, continues.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.archive.gone_sessions import note_gone
from passerelle.store.archive.locator import place_row
from passerelle.store.archive.owner_survey import SessionTraces
from passerelle.store.archive.session_survey import (
    MOST_AT_ONCE,
    ChosenSession,
    ChosenSessions,
    SessionChoice,
)
from passerelle.store.archive.session_tombstones import (
    MOST_SESSIONS,
    SessionTombstone,
    count_sessions,
    draw_id,
)
from passerelle.store.archive.tombstones import ForgottenCounts
from passerelle.store.replies import as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from passerelle.store.archive.segment import SegmentName
    from passerelle.store.archive.segment_erasure import SegmentErasure
    from passerelle.store.archive.session_survey import SessionSurvey, SessionWalk
    from passerelle.store.archive.session_tombstones import SessionTombstones
    from passerelle.store.archive.tombstones import Tombstones
    from passerelle.store.archive.traces import TraceRemoval
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_AT_ONCE: Final = 16
"""Sessions of one script call: each blocks the server for about a tenth of a millisecond."""
_ROUNDS: Final = 5
"""How often a session is retried that changes meanwhile, for example because it is being archived."""
_MOST_DEFERRED: Final = 64
"""Tombstones with content, each of up to 256 sessions, before all other sessions are searched for references."""
_Outcome: TypeAlias = Literal["forgotten", "held", "changed"]


def _read_outcomes(reply: RespValue) -> list[_Outcome]:
    return cast("list[_Outcome]", as_texts(reply))


_FORGET: Final = Script("forget_sessions", _read_outcomes)


@frozen
class SessionPlan:
    """What would be forgotten, and what would stay: sessions with something open, home sessions, and held ones."""

    counts: ForgottenCounts
    open: tuple[str, ...]
    kept: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(slots=True)
class ForgottenSessions:
    """The outcome: the tombstones, and sessions with a legal hold."""

    tombstones: list[SessionTombstone] = field(default_factory=list[SessionTombstone])
    held: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        """The number of forgotten sessions."""
        return sum(len(one.sessions) for one in self.tombstones)


@frozen
class SessionForgetting:
    """Forgets in one runtime. Concurrent and repeated calls have the result of one."""

    nodes: Nodes
    survey: SessionSurvey
    tombstones: SessionTombstones
    holds: Tombstones
    removal: TraceRemoval
    erasure: SegmentErasure
    rewrite_logs: Callable[[], Awaitable[None]] | None
    """Makes the engine rewrite its files, if it is embedded."""

    async def plan(self, choice: SessionChoice) -> SessionPlan:
        """Counts what would be forgotten; changes nothing. Raises StoreUnavailable."""
        counts = [ForgottenCounts()]
        still_open, kept, held = list[str](), list[str](), list[str]()
        walk = await self.survey.begin(choice)
        while not walk.is_over:
            found = await walk.look()
            holds = await self._list_held(found)
            free = [one.leads for one in found.chosen if one.session not in holds]
            counts.append(count_sessions(free))
            still_open += found.open
            kept += found.kept
            held += sorted(holds)
        total = ForgottenCounts(*map(sum, zip(*map(_list_counts, counts), strict=True)))
        return SessionPlan(total, tuple(still_open), tuple(kept), tuple(held))

    async def forget(self, choice: SessionChoice, by: str) -> ForgottenSessions:
        """Forgets the ended sessions of a choice; open, changing and held ones stay.

        Raises:
            StoreUnavailable: something does not answer; ``finish`` continues what was begun.
        """
        done = ForgottenSessions()
        for _ in range(_ROUNDS):
            changed, walk = set[str](), await self.survey.begin(choice)
            while not walk.is_over:
                changed |= await self._remove_part(walk, by, MOST_AT_ONCE, done)
            if not changed:
                break
            choice = replace(choice, sessions=frozenset(changed))
        return done

    async def begin(self, choice: SessionChoice) -> SessionWalk:
        """Starts the walk for ``forget_part``. Raises StoreUnavailable."""
        return await self.survey.begin(choice)

    async def forget_part(self, walk: SessionWalk, by: str, most: int) -> ForgottenSessions:
        """The same for at most ``most`` sessions of a walk; those that change meanwhile stay. Raises as ``forget``."""
        done = ForgottenSessions()
        await self._remove_part(walk, by, most, done)
        return done

    async def _remove_part(
        self, walk: SessionWalk, by: str, most: int, done: ForgottenSessions
    ) -> set[str]:
        """Removes the sessions of the next part; returns those that changed meanwhile."""
        found = await walk.look(most)
        tombstone = SessionTombstone("", walk.choice.before_ms, by)
        changed = await self._remove(found, tombstone, done, deferred=walk.deferred)
        if walk.is_over or len(walk.deferred) >= _MOST_DEFERRED:
            shards = {Shard(int(name[:2], 16)) for name in walk.deferred}
            begun = [one for shard in shards for one in await self.tombstones.list_begun(shard)]
            await self._finish([one for one in begun if one.id in walk.deferred])
            walk.deferred.clear()
        return changed

    async def finish(self, shards: Iterable[Shard]) -> list[SessionTombstone]:
        """Completes interrupted forgetting in these shards. Raises StoreUnavailable."""
        begun = [one for shard in shards for one in await self.tombstones.list_begun(shard)]
        if begun:
            await self._finish(begun)
        return begun

    async def resume(self, shards: Collection[Shard], since_ms: int) -> list[SessionTombstone]:
        """Continues interrupted forgetting, and forgets again what a data loss has restored; returns the tombstones.

        Tombstones set after ``since_ms`` are processed whatever the engine contains.

        Raises:
            StoreUnavailable: something does not answer; the next call continues.
        """
        done = await self.finish(shards)
        for shard in shards:
            lost = await self.tombstones.list_lost(shard, since_ms)
            if not lost:
                continue
            sessions = sorted(await self.survey.list_sessions(shard))
            tagged = dict(
                zip(await self.tombstones.owner_keys.tag_all(sessions), sessions, strict=True)
            )
            for one in lost:
                named = frozenset(tagged[tag] for tag in one.tags & tagged.keys())
                if named:
                    done += await self._forget_again(one, named)
                await self.tombstones.keep(one)
        return done

    async def _forget_again(
        self, tombstone: SessionTombstone, sessions: frozenset[str]
    ) -> list[SessionTombstone]:
        choice = SessionChoice(tombstone.at_ms, sessions, (tombstone.shard,))
        done, walk = ForgottenSessions(), await self.survey.begin(choice)
        while not walk.is_over:
            found = await walk.look()
            await self._remove(found, replace(tombstone, id=""), done, is_again=True)
        return done.tombstones

    async def _list_held(self, found: ChosenSessions) -> set[str]:
        """Sessions with an owner under a legal hold."""
        owners = {owner for one in found.chosen for owner in one.leads.owners}
        held = {owner for owner in owners if await self.holds.find_hold(owner) is not None}
        return {one.session for one in found.chosen if held.intersection(one.leads.owners)}

    async def _remove(
        self,
        found: ChosenSessions,
        tombstone: SessionTombstone,
        done: ForgottenSessions,
        *,
        is_again: bool = False,
        deferred: set[str] | None = None,
    ) -> set[str]:
        """Removes found sessions; returns those that changed meanwhile. ``deferred`` as for ``_finish``."""
        held = set[str]() if is_again else await self._list_held(found)
        by_shard = defaultdict[Shard, list[ChosenSession]](list)
        for one in found.chosen:
            if one.session not in held:
                by_shard[one.leads.shard].append(one)
        changed, own = set[str](), set[str]()
        for shard, sessions in by_shard.items():
            for part in in_chunks(sessions, MOST_SESSIONS):
                begun = replace(tombstone, id=draw_id(shard))
                own.add(begun.id)
                for one, outcome in await self._take_out(begun, part, is_again=is_again):
                    changed |= {one.session} if outcome == "changed" else set()
                    held |= {one.session} if outcome == "held" else set()
        done.held += sorted(held)
        listed = [one for shard in by_shard for one in await self.tombstones.list_begun(shard)]
        going_on = [one for one in listed if one.id not in (deferred or ())]
        if going_on:
            await self._finish(going_on, deferred)
        done.tombstones += [one for one in going_on if one.id in own]
        return changed

    async def _take_out(
        self, tombstone: SessionTombstone, sessions: Sequence[ChosenSession], *, is_again: bool
    ) -> list[tuple[ChosenSession, _Outcome]]:
        shard, done = tombstone.shard, list[tuple["ChosenSession", "_Outcome"]]()
        for first in range(0, len(sessions), _AT_ONCE):
            part = sessions[first : first + _AT_ONCE]
            await note_gone(self.nodes, shard, [one.session for one in part])
            places = (keys.forgotten_sessions, keys.holds, keys.due, keys.stuck)
            arguments = Arguments(place(shard) for place in places)
            control: dict[str, ControlValue] = {
                "id": tombstone.id,
                "header": tombstone.header,
                "is_again": int(is_again),
                "sessions": [
                    _write_session(one, number, arguments) for number, one in enumerate(part, first)
                ],
            }
            outcomes = await self.nodes.run(
                _FORGET, shard, arguments.keys, control, arguments.values
            )
            done += zip(part, outcomes, strict=True)
        return done

    async def _finish(
        self, begun: Sequence[SessionTombstone], deferred: set[str] | None = None
    ) -> None:
        """Removes references to removed sessions, and their remaining data.

        With ``deferred`` content is not removed: a tombstone with content stays begun, and its id is added to the set.
        """
        for one in begun:
            await self.tombstones.write_object(one)
        whole = begun if deferred is None else [await self._leave_content(one) for one in begun]
        traces, erased = SessionTraces(), defaultdict["SegmentName", dict[int, str]](dict)
        for tombstone in begun:
            for session in tombstone.sessions.values():
                traces.ids.update(session.names)
                traces.owners.update(session.owners)
                traces.digests.setdefault(session.shard, set()).update(session.digests)
                for frame in session.frames:
                    erased[frame.segment][frame.offset] = tombstone.id
        await self.removal.wait_for_relay(traces)
        await self.removal.remove_rows(traces)
        if deferred is None:
            await self.removal.remove_content(traces)
        damaged = await self._erase(erased)
        # The relay may have written rows that it had read before.
        await self.removal.remove_rows(traces)
        if self.rewrite_logs is not None:
            # Before the end, so that another process repeats it after a kill.
            await self.rewrite_logs()
        for one, ended in zip(begun, whole, strict=True):
            await self._end(one, ended, damaged.keys())
            if deferred is not None and len(ended.sessions) < len(one.sessions):
                deferred.add(one.id)
        for error in damaged.values():
            raise error

    async def _end(
        self, one: SessionTombstone, ended: SessionTombstone, damaged: Collection[SegmentName]
    ) -> None:
        """Ends sessions of a tombstone of which nothing is left, unless a segment with one of them is damaged."""
        segments = {frame.segment for session in one.sessions.values() for frame in session.frames}
        if ended.sessions and segments.isdisjoint(damaged):
            await self.tombstones.end(ended)

    async def _leave_content(self, tombstone: SessionTombstone) -> SessionTombstone:
        """A tombstone without the sessions that have content."""
        kept = {
            name: one
            for name, one in tombstone.sessions.items()
            if not await self.removal.find_stored(one.shard, one.digests)
        }
        return replace(tombstone, sessions=kept)

    async def _erase(
        self, erased: Mapping[SegmentName, Mapping[int, str]]
    ) -> dict[SegmentName, ArchiveDamaged]:
        """Erases frames; returns the damaged segments, which do not block the others."""
        damaged = dict["SegmentName", "ArchiveDamaged"]()
        for segment, tombstones in erased.items():
            try:
                await self.erasure.erase(segment, tombstones)
            except ArchiveDamaged as error:
                damaged[segment] = error
        return damaged


def _list_counts(counts: ForgottenCounts) -> tuple[int, ...]:
    return counts.sessions, counts.archived, counts.tasks, counts.approvals, counts.bytes


def _write_session(one: ChosenSession, number: int, arguments: Arguments) -> list[ControlValue]:
    shard, session = one.leads.shard, one.session
    stream = StreamRef(StreamKind.SESSION, session)
    acks = keys.stream_acks(stream)
    live: list[ControlValue] | bool = False
    archived: list[ControlValue] | bool = False
    if one.live is not None:
        own = [keys.entity(ref) for ref in one.entities if ref.id != session]
        own += [keys.entries(stream), keys.session_tasks(shard, session), acks]
        live = [
            arguments.key(keys.head(stream)),
            arguments.key(keys.session_open(shard, session)),
            arguments.key(keys.stream_targets(stream)),
            one.live.sequence,
            [arguments.key(name) for name in own],
        ]
    else:
        names = [session, *(ref.id for ref in one.entities if ref.id != session)]
        places = [place_row(shard, name) for name in names]
        rows: list[ControlValue] = [
            [arguments.key(key), arguments.value(name)] for key, name in places
        ]
        archived = [arguments.value(one.row or b""), rows, arguments.key(acks)]
    return [str(number), session, one.leads.owners, one.leads.write(), live, archived]
