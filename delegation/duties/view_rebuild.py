"""Rebuilds views after a loss; the instance with the duty of the shard whose records they show does it (I10).

Two kinds of loss lead here, each as a row in the due set of that shard, so that a crash loses no work:

- A target has lost rows that the feed does not reach back to. ``rebuild:<shard>:0``: everything derived from the
  sessions of the shard is rewritten from their streams.
- The shard itself has lost its tail. ``rebuild:<shard>:<ms>``: rows in other shards that name lost entities are
  removed, unless they are older than that time; and sessions with open entities are compared, since an approval request
  whose end was in the tail is open again and missing from the inboxes.

A rebuild may take long, so it runs apart from the due loop: the row comes back until it is done. Facts and records are
not changed; where something differed in a session, the rebuild is a fact of its own (EXT-11).
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.errors import PasserelleError
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard, shard_of
from passerelle.core.payloads.history import HistoryReconstructed
from passerelle.delegation.verification.repair import repair_session
from passerelle.delegation.verification.strays import find_stray_rows, repair_stray
from passerelle.protocol.concurrency import cancel_all
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.decision import Decision
    from passerelle.core.ports.due import DueRow
    from passerelle.delegation.duties.factless_writes import FactlessWrites
    from passerelle.delegation.verification.repair import SessionRepair
    from passerelle.runtime.records.writes import Writes
    from passerelle.store.store import Store

REBUILD: Final = "rebuild"
_LOOK_AGAIN_MS: Final = 500
_TRY_AGAIN_S: Final = 5.0
_REACH_MS: Final = 3_600_000
"""A promoted replica lags by less than this; otherwise ``passerelle verify --repair`` finds the rest."""
_EVERYTHING: Final = 0
_RECORDED_MS: Final = 60_000


@dataclass(slots=True)
class ViewRebuild:
    """Handles the rows ``rebuild:<shard>:<ms>``."""

    store: Store
    writes: Writes
    factless_writes: FactlessWrites
    log: FilteringBoundLogger
    wake: Callable[[Shard], None]
    """Has the due loop visit a shard at once."""
    _wanted: dict[str, tuple[Shard, int]] = field(default_factory=dict[str, "tuple[Shard, int]"])
    _done: set[str] = field(default_factory=set[str])
    _work: asyncio.Task[None] | None = None

    async def schedule_all(self, shard: Shard) -> None:
        """Schedules a rebuild of everything that is derived from a shard.

        Raises:
            StoreUnavailable: nothing is scheduled.
        """
        self.log.warning("relay.too_old", source=shard.tag)
        await self._schedule(shard, _EVERYTHING)

    async def schedule_lost(self, shard: Shard, epoch: int) -> None:
        """Schedules the repair of a shard's lost tail; its new epoch is about the time of discovery, in ms.

        Raises:
            StoreUnavailable: nothing is scheduled.
        """
        await self._schedule(shard, max(epoch - _REACH_MS, _EVERYTHING + 1))

    async def rebuild(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """Starts the work if it is not running, and settles the row once it is done.

        Raises:
            StoreUnavailable: the row stays.
        """
        if row.member in self._done:
            self._done.discard(row.member)
            await self.factless_writes.drop_row(shard, row)
            return
        if row.member not in self._wanted:
            since_ms = int(row.member.rpartition(":")[2])
            self._wanted[row.member] = (shard, since_ms)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._work_off(), name="rebuild")
        again = DueChange(row.member, now_ms + _LOOK_AGAIN_MS)
        await self.factless_writes.write(shard, claim=row, due=(again,))

    async def close(self) -> None:
        """Cancels the work; its rows stay."""
        if self._work is not None:
            await cancel_all([self._work])

    async def _schedule(self, shard: Shard, since_ms: int) -> None:
        member = f"{REBUILD}:{shard.tag}:{since_ms}"
        self._done.discard(member)
        await self.factless_writes.write(shard, due=(DueChange(member, 1),))
        self.wake(shard)

    async def _work_off(self) -> None:
        """Works on all requests together: a search for stray rows scans all shards."""
        while self._wanted:
            batch = dict(self._wanted)
            try:
                await self._rebuild_all(batch)
            except PasserelleError as error:
                self.log.warning("views.not_rebuilt", reason=str(error))
                await asyncio.sleep(_TRY_AGAIN_S)
                continue
            except Exception:
                self.log.exception("views.not_rebuilt")
                await asyncio.sleep(_TRY_AGAIN_S)
                continue
            for member in batch:
                self._wanted.pop(member, None)
                self._done.add(member)

    async def _rebuild_all(self, batch: dict[str, tuple[Shard, int]]) -> None:
        whole = {shard for shard, since_ms in batch.values() if since_ms == _EVERYTHING}
        since = {shard: ms for shard, ms in batch.values() if ms != _EVERYTHING}
        repaired = 0
        for session in await self._list_sessions(whole):
            await self._repair(session, has_lost=True)
            repaired += 1
        for session in await self.store.inspection.list_open_sessions():
            if shard_of(session) in since:
                repaired += await self._repair(session)
        strays = await find_stray_rows(self.store, since) if since else []
        for stray in strays:
            await repair_stray(self.store, stray)
        self.log.warning(
            "views.rebuilt",
            shards=sorted({shard.tag for shard, _ in batch.values()}),
            sessions=repaired,
            strays=len(strays),
        )

    async def _repair(self, session: str, *, has_lost: bool = False) -> bool:
        """Repairs a session; whether something differed."""
        repair = await repair_session(self.store, session, has_lost=has_lost)
        if not repair.found:
            return False
        ref = EntityRef(EntityKind.SESSION, session)
        held = await self.writes.load_one(ref)
        # A session that has left memory is not brought back for this fact.
        if held.record is not None and held.archive is None:
            await self._record_repair(ref, repair)
        return True

    async def _record_repair(self, ref: EntityRef, repair: SessionRepair) -> None:
        payload = HistoryReconstructed("session", "crashed", 1, repair.last, repair.sha256)
        # The fact changes no record: only this row distinguishes a retry from a second fact (I2).
        name = hashlib.sha256(f"rebuilt {ref.id} {repair.last}".encode()).hexdigest()[:32]
        row = IdempotencyRow(name, name, b"", _RECORDED_MS)

        def body(decision: Decision) -> AppendOptions:
            decision.add([Fact(Scope(ref.id), payload)])
            return AppendOptions(idem=row)

        await self.writes.decide(ref.id, [ref], body)

    async def _list_sessions(self, shards: set[Shard]) -> list[str]:
        if not shards:
            return []
        entities = await self.store.inspection.list_entities()
        stored = [
            ref.id for ref in entities if ref.kind is EntityKind.SESSION and ref.shard in shards
        ]
        return [*dict.fromkeys([*stored, *await self.store.archive.list_sessions(shards)])]
