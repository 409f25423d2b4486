"""Creates a task before it is sent (CMD-4), and shows while its start is being prepared (ST-4).

A created task has its id and its place in a session. While its start waits for the agent's card, its status is
preparing, visible to callers. Nothing is sent then: if the card cannot be read, the caller gets the error and the task
returns to its previous status. If the preparing instance crashes, a due row does that (I9).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from passerelle.control.start_routing import check_profile
from passerelle.control.task_changes import check_content, read_task, render_change
from passerelle.control.task_graph import PARENT_FIELD, check_parent, find_parent
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import (
    Conflict,
    DueChange,
    DueClaim,
    Early,
    EntityKind,
    EntityRef,
    StaleEpoch,
)
from passerelle.core.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
    WriteConflict,
)
from passerelle.core.events import Fact
from passerelle.core.facts import Scope, TaskBounds
from passerelle.core.frozen import frozen
from passerelle.core.index_changes import list_rows
from passerelle.core.payloads.conversation import ThreadParent, ThreadStarted
from passerelle.core.payloads.subagent import SubagentSpawned
from passerelle.core.payloads.task import TaskCreated, TaskDelegated, TaskDependencyUpdated
from passerelle.core.principal import AccessScope
from passerelle.core.session import machine as sessions
from passerelle.core.session import thread as threads
from passerelle.core.subagent.name import SubagentName
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import AcceptTask, PrepareTask, PutBack
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status, Visibility
from passerelle.core.wire.record import change
from passerelle.delegation.runs.turn_places import locate
from passerelle.runtime.records.idempotency import Once, make_once
from passerelle.runtime.records.message_summary import TITLE_LENGTH
from passerelle.runtime.records.places import describe_session
from passerelle.runtime.records.writes import MAX_TRIES, AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.peer import Peer
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.task.requests import CreateTask, TaskChanged
    from passerelle.delegation.runs.plan import Conditions
    from passerelle.delegation.runs.turns import Turns
    from passerelle.runtime.records.ownership import Owned, Ownership
    from passerelle.runtime.records.places import Place
    from passerelle.runtime.records.writes import Writes

BOUND_CHARS: Final = 255
"""Maximum length of a reference in the scope of a task."""


@frozen
class Plan:
    """A task that is about to be stored."""

    principal: Principal
    command: CreateTask
    once: Once
    parent: Owned | None
    spawns: str | None = None
    """The agent's protocol, if its context is spawned as a subagent in the same append."""


@frozen
class Creating:
    """Creates tasks."""

    turns: Turns
    ownership: Ownership
    projections: Projections
    find_peer: Callable[[str], Peer]
    conditions: Conditions
    check_room: Callable[[], None]
    """Raises StoreUnavailable if no new task is accepted."""

    async def create(
        self,
        principal: Principal,
        command: CreateTask,
        idem: str | None,
        spawns: str | None = None,
    ) -> TaskChanged:
        """Stores the task; the same key and request return the first one again.

        ``spawns``: the agent's protocol, if its context becomes a subagent.

        Raises:
            NotFound: an agent, session or parent that the caller does not have.
            Forbidden: a hidden task of a caller that does not operate the runtime.
            InvalidInput: an invalid member, invalid conditions, or a parent in another session.
            GraphLimit: the parent is too deep, or has its maximum of children.
            IdempotencyConflict: the key was used for another request.
        """
        if not principal.may_call(command.agent):
            raise NotFound("agent", command.agent)
        check_profile(command.agent, command.profile)
        if command.visibility is Visibility.HIDDEN and AccessScope.OPERATE not in principal.scopes:
            raise Forbidden(
                f"a hidden task needs the scope {AccessScope.OPERATE}", scope=AccessScope.OPERATE
            )
        if command.agent != ROUTER or spawns is not None:
            self.find_peer(command.agent)
        self.check_room()
        check_content(command)
        _check_scope(command.scope)
        above = command.parent_task_id
        parent = None if above is None else await find_parent(self.ownership, principal, above)
        once = make_once(principal, command, idem)
        conditions = self.conditions.read_command(command.agent, command.acceptance)
        plan = Plan(principal, replace(command, acceptance=conditions), once, parent, spawns)
        if parent is not None and command.session_id is None and command.context_id is None:
            plan = replace(plan, command=replace(plan.command, session_id=parent.record.session_id))
        for tries in range(MAX_TRIES):
            created = await self._try(plan, idem)
            if created is not None:
                return created
            await self.turns.writes.pause_before_retry(tries)
        raise WriteConflict("the context was changed concurrently too often; try again")

    async def _try(self, plan: Plan, idem: str | None) -> TaskChanged | None:
        writes = self.turns.writes
        place, held = await locate(writes, plan.principal, plan.command, idem)
        stored = await plan.once.find(writes.log, place.shard)
        if stored is not None:
            return await self._repeat(stored)
        task = EntityRef(EntityKind.TASK, writes.ids.mint("task", place.shard))
        if plan.parent is not None:
            held = held | await writes.load([plan.parent.ref])
        decision = writes.begin(place.session.id, held)
        self._decide(decision, plan, place, task)
        outcome = await writes.commit(
            decision, held, AppendOptions(idem=plan.once.remember(task.id))
        )
        match outcome:
            case Conflict() | StaleEpoch() | Early():
                return None
            case Written(repeated=bytes(first)) if first != task.id.encode():
                return await self._repeat(first)
            case Written():
                await self._list(outcome, task)
                return render_change(outcome.held[task])
            case _:
                raise StoreUnavailable("the task could not be stored", "no")

    async def _repeat(self, stored: bytes) -> TaskChanged:
        task = EntityRef(EntityKind.TASK, stored.decode())
        held = await self.turns.writes.load_one(task)
        return render_change(held, repeated=True)

    async def _list(self, written: Written, task: EntityRef) -> None:
        """Adds it to the caller's list before the answer; the relay writes the same row, so a failure loses nothing."""
        record = written.held[task].record
        try:
            for row in list_rows(None, record) if isinstance(record, TaskRecord) else ():
                await self.projections.index_now(row)
        except StoreUnavailable:
            return

    def _decide(self, decision: Decision, plan: Plan, place: Place, task: EntityRef) -> None:
        who = plan.principal
        for ref in (place.thread, task):
            if ref not in decision.states:
                decision.introduce(ref)
        is_new = decision.state(place.thread) is None
        if is_new and place.session not in decision.states:
            decision.introduce(place.session)
        if is_new and decision.state(place.session) is None:
            created = describe_session(who)
            decision.add(sessions.decide(None, sessions.BeginSession(place.session.id, created)))
        if is_new:
            started = ThreadStarted(
                context_id=place.context_id,
                owner=who.key,
                tenant=who.tenant,
                principal=who.id,
                parent=_find_parent(plan, place, task),
            )
            opening = threads.OpenThread(place.session.id, place.thread.id, started)
            decision.add(threads.decide(None, opening))
        scope = Scope(place.session.id, place.thread.id, None, task.id)
        command = tell.BeginTask(
            scope, _compose(plan, place, task.id), accepts=not plan.command.draft
        )
        decision.add(tasks.decide(None, command))
        if plan.parent is not None:
            _adopt(decision, plan.parent, place, task)
        if is_new and plan.spawns is not None:
            _spawn(decision, plan, place, task)


def _find_parent(plan: Plan, place: Place, task: EntityRef) -> ThreadParent | None:
    """The task that a thread is created for: tasks that its agents create there are children of it (ID-10).

    For a subagent without a parent task it is the task that is created with it.
    """
    peer = plan.command.agent if plan.spawns is not None else None
    if plan.parent is None:
        return None if peer is None else ThreadParent(task.id, place.thread.id, peer=peer)
    above = plan.parent.record
    return ThreadParent(above.task_id, above.thread_id, above.turn_id, peer)


def _spawn(decision: Decision, plan: Plan, place: Place, task: EntityRef) -> None:
    """The subagent, with its edge from the parent task, or from its own: both in one append (AP-5)."""
    above = decision.state(plan.parent.ref if plan.parent is not None else task)
    if not isinstance(above, TaskRecord):
        return
    name, scope = str(SubagentName(place.thread.id, plan.command.agent)), tasks.scope_of(above)
    spawned = SubagentSpawned(
        peer=plan.command.agent,
        kind="a2a_context",
        native_protocol=plan.spawns or "",
        recoverable=True,
    )
    decision.add(
        [
            Fact(change(scope, subagent_id=name), spawned),
            Fact(scope, TaskDelegated("subagent", name)),
        ]
    )


def _adopt(decision: Decision, parent: Owned, place: Place, task: EntityRef) -> None:
    """Both ends of the edge between a task and its child."""
    if parent.record.session_id != place.session.id:
        raise InvalidInput(PARENT_FIELD, "the parent belongs to another session")
    older, child = decision.state(parent.ref), decision.state(task)
    if isinstance(older, TaskRecord) and isinstance(child, TaskRecord):
        check_parent(older)
        delegated = TaskDelegated("child_task", task.id)
        decision.add([Fact(tasks.scope_of(older), delegated)])
        edge = TaskDependencyUpdated(f"parent:{older.task_id}", "parent", older.task_id, "open")
        decision.add(tasks.decide(child, tell.LinkTask(edge)))


def _check_scope(scope: TaskBounds | None) -> None:
    """Raises InvalidInput for a reference that is empty or too long."""
    for member in fields(TaskBounds):
        given = getattr(scope, member.name) if scope else None
        if given is not None and not 0 < len(given) <= BOUND_CHARS:
            raise InvalidInput(f"scope.{member.name}", f"takes 1 to {BOUND_CHARS} characters")


def _compose(plan: Plan, place: Place, task_id: str) -> TaskCreated:
    command, who = plan.command, plan.principal
    lines = command.objective.strip().splitlines() or [command.agent]
    parent = plan.parent.record if plan.parent else None
    return TaskCreated(
        objective=command.objective,
        title=command.title or lines[0][:TITLE_LENGTH],
        kind=command.agent,
        family="delegation",
        requested_by=who.id,
        owner=who.key,
        tenant=who.tenant,
        context_id=place.context_id,
        assignee=None if command.agent == ROUTER else command.agent,
        visibility=command.visibility,
        priority=command.priority,
        parent_task_id=parent.task_id if parent else None,
        root_task_id=parent.root_task_id if parent else task_id,
        constraints=command.constraints,
        profile=command.profile,
        acceptance=command.acceptance,
        metadata=command.metadata,
        scope=command.scope,
    )


PREPARE: Final = "prepare"
"""The kind of the due row of a task that is being prepared."""
CARD: Final = "card"
_LONGEST_MS: Final = 120_000
"""Longer than the timeout for an agent's card."""


def name_row(task_id: str) -> str:
    """The due row of a task that is being prepared."""
    return f"{PREPARE}:{task_id}"


def refuse_queued(record: TaskRecord) -> None:
    """Raises UnsupportedOperation if the task is queued: it starts by itself when its turn comes."""
    if record.status in {Status.QUEUED, Status.WAITING_RESOURCE} and record.queued is not None:
        raise UnsupportedOperation(
            "the task is queued already, and starts when its turn comes", status=record.status
        )


@frozen
class Preparing:
    """Sets and clears the status preparing."""

    writes: Writes

    async def begin(self, owned: Owned, version: int | None) -> None:
        """Sets the status preparing.

        Raises:
            VersionMismatch: the caller read an older version.
            UnsupportedOperation: it has been started, or has ended.
        """

        def body(decision: Decision) -> AppendOptions:
            record = read_task(decision, owned.ref, version)
            refuse_queued(record)
            if record.status is Status.DRAFT:
                decision.add(tasks.decide(record, AcceptTask()))
                record = read_task(decision, owned.ref, None)
            decision.add(tasks.decide(record, PrepareTask(CARD)))
            row = DueChange(name_row(owned.ref.id), decision.now_ms + _LONGEST_MS)
            return AppendOptions(due=(row,))

        await self.writes.decide(owned.record.session_id, [owned.ref], body)

    async def put_back(
        self, task: EntityRef, session_id: str, reason: str, claim: DueClaim | None = None
    ) -> None:
        """Returns the task to its previous status, so that it can be started again; no effect if it has moved on."""
        row = DueChange(name_row(task.id), None)

        def body(decision: Decision) -> AppendOptions:
            record = decision.state(task)
            if not isinstance(record, TaskRecord) or record.status is not Status.PREPARING:
                return AppendOptions()
            decision.add(tasks.decide(record, PutBack(reason)))
            return AppendOptions(claim=claim) if claim else AppendOptions(due=(row,))

        await self.writes.decide(session_id, [task], body)

    async def on_due(self, shard: Shard, row: DueRow, drop: DropRow) -> None:
        """``prepare:<task>``: the preparing instance is gone."""
        task = EntityRef(EntityKind.TASK, row.entity)
        record = (await self.writes.load_one(task)).record
        if not isinstance(record, TaskRecord) or record.status is not Status.PREPARING:
            await drop(shard, row)
            return
        await self.put_back(task, record.session_id, "the preparing instance is gone", row)
