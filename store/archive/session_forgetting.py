"""Forgetting sessions one by one, by their ids or by their age, of any owner.

The key of the owner stays, so the content itself has to go. One script in the shard of a session takes it out of the
engine, or takes its rows, unless somebody holds an owner of it, and writes down what else leads to it. From there on it
is read by nobody. Then the tombstone is put beside the archive, what leads to the sessions is removed, their frames are
erased, and what was written down goes. Whoever is killed leaves it for the next call, or for the duty.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from passerelle.core.errors import ArchiveDamaged
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
"""Sessions of one call: it holds up its server for about a tenth of a millisecond each."""
_ROUNDS: Final = 5
"""So often a session is looked for again that changes meanwhile, as on its way into the archive."""
_MOST_DEFERRED: Final = 64
"""Tombstones with content, each of up to 256 sessions: then all others are looked at for what they name."""
_Outcome: TypeAlias = Literal["forgotten", "held", "changed"]


def _read_outcomes(reply: RespValue) -> list[_Outcome]:
    return cast("list[_Outcome]", as_texts(reply))


_FORGET: Final = Script("forget_sessions", _read_outcomes)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What would go, and what would stay: sessions with something open, of persons, and of owners that are held."""

    counts: ForgottenCounts
    open: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(slots=True)
class ForgottenSessions:
    """What was done: the tombstones, and sessions that somebody holds."""

    tombstones: list[SessionTombstone] = field(default_factory=list[SessionTombstone])
    held: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        """How many sessions are forgotten."""
        return sum(len(one.sessions) for one in self.tombstones)


@dataclass(frozen=True, slots=True)
class SessionForgetting:
    """Forgets in one runtime. Two at once, and one after another that was killed, do what one does."""

    nodes: Nodes
    survey: SessionSurvey
    tombstones: SessionTombstones
    holds: Tombstones
    removal: TraceRemoval
    erasure: SegmentErasure
    rewrite_logs: Callable[[], Awaitable[None]] | None = None
    """Has the engine write its files anew, where it is one of ours."""

    async def plan(self, choice: SessionChoice) -> SessionPlan:
        """Counts what would go; changes nothing. Raises StoreUnavailable."""
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
        """Forgets what a choice has that is over; what is open, changes or is held stays.

        Raises:
            StoreUnavailable: something does not answer; what has begun goes on with ``finish``.
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
        """What ``forget_part`` goes along. Raises StoreUnavailable."""
        return await self.survey.begin(choice)

    async def forget_part(self, walk: SessionWalk, by: str, most: int) -> ForgottenSessions:
        """The same of the next sessions of a walk, at most so many; what changes meanwhile stays. Raises as it does."""
        done = ForgottenSessions()
        await self._remove_part(walk, by, most, done)
        return done

    async def _remove_part(
        self, walk: SessionWalk, by: str, most: int, done: ForgottenSessions
    ) -> set[str]:
        """Removes what the next part has; the sessions that have changed meanwhile."""
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
        """Ends what was begun in these shards, and was not ended. Raises StoreUnavailable."""
        begun = [one for shard in shards for one in await self.tombstones.list_begun(shard)]
        if begun:
            await self._finish(begun)
        return begun

    async def resume(self, shards: Collection[Shard], since_ms: int) -> list[SessionTombstone]:
        """Goes on with what was begun, and forgets again what a loss has brought back; returns what that was.

        Tombstones set after ``since_ms`` are gone through whatever the engine says.

        Raises:
            StoreUnavailable: something does not answer; the rest is for the next call.
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
        """Sessions of which somebody holds an owner."""
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
        """Removes what was found; the sessions that have changed meanwhile. With ``deferred`` as ``_finish`` does."""
        held = set[str]() if is_again else await self._list_held(found)
        by_shard = defaultdict[Shard, list[ChosenSession]](list)
        for one in found.chosen:
            if one.session not in held:
                by_shard[one.leads.shard].append(one)
        changed, own = set[str](), set[str]()
        for shard, sessions in by_shard.items():
            for first in range(0, len(sessions), MOST_SESSIONS):
                begun = replace(tombstone, id=draw_id(shard))
                own.add(begun.id)
                part = sessions[first : first + MOST_SESSIONS]
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
        """Removes what leads to sessions that are gone, and what is left of them.

        With ``deferred`` not their content: who has some stays begun, and its tombstone is put there.
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
        # The relay may have written beside this what it had read before.
        await self.removal.remove_rows(traces)
        if self.rewrite_logs is not None:
            # Before the end, so that whoever is killed is made up for.
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
        """Says that nothing is left of sessions of a tombstone, unless a segment with one of it is damaged."""
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
        """Segments that are damaged: they do not hold up what is forgotten elsewhere."""
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
