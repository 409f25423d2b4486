"""A pause, its end, or a further attempt for a task and every task below it (CMD-31).

The wish is stored beside the task at the top first, with a due row (I9); then each task is told by its own command, the
nearest first, under a key that is made of the wish: a task that was told before a death is not told again behind it.
The caller waits for the first :data:`MOST_AT_ONCE` tasks, the others follow behind the answer or by the row. A later
wish for the same tree takes the place of one that has not reached all. What comes below the task later is not reached.
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
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from passerelle.control.task_changes import TaskChanges
    from passerelle.core.batch import IdempotencyRow
    from passerelle.core.commands import OtherCommand, Result
    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.core.principal import Principal
    from passerelle.runtime.records.ownership import Owned

    Verb: TypeAlias = PauseTask | ResumeTask | RetryTask
    Handle: TypeAlias = Callable[[Principal, Verb, str | None], Awaitable[Result]]

TREE: Final = "tree"
"""Kind of the due row, and name of the field, of a task whose subtree is told something."""
MOST_AT_ONCE: Final = 256
"""Tasks that a caller, or one handling of the due row, waits for."""
_GRACE_MS: Final = 10_000
_MOST_OWED: Final = 64
"""Wishes of which an instance knows how far their rows have come."""
_NAMED: Final = 64
"""Tasks that an answer names of those that did not take the verb."""
_BEGUN_AGAIN: Final = (TERMINAL - {Status.COMPLETED}) | {Status.LOST}


@record
class SubtreeRequest:
    """What a subtree is told, as it is stored until all of it has been."""

    verb: Literal["pause", "resume", "retry"]
    key: str
    reason: str | None = None
    agent: str | None = None
    """Of the task at the top, where one was named."""
    idem: str | None = None
    """The key of its caller; it is remembered as used once a task has taken the verb."""
    digest: str | None = None
    """Tells requests apart under that key."""


@dataclass(slots=True)
class SubtreeProgress:
    """How far a wish has come: the tasks that were told, and what came of it."""

    told: set[str] = field(default_factory=set[str])
    changed: int = 0
    unchanged: list[UnchangedTask] = field(default_factory=list[UnchangedTask])
    refusal: PasserelleError | None = None
    """Of the task at the top."""


@dataclass(frozen=True, slots=True)
class Subtrees:
    """Carries verbs down. ``execute`` is what the command for one task goes through, with everything that judges it."""

    changes: TaskChanges
    find_principal: Callable[[str, str], Principal | None]
    execute: Callable[[Principal, OtherCommand, str | None], Awaitable[Result]]
    _owed: dict[str, SubtreeProgress] = field(default_factory=dict[str, SubtreeProgress])
    """How far the due rows of wishes have come here, by the keys of these."""

    def over(self, handle: Handle) -> Handle:
        """The handler of a verb for one task, as one that also reaches those below it."""

        async def change(principal: Principal, command: Verb, idem: str | None) -> Result:
            if command.propagation == "none":
                return await handle(principal, command, idem)
            return await self._change(principal, command, idem, handle)

        return change

    async def _change(
        self, principal: Principal, command: Verb, idem: str | None, handle: Handle
    ) -> TaskChanged:
        """Stores the wish, and tells the task and those below it.

        Raises:
            NotFound: no such task of the caller.
            VersionMismatch, IdempotencyConflict: nothing is written.
            UnsupportedOperation: neither the task nor one below it takes the verb.
        """
        changes = self.changes
        owned = await changes.ownership.find(principal, command.task_id, None, hidden=True)
        once = make_once(principal, command, idem)
        before = _read_wish(owned.held.fields)
        is_under_way = _is_same(before, once)
        if is_under_way or await once.find(changes.writes.log, owned.ref.shard) is not None:
            return render_change(owned.held, repeated=True)
        # Under a key of its caller a wish has one name, so that two at the same moment tell no task twice.
        shard = owned.ref.shard
        name = (
            derive_id("tree", shard, once.key)
            if once.key
            else changes.writes.ids.mint("tree", shard)
        )
        wish = _make_wish(command, name)
        wish = change(wish, idem=once.key, digest=once.digest if once.key else None)

        # Nobody else remembers the key of a wish whose place this one takes.
        used = await self._remember(owned.ref, before)

        def body(decision: Decision) -> AppendOptions:
            read_task(decision, owned.ref, command.version)
            is_before = decision.fields(owned.ref).get(TREE) == owned.held.fields.get(TREE)
            decision.set_field(owned.ref, TREE, to_bytes(wish))
            row = DueChange(_name_row(owned.ref), decision.now_ms + _GRACE_MS)
            return AppendOptions(idem=used if is_before else None, due=(row,))

        try:
            written = await changes.writes.decide(owned.record.session_id, [owned.ref], body)
        except VersionMismatch:
            # The first one under the key may have stored its wish, and the key is stored once that is done.
            now = await changes.ownership.find(principal, command.task_id, None, hidden=True)
            if _is_same(_read_wish(now.held.fields), once):
                return render_change(now.held, repeated=True)
            raise
        if not isinstance(written, Written):
            raise StoreUnavailable("the task is being moved", "no")
        await changes.tell(owned.ref)
        carried = SubtreeProgress()
        await self._tell_top(principal, owned, wish, handle, carried)
        done = await self._tell_below(principal, owned.ref, wish, carried)
        if done:
            await self._forget(owned.ref, wish, is_used=bool(carried.changed))
        else:
            changes.dispatch.detach(self._tell_rest(principal, owned.ref, wish, carried))
        if carried.refusal is not None and done and not carried.changed:
            raise carried.refusal
        subtree = SubtreeChanged(carried.changed, done, tuple(carried.unchanged[:_NAMED]))
        held = (await changes.writes.load([owned.ref]))[owned.ref]
        return replace(render_change(held), subtree=subtree)

    async def _tell_top(
        self,
        principal: Principal,
        owned: Owned,
        wish: SubtreeRequest,
        handle: Handle,
        carried: SubtreeProgress,
    ) -> None:
        """The rules about commands have judged this one already."""
        try:
            await handle(principal, _make_command(wish, owned.ref.id, wish.agent), wish.key)
            carried.changed += 1
        except StoreUnavailable:
            raise
        except PasserelleError as error:
            carried.refusal = error
            carried.unchanged.append(_refuse(owned.record, error))

    async def on_due(
        self, shard: Shard, row: DueRow, drop: Callable[[Shard, DueRow], Awaitable[bool]]
    ) -> None:
        """``tree:<task>``: those that were not told yet; the row goes when none is left."""
        ref = EntityRef(EntityKind.TASK, row.entity)
        held = (await self.changes.writes.load([ref]))[ref]
        wish, top = held.fields.get(TREE), held.record
        if wish is None or not isinstance(top, TaskRecord):
            await drop(shard, row)
            return
        said = from_bytes(SubtreeRequest, wish)
        principal = self.find_principal(top.scope.principal, top.scope.tenant)
        if principal is not None:
            carried = self._recall(said)
            if not carried.told:
                await self._tell_one(principal, top, said, carried, said.agent)
            if not await self._tell_below(principal, ref, said, carried):
                return  # the row comes again
        await self._forget(ref, said, DueClaim(row.member, row.token))
        self._owed.pop(said.key, None)

    def _recall(self, wish: SubtreeRequest) -> SubtreeProgress:
        """How far the row of a wish has come here: what has refused the verb once is not told it in each handling."""
        known = self._owed.get(wish.key)
        if known is None:
            while len(self._owed) >= _MOST_OWED:
                del self._owed[next(iter(self._owed))]
            known = self._owed[wish.key] = SubtreeProgress()
        return known

    async def _tell_rest(
        self, principal: Principal, top: EntityRef, wish: SubtreeRequest, carried: SubtreeProgress
    ) -> None:
        """What the caller does not wait for; where it fails, the due row comes."""
        with suppress(PasserelleError):
            while not await self._tell_below(principal, top, wish, carried):
                pass
            await self._forget(top, wish, is_used=bool(carried.changed))

    async def _tell_below(
        self, principal: Principal, top: EntityRef, wish: SubtreeRequest, carried: SubtreeProgress
    ) -> bool:
        """Tells up to :data:`MOST_AT_ONCE` tasks below one; whether all of them are told.

        Raises:
            StoreUnavailable: the due row goes on.
        """
        left = MOST_AT_ONCE
        while True:
            held = (await self.changes.writes.load([top]))[top]
            stored = held.fields.get(TREE)
            if not isinstance(held.record, TaskRecord) or stored != to_bytes(wish):
                return True  # another wish has taken its place
            below = await list_below(self.changes.writes, held.record.owner, held.record, principal)
            wanted = [
                one.record
                for one in below
                if one.ref.id not in carried.told and _takes(wish, one.record)
            ]
            if not wanted or not left:
                return not wanted
            for one in wanted[:left]:
                await self._tell_one(principal, one, wish, carried)
            left -= len(wanted[:left])

    async def _tell_one(
        self,
        principal: Principal,
        task: TaskRecord,
        wish: SubtreeRequest,
        carried: SubtreeProgress,
        agent: str | None = None,
    ) -> None:
        try:
            command = _make_command(wish, task.task_id, agent)
            told = await self.execute(principal, command, wish.key)
        except StoreUnavailable:
            raise
        except PasserelleError as error:
            carried.told.add(task.task_id)
            carried.unchanged.append(_refuse(task, error))
            return
        carried.told.add(task.task_id)
        carried.changed += isinstance(told, TaskChanged) and not told.repeated

    async def _forget(
        self,
        top: EntityRef,
        wish: SubtreeRequest,
        claim: DueClaim | None = None,
        *,
        is_used: bool = True,
    ) -> None:
        """Drops the wish, and its row, unless another one has taken its place.

        ``is_used``: whether its key is; under the key of one that was refused whole its caller tries again.
        """
        record = (await self.changes.writes.load([top]))[top].record
        if not isinstance(record, TaskRecord):
            return

        used = await self._remember(top, wish) if is_used else None

        def body(decision: Decision) -> AppendOptions:
            if decision.fields(top).get(TREE) != to_bytes(wish):
                return AppendOptions()
            decision.set_field(top, TREE, None)
            if claim is not None:
                return AppendOptions(claim=claim, idem=used)
            return AppendOptions(due=(DueChange(_name_row(top), None),), idem=used)

        await self.changes.writes.decide(record.session_id, [top], body)
        await self.changes.tell(top)

    async def _remember(self, top: EntityRef, wish: SubtreeRequest | None) -> IdempotencyRow | None:
        """The row of the key of a wish; None where it has none, or where that stands for something by now."""
        if wish is None or wish.idem is None:
            return None
        log = self.changes.writes.log
        known = await log.read_idempotency(top.shard, wish.idem)
        return None if known is not None else Once(wish.idem, wish.digest or "").remember(top.id)


def _read_wish(fields: Mapping[str, bytes]) -> SubtreeRequest | None:
    stored = fields.get(TREE)
    return None if stored is None else from_bytes(SubtreeRequest, stored)


def _is_same(wish: SubtreeRequest | None, once: Once) -> bool:
    """Whether a wish that has not reached all tasks is of this very command.

    Raises:
        IdempotencyConflict: the key is that of another command.
    """
    if wish is None or once.key is None or wish.idem != once.key:
        return False
    if wish.digest != once.digest:
        raise IdempotencyConflict("the idempotency key was used for another request")
    return True


def _takes(wish: SubtreeRequest, task: TaskRecord) -> bool:
    """Whether a task below is meant; what a task that is meant refuses all the same is in the answer."""
    match wish.verb:
        case "pause":
            return task.status in tasks.TABLE[SuspendTask]
        case "resume":
            return task.status is Status.PAUSED
        case "retry":
            is_over = task.status in _BEGUN_AGAIN and task.rolled_back is None
            return is_over and bool(task.attempts)
        case _:
            assert_never(wish.verb)


def _make_command(wish: SubtreeRequest, task_id: str, agent: str | None) -> Verb:
    match wish.verb:
        case "pause":
            return PauseTask(task_id, reason=wish.reason)
        case "resume":
            return ResumeTask(task_id, reason=wish.reason)
        case "retry":
            return RetryTask(task_id, wish.reason or "its tree is tried again", agent=agent)
        case _:
            assert_never(wish.verb)


def _make_wish(command: Verb, key: str) -> SubtreeRequest:
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
