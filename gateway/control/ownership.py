"""Whose task it is: the one place where a facade id becomes a record, for its owner and nobody else (TR-10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.ids import parse_facade
from passerelle.core.task_record import TaskRecord

if TYPE_CHECKING:
    from passerelle.core.decision import Held
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.writes import Writes


@dataclass(frozen=True, slots=True)
class Owned:
    """A task of the caller as it is stored."""

    ref: EntityRef
    held: Held
    record: TaskRecord


@dataclass(frozen=True, slots=True)
class Ownership:
    """Finds tasks for their owners."""

    writes: Writes

    async def find(
        self, principal: Principal, facade: str, agent: str | None, *, hidden: bool = False
    ) -> Owned:
        """A task of the caller; ``hidden`` finds it before callers see it as well.

        Raises:
            NotFound: unknown, another's, of another agent, or not shown to callers: all look the same (G3).
        """
        owned = await self.find_for(principal.key, facade)
        record = owned.record
        if (agent is not None and record.kind != agent) or not (record.shown or hidden):
            raise NotFound("task", facade)
        return owned

    async def find_for(self, owner: str, facade: str) -> Owned:
        """A task of an owner, shown to callers or not.

        Raises:
            NotFound: unknown, or another's.
        """
        parsed = parse_facade(facade)
        if parsed is None:
            raise NotFound("task", facade)
        ref = EntityRef(EntityKind.TASK, parsed[0])
        held = (await self.writes.load([ref]))[ref]
        record = held.record
        if (
            not isinstance(record, TaskRecord)
            or record.owner != owner
            or parsed[1] > record.exposure
        ):
            raise NotFound("task", facade)
        return Owned(ref, held, record)
