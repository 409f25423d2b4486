"""The sweeps of one instance: at intervals, each archives, checks or removes data of the instance's shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.delegation.duties.archive_sweep import ArchiveSweep
from passerelle.delegation.duties.forget_sweep import ForgetSweep
from passerelle.delegation.duties.inbox_sweep import InboxSweep
from passerelle.delegation.duties.merge_sweep import MergeSweep
from passerelle.delegation.duties.retention_sweep import RetentionSweep
from passerelle.delegation.duties.segment_sweep import SegmentSweep
from passerelle.delegation.duties.verification_sweep import VerificationSweep
from passerelle.store.archive.session_agents import SessionAgents

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.runtime.records.writes import Writes
    from passerelle.store.store import Store


@dataclass(slots=True)
class Sweeps:
    """Made by ``make_sweeps``."""

    archive: ArchiveSweep
    inboxes: InboxSweep
    segments: SegmentSweep
    merges: MergeSweep
    verification: VerificationSweep
    forgetting: ForgetSweep
    retention: RetentionSweep

    def start(self, group: asyncio.TaskGroup) -> None:
        """Runs all of them in ``group`` until it is cancelled."""
        group.create_task(self.archive.run(), name="archive")
        group.create_task(self.inboxes.run(), name="inboxes")
        group.create_task(self.segments.run(), name="segments")
        group.create_task(self.merges.run(), name="merges")
        group.create_task(self.verification.run(), name="verification")
        group.create_task(self.forgetting.run(), name="forgetting")
        group.create_task(self.retention.run(), name="retention")


@frozen
class SweepCounts:
    """Counts sessions by outcome, for the metrics."""

    archived: Callable[[str, int], None] = lambda _outcome, _sessions: None
    verified: Callable[[str, int], None] = lambda _outcome, _sessions: None
    forgotten: Callable[[str, int], None] = lambda _outcome, _sessions: None


def make_sweeps(
    store: Store,
    writes: Writes,
    duties: Callable[[], frozenset[Shard]],
    counts: SweepCounts,
    log: FilteringBoundLogger,
) -> Sweeps:
    """Builds the sweeps over the shards in ``duties()``; starts nothing."""
    archive = ArchiveSweep(
        store.ended_sessions,
        SessionAgents(store.nodes),
        store.archiver,
        store.memory,
        duties,
        writes.read_ms,
        log,
        counts.archived,
    )
    may_archive, read_ms = archive.may_archive, writes.read_ms
    forgetting = ForgetSweep(
        store.forgetting, store.session_forgetting, duties, read_ms, store.log.shard_epoch, log
    )
    return Sweeps(
        archive,
        InboxSweep(store.inboxes, duties, read_ms, log),
        SegmentSweep(store.segment_cleanup, may_archive, duties, read_ms, log),
        MergeSweep(store.segment_merge, may_archive, duties, read_ms, log),
        VerificationSweep(store, duties, writes.ids.draw, log, counts.verified),
        forgetting,
        RetentionSweep(store.session_forgetting, duties, read_ms, log, counts.forgotten),
    )
