"""Snapshots for list streams: the newest rows of a caller's tasks and jobs, as in the lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.index_changes import JOBS
from passerelle.core.read_models.jobs import show_job
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task.requests import ListRecords
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.task_lists import TaskLists
    from passerelle.runtime.records.writes import Writes

_ROWS: Final = 100


@frozen
class ListStates:
    """Reads list snapshots; ``more``: the list has older rows. All raise StoreUnavailable."""

    writes: Writes
    projections: Projections
    tasks: TaskLists

    async def read_tasks(self, principal: Principal, *, every: bool = False) -> JsonObject:
        """The tasks whose status changed last; ``every``: of all owners that the principal oversees."""
        asked = ListRecords(page_size=_ROWS, owners="all" if every else "mine")
        page = await self.tasks.list_tasks(principal, asked)
        return {"rows": page["tasks"], "more": bool(page["nextPageToken"])}

    async def read_jobs(self, principal: Principal) -> JsonObject:
        """The newest jobs."""
        page = await self.projections.read_index(principal.key, JOBS, None, _ROWS + 1)
        records = await self.writes.read_all(SessionRecord, (name for name, _ in page[:_ROWS]))
        jobs = map(show_job, records.values())
        rows: list[Json] = [to_wire(job) for job in jobs if job is not None]
        return {"rows": rows, "more": len(page) > _ROWS}
