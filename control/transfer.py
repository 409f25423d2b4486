"""Transfers a task to another owner in one append; from then on it belongs to the new owner alone (TEV-5).

Session and thread keep their owner, since they are the order in which everything was stored. So the old owner's
subscriptions to the task or the whole stream end with the same append: webhooks in it, followers at its event.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from passerelle.control.task_changes import read_task
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.index_changes import list_rows
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session.machine import SessionRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import DescribeTask
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import TaskGiven
from passerelle.core.task.status import Visibility
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.ownership import may_see
from passerelle.runtime.records.writes import AppendOptions
from passerelle.webhooks.push_configs import forget_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.task_changes import TaskChanges
    from passerelle.core.decision import Decision
    from passerelle.core.events import Fact
    from passerelle.core.ports.channels import Channels
    from passerelle.core.task.requests import GiveTask
    from passerelle.webhooks.stream_webhooks import StoredWebhook, StreamWebhooks

MAX_TRANSFERRED: Final = 64
_FAMILY: Final = frozenset({"parent", "child", "blocks", "blocked_by"})


@frozen
class TaskTransfers:
    """Transfers tasks to other owners."""

    changes: TaskChanges
    find_principal: Callable[[str, str], Principal | None]
    channels: Channels
    webhooks: StreamWebhooks

    async def transfer(
        self, principal: Principal, command: GiveTask, idem: str | None
    ) -> TaskGiven:
        """Transfers a task of the caller, or any task of its tenant if the caller operates the runtime.

        A repeat gets the first answer, although the task is no longer the caller's.

        Raises:
            NotFound: no such task that the caller may transfer.
            InvalidInput: the new owner is unknown, or may not have the task.
            UnsupportedOperation: the task has ended, or cannot be separated from its owner now.
            VersionMismatch: the caller read an older version.
            IdempotencyConflict: the key was used for another request.
        """
        writes, once = self.changes.writes, make_once(principal, command, idem)
        task, exposure = _name(command.task_id)
        first = await once.find(writes.log, task.shard)
        if first is not None:
            return _read_first(first)
        record = (await writes.load_one(task)).record
        if (
            not isinstance(record, TaskRecord)
            or not _may_transfer(principal, record)
            or exposure > record.exposure
        ):
            raise NotFound("task", command.task_id)
        new_owner = self._find_new_owner(principal, command, record)
        session = EntityRef(EntityKind.SESSION, record.session_id)
        gone: list[StoredWebhook] = []

        def body(decision: Decision) -> AppendOptions:
            before = read_task(decision, task, command.version)
            if not _may_transfer(principal, before):
                raise NotFound("task", command.task_id)
            facts = decide_transfer(before, new_owner)
            if not facts:
                return AppendOptions()
            _check_room(decision.state(session))
            ended, webhooks = self.webhooks.end_all(decision, session, task.id)
            gone[:] = webhooks
            targets = (*forget_all(decision, task, before), *ended)
            decision.add(facts)
            given = TaskGiven(task.id, new_owner.id, decision.version(task) + 1)
            return AppendOptions(targets=targets, idem=once.remember(to_bytes(given).decode()))

        written = await writes.change(record.session_id, [task, session], body)
        if written.repeated is not None:
            return _read_first(written.repeated)
        if not written.unchanged:
            await self._follow_up(task, record, written.held[task].record, gone)
        return TaskGiven(task.id, new_owner.id, written.held[task].stamp.version)

    def _find_new_owner(
        self, principal: Principal, command: GiveTask, record: TaskRecord
    ) -> Principal:
        """An unknown principal and one that may not have the task look the same: principals cannot be probed."""
        new_owner = self.find_principal(command.owner, principal.tenant)
        hidden = record.visibility is Visibility.HIDDEN
        if (
            new_owner is None
            or not new_owner.may_call(record.agent)
            or (hidden and AccessScope.OPERATE not in new_owner.scopes)
        ):
            raise InvalidInput("owner", "is not known here, or may not have tasks of this agent")
        return new_owner

    async def _follow_up(
        self,
        task: EntityRef,
        before: TaskRecord,
        after: object,
        gone: list[StoredWebhook],
    ) -> None:
        """Steps outside of the append; the relay, periodic rechecks and readers perform them as well."""
        dispatch = self.changes.dispatch
        if isinstance(after, TaskRecord):
            for row in list_rows(before, after):
                await dispatch.list_row(row)
        await self.changes.notify_driver(task)
        for stored in gone:
            with suppress(StoreUnavailable):
                await self.webhooks.record_left(stored)
        with suppress(StoreUnavailable):
            await self.channels.notify_devices(before.owner)


def decide_transfer(record: TaskRecord, new_owner: Principal) -> list[Fact]:
    """``task.updated`` with the old and the new owner; nothing if the owner is the same.

    Raises:
        UnsupportedOperation: the task has ended (LT-12), or is tied to its owner.
    """
    old, new = record.scope.principal, new_owner.id
    facts = tasks.decide(record, DescribeTask({"owner": {"old": old, "new": new}}))
    if record.owner == new_owner.key:
        return []
    if record.open_actions:
        message = "an approval of the task is pending: it has to be decided or withdrawn first"
        raise UnsupportedOperation(
            message, why="open_question", actions=" ".join(record.open_actions)
        )
    if record.exposure > 1:
        message = "callers have seen the task end before it was retried: that history cannot be transferred"
        raise UnsupportedOperation(message, why="exposed_before")
    if (reason := _find_relation(record)) is not None:
        message, related = reason
        raise UnsupportedOperation(message, why="related", tasks=" ".join(related))
    return facts


def _find_relation(record: TaskRecord) -> tuple[str, list[str]] | None:
    """Why the task is tied to its owner, and to which tasks. Edges can be removed; parents and jobs cannot."""
    family = [
        edge for edge in record.relationships if edge.kind in _FAMILY and edge.status != "removed"
    ]
    targets = [edge.target for edge in family]
    if record.parent_task_id is not None:
        part = f"the task was created as a part of {record.parent_task_id} and has its owner"
        return f"{part}: create one for the new owner instead", targets
    job = next((edge.target for edge in family if edge.items is not None), None)
    if job is not None:
        part = f"the task has delegated {job}, whose tasks are its owner's"
        return f"{part}: create one for the new owner instead", targets
    if family:
        return (
            "other tasks of its owner wait for the task, or it for them: unlink them first",
            targets,
        )
    return None


def _check_room(session: object) -> None:
    """A session lists its transferred tasks, and its record must stay small."""
    if isinstance(session, SessionRecord) and len(session.given) >= MAX_TRANSFERRED:
        message = f"{MAX_TRANSFERRED} tasks of the session have been transferred already"
        raise UnsupportedOperation(message, why="too_many_given")


def _may_transfer(principal: Principal, record: TaskRecord) -> bool:
    if AccessScope.OPERATE in principal.scopes:
        return record.scope.tenant == principal.tenant
    return may_see(principal, record)


def _name(facade: str) -> tuple[EntityRef, int]:
    """The task and the exposure of a facade id."""
    parsed = parse_facade(facade)
    if parsed is None:
        raise NotFound("task", facade)
    return EntityRef(EntityKind.TASK, parsed[0]), parsed[1]


def _read_first(stored: bytes) -> TaskGiven:
    return change(from_bytes(TaskGiven, stored), repeated=True)
