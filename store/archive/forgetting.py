"""Forgets an owner's data: all ended sessions, in the engine and in the archive, and then the home session.

A tombstone is set first. From then on the data is not read any more, and if the process is killed, another one
continues from the tombstone. The data key is deleted last, because it is needed to find the content of the sessions;
reads no longer use it by then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import format_ms
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.archive.frame import SessionFrame
from passerelle.store.archive.gone_sessions import note_gone
from passerelle.store.archive.owner_survey import SessionTraces
from passerelle.store.archive.restoring import drop_rows
from passerelle.store.archive.tombstones import ForgottenCounts, Tombstone
from passerelle.store.replies import as_int
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from passerelle.core.ids import Shard
    from passerelle.store.archive.owner_keys import OwnerKeys
    from passerelle.store.archive.owner_survey import LiveSession, OwnerSurvey, SessionFinder
    from passerelle.store.archive.participation import ParticipationFinder
    from passerelle.store.archive.tombstones import Tombstones
    from passerelle.store.archive.traces import TraceRemoval
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_ROUNDS: Final = 5
"""The next round finds what was just being archived."""
_NAMED: Final = 5
_FORGET_SESSION: Final = Script("forget_session", as_int)


@frozen
class ForgettingPlan:
    """What would be forgotten. ``others`` are other owners' sessions with this owner's messages, which stay."""

    owner: str
    counts: ForgottenCounts
    others: tuple[str, ...]
    obstacle: str | None
    """Why nothing may be forgotten."""
    has_any: bool
    """Whether anything would be forgotten: data outside of sessions is not completely counted."""
    is_begun: bool
    """Whether forgetting this owner was interrupted: ``finish`` continues it."""


@frozen
class Forgetting:
    """Forgets in one runtime. Concurrent and repeated calls have the result of one."""

    nodes: Nodes
    owner_keys: OwnerKeys
    finder: SessionFinder
    tombstones: Tombstones
    removal: TraceRemoval
    participations: ParticipationFinder
    rewrite_logs: Callable[[], Awaitable[None]] | None
    """Makes the engine rewrite its files, if it is embedded."""

    async def plan(self, owner: str, now_ms: int) -> ForgettingPlan:
        """Counts what would be forgotten; changes nothing.

        Raises:
            StoreUnavailable: the engine or the archive does not answer, or is damaged.
        """
        found = await self.finder.survey(owner, await self.owner_keys.find_name(owner), now_ms)
        counts, own = await self._count(found)
        return ForgettingPlan(
            owner,
            counts,
            tuple(await self.participations.find(owner, own)),
            await self._find_obstacle(owner, found),
            not found.is_empty,
            bool(await self._list_begun(owner)),
        )

    async def finish(self, owner: str) -> list[Tombstone]:
        """Completes an interrupted forgetting of an owner. Raises StoreUnavailable."""
        begun = await self._list_begun(owner)
        for tombstone in begun:
            await self.tombstones.write_object(tombstone)
            await self._remove(tombstone)
        return begun

    async def _list_begun(self, owner: str) -> list[Tombstone]:
        found = await self.tombstones.list_in_engine(shard_of(owner))
        return [one for one in found if one.owner == owner]

    async def forget(self, owner: str, by: str, now_ms: int) -> Tombstone:
        """Forgets an owner's data without events since ``now_ms``.

        Raises:
            InvalidInput: ``owner``: something is open, or there is a legal hold; nothing is changed.
            StoreUnavailable: something does not answer; ``resume`` continues if the tombstone was set.
        """
        plan = await self.plan(owner, now_ms)
        if plan.obstacle is not None:
            raise InvalidInput("owner", plan.obstacle)
        tag = await self.owner_keys.tag(owner)
        while True:
            key = (await self.owner_keys.obtain(owner)).name
            tombstone = Tombstone(key, tag, now_ms, by, plan.counts, owner)
            match await self.tombstones.begin(tombstone):
                case "begun":
                    break
                case "held":
                    raise InvalidInput("owner", "somebody has placed a hold on it just now")
                case "changed":
                    continue
        await self._remove(tombstone)
        return tombstone

    async def resume(self, shards: Collection[Shard], since_ms: int) -> list[Tombstone]:
        """Continues interrupted forgetting, and forgets again what a data loss has restored; returns the tombstones.

        ``shards`` are those of the owners. Tombstones set after ``since_ms`` are processed in any case.

        Raises:
            StoreUnavailable: something does not answer; the next call continues.
        """
        done = list[Tombstone]()
        known = dict[bytes, Tombstone]()
        for shard in shards:
            for one in await self.tombstones.list_in_engine(shard):
                known[one.key.stored] = one
            for owner in {
                one.owner for one in known.values() if one.owner and one.key.shard == shard
            }:
                done += await self.finish(owner)
        for one in await self.tombstones.list_objects():
            is_known = one.key.stored in known
            if one.key.shard not in shards or (is_known and one.at_ms < since_ms):
                continue
            if is_known and known[one.key.stored].owner:
                continue
            again = replace(one, owner=await self._find_owner(one))
            if again.owner:
                await self.tombstones.begin(again, is_again=True)
                await self._remove(again)
                done.append(again)
            elif not is_known:
                await self.tombstones.end(again)
        return done

    async def _find_owner(self, tombstone: Tombstone) -> str:
        """The owner of a tombstone, if the store has any of its data; else an empty text."""
        shard = tombstone.key.shard
        owners = await self.finder.list_owners() | await self.owner_keys.list_owners(shard)
        for owner in owners:
            if await self.owner_keys.tag(owner) == tombstone.owner_tag:
                return owner
        return await self.owner_keys.find_owner(tombstone.key) or ""

    async def _find_obstacle(self, owner: str, found: OwnerSurvey) -> str | None:
        hold = await self.tombstones.find_hold(owner)
        if hold is not None:
            return f"is held since {format_ms(hold.at_ms)} by {hold.by}: {hold.reason}"
        if found.open:
            some = ", ".join(sorted(found.open)[:_NAMED])
            more = f" and {len(found.open) - _NAMED} more" if len(found.open) > _NAMED else ""
            return f"something is open in {some}{more}: end it first"
        return None

    async def _count(self, found: OwnerSurvey) -> tuple[ForgottenCounts, set[str]]:
        """Counts the data, and lists the ids of all of it."""
        names, size = list[str](), 0
        for one in found.live:
            frame = await self.finder.read(one.shard, one.session)
            names += [ref.id for ref in frame.hashes] if frame else []
            size += one.bytes
        for kept in found.archived:
            names += kept.note.names
            size += kept.note.length
        tasks = sum(name.startswith("task_") for name in names)
        actions = sum(name.startswith("act_") for name in names)
        sessions = len(found.live) + len(found.archived)
        counts = ForgottenCounts(sessions, len(found.archived), tasks, actions, size)
        if (home := found.home) is None:
            return counts, {*names}
        with_home = replace(counts, devices=home.devices, grants=home.grants, rules=home.rules)
        has_home = bool(home.epoch)
        return (
            replace(with_home, sessions=sessions + has_home, bytes=size + home.bytes),
            {*names, *home.ids},
        )

    async def _remove(self, tombstone: Tombstone) -> None:
        """Removes the data of a tombstone, until nothing of it is found."""
        traces = SessionTraces(owners={tombstone.owner})
        for _ in range(_ROUNDS):
            found = await self.finder.survey(tombstone.owner, tombstone.key, tombstone.at_ms)
            if found.is_empty:
                break
            await self._remove_all(found, traces)
        # The relay may have written rows that it had read before.
        await self.removal.remove_rows(traces)
        await self.owner_keys.delete(tombstone.key)
        if self.rewrite_logs is not None:
            # After the key, which these files contain as well; before the end, so that another process can repeat it.
            await self.rewrite_logs()
        await self.tombstones.end(tombstone)

    async def _remove_all(self, found: OwnerSurvey, traces: SessionTraces) -> None:
        """Removes references to these sessions, then their own data, then the sessions themselves."""
        frames = await self._trace(found, traces)
        await self.removal.wait_for_relay(traces)
        await self.removal.remove_rows(traces)
        await self.removal.remove_content(traces)
        await self._note_gone(found)
        for live in found.live:
            if live.session in frames:
                await self._remove_live(live, frames[live.session])
        for kept in found.archived:
            await drop_rows(self.nodes, kept.shard, kept.note.names, kept.row)
        if found.home is not None:
            # Last: the sessions name the principal, by which the home is found.
            await self.finder.homes.remove(found.home)

    async def _trace(self, found: OwnerSurvey, traces: SessionTraces) -> dict[str, SessionFrame]:
        """Collects the references to these sessions; returns the sessions in the engine."""
        frames, home = dict[str, SessionFrame](), found.home
        for live in found.live:
            frame = await self.finder.read(live.shard, live.session)
            if frame is not None:
                frames[live.session] = frame
                traces.add(live.shard, frame)
        for kept in found.archived:
            traces.ids.update(kept.note.names)
            if (frame := await self.finder.open(kept)) is not None:
                traces.add(kept.shard, frame)
        if home is not None:
            traces.ids |= home.ids
            if (frame := await self.finder.read(home.shard, home.stream.id)) is not None:
                traces.add(home.shard, frame)
        return frames

    async def _note_gone(self, found: OwnerSurvey) -> None:
        gone = defaultdict["Shard", list[str]](list)
        for live in found.live:
            gone[live.shard].append(live.session)
        for kept in found.archived:
            gone[kept.shard].append(kept.session)
        if found.home is not None and found.home.session is not None:
            gone[found.home.shard].append(found.home.session)
        for shard, sessions in gone.items():
            await note_gone(self.nodes, shard, sessions)

    async def _remove_live(self, live: LiveSession, frame: SessionFrame) -> None:
        shard, stream = live.shard, StreamRef(StreamKind.SESSION, live.session)
        arguments = Arguments(
            (
                keys.head(stream),
                keys.session_open(shard, live.session),
                keys.stream_targets(stream),
                keys.due(shard),
                keys.stuck(shard),
            )
        )
        own = [keys.entity(ref) for ref in frame.hashes if ref.id != live.session]
        own += [
            keys.entries(stream),
            keys.session_tasks(shard, live.session),
            keys.stream_acks(stream),
        ]
        control: dict[str, ControlValue] = {
            "session": live.session,
            "sequence": live.sequence,
            "keys": [arguments.key(name) for name in own],
        }
        await self.nodes.run(_FORGET_SESSION, shard, arguments.keys, control)
