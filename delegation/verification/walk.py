"""The validator: replays every stored stream and compares the result with the stored snapshots, byte for byte.

It trusts no derived data (I4, VAL-1). Sequences must be dense and the chain unbroken; the fields of an entry must
match its envelope; an event must have the ids of its class (ENV-6); a snapshot must be the fold of its facts; and a
task that has not ended must have a living driver, a due row or an open question, so that something moves it on.

On request, what is derived from the records is also rebuilt, compared and repaired. It may run while a gateway works:
what changed meanwhile is read again. Facts and records are never written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import ArchiveDamaged, NotFound, RecordDamaged
from passerelle.core.ids import ALL_SHARDS, read_shard
from passerelle.core.machine import read_loaded
from passerelle.core.policy.edited_rules import EditedRules
from passerelle.core.policy.grant import Grants
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.delegation.verification.content import find_missing_content
from passerelle.delegation.verification.drive import find_undriven
from passerelle.delegation.verification.rebuild import compare_rebuilt
from passerelle.delegation.verification.repair import repair_session
from passerelle.delegation.verification.report import Problem, VerifyReport
from passerelle.delegation.verification.strays import (
    find_stray_rows,
    repair_stray,
    still_strays,
)
from passerelle.delegation.verification.stream import (
    check_chain,
    compare_all,
    count_events,
    replay_session,
)
from passerelle.delegation.verification.subset import ALL, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from passerelle.core.batch import Loaded
    from passerelle.delegation.verification.stream import SessionReplay
    from passerelle.delegation.verification.subset import SessionSubset
    from passerelle.store.store import Store

_AT_ONCE: Final = 256
_LOOKS: Final = 8


async def verify_store(
    store: Store,
    session: str | None = None,
    *,
    rebuild: bool = False,
    repair: bool = False,
    subset: SessionSubset = ALL,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> VerifyReport:
    """Verifies one session, those of a ``subset``, or all of them and that no snapshot exists outside of them.

    With ``rebuild``, also rebuilds what is derived from the records from the streams: read models, lists, open sets,
    inboxes. With ``repair``, also writes what differs. ``on_progress(done, total)`` is called after each session.

    Raises:
        NotFound: there is no such session.
        StoreUnavailable: the store does not answer.
    """
    walk = Walk(store, rebuild or repair, repair)
    if session is not None:
        await walk.verify(session)
        if not walk.report.sessions:
            raise NotFound("session", session)
        return walk.report
    inventory = await store.inspection.list_entities()
    sessions = {ref.id for ref in inventory if ref.kind is EntityKind.SESSION}
    archived = set(await walk.list_archived())
    chosen = await choose(store.log, sessions | archived, subset)
    walk.report.archived = len(archived.intersection(chosen))
    for done, name in enumerate(chosen, 1):
        await walk.verify(name)
        on_progress(done, len(chosen))
    if subset.is_all:
        await walk.verify_strays(inventory)
    if subset.is_all and walk.rebuild:
        await walk.verify_rows()
    return walk.report


@dataclass(slots=True)
class Walk:
    """One pass over a store: the findings, and the entities that the replays gave."""

    store: Store
    rebuild: bool = False
    repair: bool = False
    report: VerifyReport = field(default_factory=VerifyReport)
    seen: set[str] = field(default_factory=set[str])
    trimmed: set[str] = field(default_factory=set[str])
    replayed: set[EntityRef] = field(default_factory=set[EntityRef])

    async def list_archived(self) -> list[str]:
        """The archived sessions; an unreadable segment is a problem."""
        found = list[str]()
        for shard in ALL_SHARDS:
            for segment in await self.store.archive.list_segments(shard):
                try:
                    found += await self.store.archive.list_archived(shard, segment)
                except ArchiveDamaged as error:
                    problem = Problem("archive", "no session", segment.name.sha256, error.reason)
                    self.report.problems.append(problem)
        return found

    async def verify(self, session: str) -> None:
        """Verifies a session, if its stream exists. One that cannot be read is a problem, and the next one is read."""
        self.seen.add(session)
        try:
            replay = await replay_session(self.store.log, session) if read_shard(session) else None
            if replay is not None:
                await self._verify_replay(session, replay)
        except ArchiveDamaged as error:
            self.report.problems.append(Problem("archive", session, session, error.reason))
        except ValueError as error:
            self.report.problems.append(Problem("damaged", session, session, str(error)))

    async def _verify_replay(self, session: str, replay: SessionReplay) -> None:
        report = self.report
        report.sessions += 1
        count_events(replay.events, report)
        report.problems += [*replay.problems, *check_chain(session, replay.head, replay.entries)]
        self.replayed |= replay.states.keys()
        if not replay.is_whole:
            self.trimmed.add(session)
            report.trimmed += 1
            return
        report.problems += compare_all(replay, report)
        report.problems += await find_undriven(self.store, replay)
        report.problems += await find_missing_content(self.store, replay)
        if self.rebuild:
            report.problems += await self._rebuild(session)
            report.rebuilt += 1

    async def verify_rows(self) -> None:
        """Finds rows of lists and inboxes without a record: no session of theirs reports them."""
        for stray in await find_stray_rows(self.store):
            if not self.repair:
                self.report.problems.append(stray.problem)
                continue
            await repair_stray(self.store, stray)
            is_left = await still_strays(self.store, stray)
            problems = self.report.problems if is_left else self.report.repaired
            problems.append(stray.problem)

    async def _rebuild(self, session: str) -> list[Problem]:
        """Differences that exist while the session is not written, and that were not repaired."""
        if self.repair:
            one = await repair_session(self.store, session)
            self.report.repaired += [found for found in one.found if found not in one.left]
            return [*one.left]
        looks = 0
        while True:
            looks += 1
            replay = await replay_session(self.store.log, session)
            if replay is None:
                return []
            found = await compare_rebuilt(self.store, replay)
            stream = StreamRef(StreamKind.SESSION, session)
            if (
                not found
                or looks == _LOOKS
                or await self.store.log.read_head(stream) == replay.head
            ):
                return found

    async def verify_strays(self, inventory: Iterable[EntityRef]) -> None:
        """Checks snapshots that no replay gave: their session is trimmed, newer than the list, or without facts."""
        refs = [ref for ref in inventory if ref not in self.replayed]
        for part in in_chunks(refs, _AT_ONCE):
            for loaded in await self._load(part):
                if loaded.snapshot:
                    await self._verify_stray(loaded)

    async def _load(self, refs: Sequence[EntityRef]) -> Sequence[Loaded]:
        """The entities; one that cannot be read is a problem."""
        try:
            return await self.store.log.load(refs)
        except ValueError as error:
            if len(refs) == 1:
                problem = Problem("damaged", "no session", refs[0].id, str(error))
                self.report.problems.append(problem)
                return []
        return [loaded for ref in refs for loaded in await self._load([ref])]

    async def _verify_stray(self, loaded: Loaded) -> None:
        session = _read_session(loaded)
        if session not in self.seen:
            await self.verify(session)
        if loaded.ref in self.replayed or session in self.trimmed:
            return
        if loaded.ref.id != session:  # a session's own snapshot was compared with its stream
            detail = "a snapshot without facts"
            problem = Problem("stray", session or "no session", loaded.ref.id, detail)
            self.report.problems.append(problem)


def _read_session(loaded: Loaded) -> str:
    try:
        record = read_loaded(loaded)
    except RecordDamaged:
        return ""
    if record is None:
        return ""
    if isinstance(record, Grants | EditedRules):
        return loaded.ref.id
    return record.scope.session_id if isinstance(record, ActionRecord) else record.session_id
