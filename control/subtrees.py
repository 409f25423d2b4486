"""Pauses, resumes or retries a task and every task below it (CMD-31).

The request is stored on the top task first, with a due row (I9); then each task gets a command of its own, nearest
first, under a key derived from the request: a task that was handled before a crash is not handled again. The caller
waits for the first :data:`MOST_AT_ONCE` tasks, the others follow after the answer or by the row. A later request for
the same tree replaces one that is not finished. Tasks that are created below it later are not reached.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from passerelle.control.task_changes import read_task, render_change
from passerelle.core.batch import DueChange, DueClaim, EntityKind, EntityRef
from passerelle.core.errors import (
    IdempotencyConflict,
    PasserelleError,
    StoreUnavailable,
    VersionMismatch,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, derive_id, expose
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import SuspendTask
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import (
    PauseTask,
    ResumeTask,
    RetryTask,
    SubtreeChanged,
    TaskChanged,
    UnchangedTask,
)
from passerelle.core.task.status import TERMINAL, Status
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change, record
from passerelle.runtime.records.family import list_below
from passerelle.runtime.records.idempotency import Once, make_once
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from passerelle.control.task_changes import TaskChanges
    from passerelle.core.batch import IdempotencyRow
    from passerelle.core.commands import OtherCommand, Result
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.runtime.records.ownership import Owned

    Verb: TypeAlias = PauseTask | ResumeTask | RetryTask
    Handle: TypeAlias = Callable[[Principal, Verb, str | None], Awaitable[Result]]

TREE: Final = "tree"
"""Kind of the due row, and name of the field, of a task with a pending subtree request."""
MOST_AT_ONCE: Final = 256
"""Tasks that a caller, or one handling of the due row, waits for."""
_GRACE_MS: Final = 10_000
_MOST_REMEMBERED: Final = 64
"""Requests whose progress an instance remembers."""
_NAMED: Final = 64
"""Refusing tasks that an answer names."""
_BEGUN_AGAIN: Final = (TERMINAL - {Status.COMPLETED}) | {Status.LOST}


@record
class SubtreeRequest:
    """A request for a subtree, stored until it is finished."""

    verb: Literal["pause", "resume", "retry"]
    key: str
    reason: str | None = None
    agent: str | None = None
    """The agent for the top task, if one was named."""
    idem: str | None = None
    """The caller's idempotency key; it is recorded as used once a task has accepted the verb."""
    digest: str | None = None
    """Distinguishes requests under that key."""


@dataclass(slots=True)
class SubtreeProgress:
    """The progress of a request: the handled tasks, and their results."""

    handled: set[str] = field(default_factory=set[str])
    changed: int = 0
    unchanged: list[UnchangedTask] = field(default_factory=list[UnchangedTask])
    refusal: PasserelleError | None = None
    """The error of the top task."""


@frozen
class Subtrees:
    """Applies verbs to subtrees. ``execute`` runs a command for one task, with all policy checks."""

    changes: TaskChanges
    find_principal: Callable[[str, str], Principal | None]
    execute: Callable[[Principal, OtherCommand, str | None], Awaitable[Result]]
    _progress: dict[str, SubtreeProgress] = field(default_factory=dict[str, SubtreeProgress])
    """The progress of due rows on this instance, by the keys of their requests."""

    def over(self, handle: Handle) -> Handle:
        """Wraps the handler of a verb for one task, so that it also reaches the tasks below."""

        async def change(principal: Principal, command: Verb, idem: str | None) -> Result:
            if command.propagation == "none":
                return await handle(principal, command, idem)
            return await self._change(principal, command, idem, handle)

        return change

    async def _change(
        self, principal: Principal, command: Verb, idem: str | None, handle: Handle
    ) -> TaskChanged:
        """Stores the request, and applies it to the task and those below it.

        Raises:
            NotFound: no such task of the caller.
            VersionMismatch, IdempotencyConflict: nothing is written.
            UnsupportedOperation: neither the task nor one below it accepts the verb.
        """
        changes = self.changes
        owned = await changes.ownership.find(principal, command.task_id, None, hidden=True)
        once = make_once(principal, command, idem)
        before = _read_request(owned.held.fields)
        is_under_way = _is_same(before, once)
        if is_under_way or await once.find(changes.writes.log, owned.ref.shard) is not None:
            return render_change(owned.held, repeated=True)
        # The name is derived from the caller's key, so that two concurrent requests handle no task twice.
        shard = owned.ref.shard
        name = (
            derive_id("tree", shard, once.key)
            if once.key
            else changes.writes.ids.mint("tree", shard)
        )
        request = _make_request(command, name)
        request = change(request, idem=once.key, digest=once.digest if once.key else None)

        # The key of a replaced request must be recorded here.
        used = await self._remember(owned.ref, before)

        def body(decision: Decision) -> AppendOptions:
            read_task(decision, owned.ref, command.version)
            is_before = decision.fields(owned.ref).get(TREE) == owned.held.fields.get(TREE)
            decision.set_field(owned.ref, TREE, to_bytes(request))
            row = DueChange(_name_row(owned.ref), decision.now_ms + _GRACE_MS)
            return AppendOptions(idem=used if is_before else None, due=(row,))

        try:
            await changes.writes.change(owned.record.session_id, [owned.ref], body)
        except VersionMismatch:
            # A concurrent request with this key may have stored its state; the key itself is stored when it is
            # finished.
            now = await changes.ownership.find(principal, command.task_id, None, hidden=True)
            if _is_same(_read_request(now.held.fields), once):
                return render_change(now.held, repeated=True)
            raise
        return await self._apply(principal, owned, request, handle)

    async def _apply(
        self, principal: Principal, owned: Owned, request: SubtreeRequest, handle: Handle
    ) -> TaskChanged:
        """Applies a stored request to the task and, as far as the caller waits for it, to those below it."""
        changes, progress = self.changes, SubtreeProgress()
        await changes.notify_driver(owned.ref)
        await self._handle_top(principal, owned, request, handle, progress)
        done = await self._handle_below(principal, owned.ref, request, progress)
        if done:
            await self._forget(owned.ref, request, is_used=bool(progress.changed))
        else:
            changes.dispatch.detach(self._handle_rest(principal, owned.ref, request, progress))
        if progress.refusal is not None and done and not progress.changed:
            raise progress.refusal
        subtree = SubtreeChanged(progress.changed, done, tuple(progress.unchanged[:_NAMED]))
        held = await changes.writes.load_one(owned.ref)
        return replace(render_change(held), subtree=subtree)

    async def _handle_top(
        self,
        principal: Principal,
        owned: Owned,
        request: SubtreeRequest,
        handle: Handle,
        progress: SubtreeProgress,
    ) -> None:
        """The top task's command has passed the policy checks already."""
        try:
            await handle(
                principal, _make_command(request, owned.ref.id, request.agent), request.key
            )
            progress.changed += 1
        except StoreUnavailable:
            raise
        except PasserelleError as error:
            progress.refusal = error
            progress.unchanged.append(_refuse(owned.record, error))

    async def on_due(self, shard: Shard, row: DueRow, drop: DropRow) -> None:
        """``tree:<task>``: handles the remaining tasks; the row is dropped when none is left."""
        ref = EntityRef(EntityKind.TASK, row.entity)
        held = await self.changes.writes.load_one(ref)
        request, top = held.fields.get(TREE), held.record
        if request is None or not isinstance(top, TaskRecord):
            await drop(shard, row)
            return
        stored_request = from_bytes(SubtreeRequest, request)
        principal = self.find_principal(top.scope.principal, top.scope.tenant)
        if principal is not None:
            progress = self._recall(stored_request)
            if not progress.handled:
                await self._handle_one(
                    principal, top, stored_request, progress, stored_request.agent
                )
            if not await self._handle_below(principal, ref, stored_request, progress):
                return  # the row comes due again
        await self._forget(ref, stored_request, row)
        self._progress.pop(stored_request.key, None)

    def _recall(self, request: SubtreeRequest) -> SubtreeProgress:
        """The progress of a request's row here: a task that refused the verb is not asked again at each handling."""
        known = self._progress.get(request.key)
        if known is None:
            while len(self._progress) >= _MOST_REMEMBERED:
                del self._progress[next(iter(self._progress))]
            known = self._progress[request.key] = SubtreeProgress()
        return known

    async def _handle_rest(
        self,
        principal: Principal,
        top: EntityRef,
        request: SubtreeRequest,
        progress: SubtreeProgress,
    ) -> None:
        """Handles what the caller does not wait for; if it fails, the due row continues."""
        with suppress(PasserelleError):
            while not await self._handle_below(principal, top, request, progress):
                pass
            await self._forget(top, request, is_used=bool(progress.changed))

    async def _handle_below(
        self,
        principal: Principal,
        top: EntityRef,
        request: SubtreeRequest,
        progress: SubtreeProgress,
    ) -> bool:
        """Handles up to :data:`MOST_AT_ONCE` tasks below one; returns whether all are handled.

        Raises:
            StoreUnavailable: the due row continues.
        """
        left = MOST_AT_ONCE
        while True:
            held = await self.changes.writes.load_one(top)
            stored = held.fields.get(TREE)
            if not isinstance(held.record, TaskRecord) or stored != to_bytes(request):
                return True  # another request has replaced it
            below = await list_below(self.changes.writes, held.record.owner, held.record, principal)
            wanted = [
                one.record
                for one in below
                if one.ref.id not in progress.handled and _takes(request, one.record)
            ]
            if not wanted or not left:
                return not wanted
            for one in wanted[:left]:
                await self._handle_one(principal, one, request, progress)
            left -= len(wanted[:left])

    async def _handle_one(
        self,
        principal: Principal,
        task: TaskRecord,
        request: SubtreeRequest,
        progress: SubtreeProgress,
        agent: str | None = None,
    ) -> None:
        try:
            command = _make_command(request, task.task_id, agent)
            answer = await self.execute(principal, command, request.key)
        except StoreUnavailable:
            raise
        except PasserelleError as error:
            progress.handled.add(task.task_id)
            progress.unchanged.append(_refuse(task, error))
            return
        progress.handled.add(task.task_id)
        progress.changed += isinstance(answer, TaskChanged) and not answer.repeated

    async def _forget(
        self,
        top: EntityRef,
        request: SubtreeRequest,
        claim: DueClaim | None = None,
        *,
        is_used: bool = True,
    ) -> None:
        """Removes the request and its row, unless another request has replaced it.

        ``is_used``: whether to record the key; the key of an entirely refused request may be used again.
        """
        record = (await self.changes.writes.load_one(top)).record
        if not isinstance(record, TaskRecord):
            return

        used = await self._remember(top, request) if is_used else None

        def body(decision: Decision) -> AppendOptions:
            if decision.fields(top).get(TREE) != to_bytes(request):
                return AppendOptions()
            decision.set_field(top, TREE, None)
            if claim is not None:
                return AppendOptions(claim=claim, idem=used)
            return AppendOptions(due=(DueChange(_name_row(top), None),), idem=used)

        await self.changes.writes.decide(record.session_id, [top], body)
        await self.changes.notify_driver(top)

    async def _remember(
        self, top: EntityRef, request: SubtreeRequest | None
    ) -> IdempotencyRow | None:
        """The idempotency row of a request; None if it has no key, or the key is recorded already."""
        if request is None or request.idem is None:
            return None
        log = self.changes.writes.log
        known = await log.read_idempotency(top.shard, request.idem)
        return (
            None if known is not None else Once(request.idem, request.digest or "").remember(top.id)
        )


def _read_request(fields: Mapping[str, bytes]) -> SubtreeRequest | None:
    stored = fields.get(TREE)
    return None if stored is None else from_bytes(SubtreeRequest, stored)


def _is_same(request: SubtreeRequest | None, once: Once) -> bool:
    """Whether an unfinished request is of this same command.

    Raises:
        IdempotencyConflict: the key is that of another command.
    """
    if request is None or once.key is None or request.idem != once.key:
        return False
    if request.digest != once.digest:
        raise IdempotencyConflict("the idempotency key was used for another request")
    return True


def _takes(request: SubtreeRequest, task: TaskRecord) -> bool:
    """Whether the verb applies to a task below; a task that refuses it anyway is listed in the answer."""
    match request.verb:
        case "pause":
            return task.status in tasks.TABLE[SuspendTask]
        case "resume":
            return task.status is Status.PAUSED
        case "retry":
            is_over = task.status in _BEGUN_AGAIN and task.rolled_back is None
            return is_over and bool(task.attempts)
        case _:
            assert_never(request.verb)


def _make_command(request: SubtreeRequest, task_id: str, agent: str | None) -> Verb:
    match request.verb:
        case "pause":
            return PauseTask(task_id, reason=request.reason)
        case "resume":
            return ResumeTask(task_id, reason=request.reason)
        case "retry":
            return RetryTask(task_id, request.reason or "its tree is retried", agent=agent)
        case _:
            assert_never(request.verb)


def _make_request(command: Verb, key: str) -> SubtreeRequest:
    match command:
        case PauseTask():
            return SubtreeRequest("pause", key, command.reason)
        case ResumeTask():
            return SubtreeRequest("resume", key, command.reason)
        case RetryTask():
            return SubtreeRequest("retry", key, command.reason, command.agent)
        case _:
            assert_never(command)


def _name_row(top: EntityRef) -> str:
    return f"{TREE}:{top.id}"


def _refuse(task: TaskRecord, error: PasserelleError) -> UnchangedTask:
    return UnchangedTask(
        expose(TaskId(task.task_id), task.exposure), error.stable_code, error.message
    )
