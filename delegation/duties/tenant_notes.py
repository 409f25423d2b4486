"""Notes changes in the lists of a tenant, for subscribers that follow all of its owners.

List rows name an owner and no tenant, and are stored with the owner. When the answer of a target to its rows says that
a tenant has a follower, the records of those rows are read, and their changes are noted in the tenant's stream: after
the rows and before the mark of the feed moves. A new follower first registers with every shard and then reads the
lists, so each change is in the lists or is noted. Without a follower nothing is read and nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import Shard, parse_facade, shard_of
from passerelle.core.ports.projections import Behind, IndexRow, NoteRow, Taken
from passerelle.core.principal import name_tenant_lists
from passerelle.core.read_models.list_rows import note_task
from passerelle.core.task.record import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.batch import Loaded
    from passerelle.core.events import EncodedEvent
    from passerelle.core.machine import Record
    from passerelle.core.ports.log import FactReader
    from passerelle.core.ports.projections import Projections
    from passerelle.delegation.duties.row_delivery import FeedRows


@dataclass(slots=True)
class TenantNotes:
    """Sends the notes. ``read`` builds a record from what was loaded; None where this version cannot read it."""

    facts: FactReader
    projections: Projections
    read: Callable[[Shard, Loaded], Record | None]
    log: FilteringBoundLogger
    _taken: dict[tuple[Shard, Shard], Taken] = field(
        default_factory=dict["tuple[Shard, Shard]", Taken]
    )
    """What a target was last known to have of the notes of a source."""

    def forget(self, source: Shard) -> None:
        """Discards what is known of a source: it has a new epoch, or another owner."""
        for known in [one for one in self._taken if one[0] == source]:
            del self._taken[known]

    async def send(self, source: Shard, found: FeedRows, watched: Collection[str]) -> None:
        """Notes the tasks of these rows whose tenant has a follower. May be repeated.

        Raises:
            StoreUnavailable: the rest is sent by a retry.
        """
        notes = _list_notes(found)
        by_shard: dict[Shard, list[NoteRow]] = {}
        for task, tenant in (await self._find_tenants(source, notes)).items():
            if tenant in watched:
                by_shard.setdefault(shard_of(tenant), []).append(NoteRow(tenant, notes[task]))
        for target, rows in by_shard.items():
            await self._send_to(source, target, found[-1][0], rows)

    async def _find_tenants(self, source: Shard, notes: Collection[str]) -> dict[str, str]:
        """The key of each task's tenant, by the name under which the task is listed."""
        named = {name: parsed[0] for name in notes if (parsed := parse_facade(name)) is not None}
        refs = [EntityRef(EntityKind.TASK, task) for task in dict.fromkeys(named.values())]
        loaded = await self.facts.load(refs)
        read = {one.ref.id: self.read(source, one) for one in loaded}
        records = {name: read[task] for name, task in named.items()}
        return {
            name: name_tenant_lists(record.scope.tenant)
            for name, record in records.items()
            if isinstance(record, TaskRecord)
        }

    async def _send_to(
        self, source: Shard, target: Shard, feed_id: str, rows: list[NoteRow]
    ) -> None:
        known = self._taken.get((source, target))
        before = "" if known is None else known.mark
        answer = await self.projections.advance(source, target, feed_id, rows, before)
        if isinstance(answer, Behind):
            # Notes were lost that a follower may not have read: followers restart from the current state.
            tenants = {row.owner for row in rows}
            self.log.warning("relay.notes_lost", source=source.tag, target=target.tag)
            for tenant in sorted(tenants):
                await self.projections.restart_notes(tenant)
            answer = await self.projections.advance(source, target, feed_id, rows)
        if isinstance(answer, Taken):
            self._taken[source, target] = answer


def _list_notes(found: FeedRows) -> dict[str, EncodedEvent]:
    """The last note of each task, by the name under which the task is listed."""
    return {
        row.facade: note
        for feed_id, rows in found
        for row in rows
        if isinstance(row, IndexRow) and (note := note_task(row, feed_id)) is not None
    }
