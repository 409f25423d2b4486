"""Resolves an id from a caller to a record for its owner only: the one place that does (TR-10)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade, read_shard
from passerelle.core.machine import KIND_OF
from passerelle.core.principal import AccessScope
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Visibility
from passerelle.runtime.records.exposures import view_exposure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.decision import Held
    from passerelle.core.principal import Principal
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.writes import Writes


S = TypeVar("S", SessionRecord, ThreadRecord)
NOTHING_KNOWN: Final[Mapping[EntityRef, Held]] = MappingProxyType({})
"""No preloaded entities: everything is read."""


@frozen
class Owned:
    """A task of the caller as stored."""

    ref: EntityRef
    held: Held
    record: TaskRecord


def may_see(principal: Principal, record: TaskRecord) -> bool:
    """Whether a task is the caller's and visible to it: a hidden task requires the operate scope (TR-6).

    It is visible only if the caller may use its agent, which may be the one it was routed to.
    """
    if record.owner != principal.key or not principal.sees(record.agent):
        return False
    return record.visibility is not Visibility.HIDDEN or AccessScope.OPERATE in principal.scopes


def may_read(principal: Principal, record: TaskRecord) -> bool:
    """Whether read models show a task to a caller: it may see the task, and may read tasks of its agent."""
    allowed = not principal.operations or principal.may_use(record.kind, Method.GET_TASK)
    return allowed and may_see(principal, record)


def hide_unread(principal: Principal, records: Iterable[TaskRecord]) -> list[TaskRecord | None]:
    """The records in their order, with None for each that the caller may not read."""
    return [one if may_read(principal, one) else None for one in records]


async def find_hidden(
    writes: Writes, principal: Principal, tasks: Iterable[str | None]
) -> frozenset[str]:
    """Of the tasks that events of a caller's session name, those that it may not read.

    A task of the session may belong to another owner by now, or to an agent that the caller may not use.
    """
    records = await writes.read_all(TaskRecord, (one for one in tasks if one))
    return frozenset(name for name, one in records.items() if not may_read(principal, one))


def may_oversee(principal: Principal, record: TaskRecord) -> bool:
    """Whether a task is in the tenant that the principal oversees, and of an agent whose tasks it may read."""
    return AccessScope.OVERSEE_TASKS in principal.scopes and _is_near(principal, record)


def _is_near(principal: Principal, record: TaskRecord) -> bool:
    return (
        record.scope.tenant == principal.tenant
        and (record.visibility is not Visibility.HIDDEN or AccessScope.OPERATE in principal.scopes)
        and principal.sees(record.kind)
    )


async def find_own(writes: Writes, kind: type[S], principal: Principal, name: str) -> S:
    """A session or thread of the caller.

    Raises:
        NotFound: unknown, or another principal's: the two look the same.
    """
    record, _ = await load_own(writes, kind, principal, name)
    return record


async def load_own(
    writes: Writes, kind: type[S], principal: Principal, name: str, shown: str | None = None
) -> tuple[S, Held]:
    """The same with its entity; ``shown`` is what the error calls it."""
    if read_shard(name) is not None:
        held = await writes.load_one(EntityRef(KIND_OF[kind], name))
        if isinstance(held.record, kind) and held.record.owner == principal.key:
            return held.record, held
    raise NotFound(shown or KIND_OF[kind], name)


@frozen
class Ownership:
    """Finds tasks for their owners."""

    writes: Writes
    arrivals: InboxArrivals
    """Records owners of tasks with open approvals: the read is about to show these to them."""

    async def find(
        self,
        principal: Principal,
        facade: str,
        agent: str | None,
        *,
        hidden: bool = False,
        known: Mapping[EntityRef, Held] = NOTHING_KNOWN,
    ) -> Owned:
        """A task of the caller as callers see it under this id; ``hidden`` returns it as stored, whether shown or not.

        ``known``: entities that need no read.

        Raises:
            NotFound: unknown, another owner's, of another agent, not shown to callers, or not meant for them: all look
                the same (G3).
        """
        owned = await (self._find if hidden else self.find_for)(principal.key, facade, known)
        record = owned.record
        seen = hidden or (record.shown and record.visibility is not Visibility.HIDDEN)
        if (agent is not None and record.kind != agent) or not (
            seen and may_see(principal, record)
        ):
            raise NotFound("task", facade)
        return owned

    async def find_operated(
        self, principal: Principal, facade: str, agent: str | None, *, hidden: bool = False
    ) -> Owned:
        """The same, or a task of another owner in the tenant, for a caller with the scope to operate tasks.

        Raises:
            NotFound: as for ``find``.
        """
        try:
            return await self.find(principal, facade, agent, hidden=hidden)
        except NotFound:
            parsed = parse_facade(facade)
            if AccessScope.OPERATE_TASKS not in principal.scopes or agent or parsed is None:
                raise
            ref = EntityRef(EntityKind.TASK, parsed[0])
            held = await self.writes.load_one(ref)
            record = held.record
            if (
                not isinstance(record, TaskRecord)
                or not _is_near(principal, record)
                or parsed[1] > record.exposure
            ):
                raise
            return Owned(ref, held, record)

    async def find_for(
        self, owner: str, facade: str, known: Mapping[EntityRef, Held] = NOTHING_KNOWN
    ) -> Owned:
        """A task of an owner under one of its ids, shown to callers or not.

        Raises:
            NotFound: unknown, or another owner's.
        """
        owned, parsed = await self._find(owner, facade, known), parse_facade(facade)
        held = view_exposure(owned.held, parsed[1] if parsed else 1)
        if held is None or not isinstance(held.record, TaskRecord):
            raise NotFound("task", facade)
        return Owned(owned.ref, held, held.record)

    async def _find(self, owner: str, facade: str, known: Mapping[EntityRef, Held]) -> Owned:
        parsed = parse_facade(facade)
        if parsed is None:
            raise NotFound("task", facade)
        ref = EntityRef(EntityKind.TASK, parsed[0])
        held = known[ref] if ref in known else await self.writes.load_one(ref)
        record = held.record
        if (
            not isinstance(record, TaskRecord)
            or record.owner != owner
            or parsed[1] > record.exposure
        ):
            raise NotFound("task", facade)
        if record.open_actions:
            self.arrivals.note(owner, ref.shard)
        return Owned(ref, held, record)
