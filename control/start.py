"""Starts a created task for the first time: its turn, the send intent, and the driver (CMD-6).

As for a message that opens a task, one append contains everything that must be stored before the agent is called: the
turn, the policy evaluation, the attempt, the run in this instance's set, and the total limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.control.creation import name_row, refuse_queued
from passerelle.control.start_routing import is_routed
from passerelle.control.task_changes import check_version, read_task, render_change
from passerelle.core.batch import DueChange, EntityKind, EntityRef, RunMove
from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import (
    Draining,
    Forbidden,
    InvalidInput,
    NotFound,
    PasserelleError,
    StoreUnavailable,
)
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import REMOTE_CONTEXT
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.payloads.limit import CostEstimated
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import ResolveTools, ThreadRecord
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.guards import refuse_second_run
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change, value
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.admission import AttemptReservation
from passerelle.delegation.runs.holds import FIRST_LOOK_MS, QUEUED, make_command
from passerelle.delegation.runs.limits import bound_policy, find_obstacle, list_limits
from passerelle.delegation.runs.plan import add_conditions, begin_attempt
from passerelle.delegation.runs.quota_waits import UncoveredError
from passerelle.delegation.runs.turn_request import OpenedTurn
from passerelle.runtime.common.calls import require_sending
from passerelle.runtime.common.carried import TRACE, choose_trace
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.family import check_above
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.message_summary import submit
from passerelle.runtime.records.places import Place
from passerelle.runtime.records.starting_tasks import load_assigned
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.creation import Preparing
    from passerelle.control.start_routing import StartRouting
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.peer import Peer, SendSlot
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import Route
    from passerelle.core.session.thread import SubmitMessage
    from passerelle.core.task.requests import StartTask, TaskChanged
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.admission import LimitedPeer
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.plan import Delegation, Planner
    from passerelle.delegation.runs.turns import Turns
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.ownership import Owned, Ownership
    from passerelle.runtime.records.references import References, ResolvedReferences


@value
class StartRequest:
    """A start as its caller asks for it; ``version`` is that of the task that the caller has read."""

    principal: Principal
    owned: Owned
    turn: SubmitTurn
    version: int | None
    once: Once


@frozen
class TaskStart:
    """A start that is about to be stored."""

    task: EntityRef
    thread: EntityRef
    version: int | None
    turn: SubmitTurn
    scope: Scope
    plan: Delegation
    submitting: SubmitMessage
    run_id: str
    remote_context: str
    once: Once
    caller: str
    """The id of the principal that starts it."""
    wanted: tuple[JsonObject, ...]
    """The acceptance conditions of the agent's tasks, if the agent was chosen just now."""
    other: EntityRef | None
    """The thread that runs it, if that is not its own."""


@value
class StartTarget:
    """The agent for a task, and the referenced tasks in the form that the agent gets."""

    peer: LimitedPeer
    referred: ResolvedReferences
    route: Route | None = None
    """How the agent was chosen, if it was."""
    may_wait: bool = True
    """Whether it waits for a quota at that agent."""


@frozen
class Starting:
    """Starts tasks."""

    turns: Turns
    ownership: Ownership
    planning: Planner
    references: References
    preparing: Preparing
    dispatch: Dispatch
    queues: AgentQueues
    routing: StartRouting
    find_peer: Callable[[str], LimitedPeer]
    message_bounds: MessageBounds
    resolve_tools: Callable[[Principal], ToolCatalogResolved | None]
    """The tools that rules withhold from a caller."""

    async def start(
        self, principal: Principal, command: StartTask, idem: str | None
    ) -> TaskChanged:
        """Stores the send intent and sends, once per idempotency key.

        Raises:
            NotFound: no such task, or no such agent for the caller.
            UnsupportedOperation: the task has a run, is queued, or has ended, or a task above it is being cancelled.
            Forbidden: a constraint of the task excludes the agent.
            VersionMismatch, IdempotencyConflict, Limited, Draining: nothing is written.
            PeerUnavailable: the agent's card could never be read.
        """
        owned = await self.ownership.find(principal, command.task_id, None, hidden=True)
        # A repeat may have another trace context and is still the same request.
        named = replace(command, traceparent=None, tracestate=None)
        once = make_once(principal, named, idem)
        if await once.find(self.turns.writes.log, owned.ref.shard) is not None:
            # The instance that stored it may have died before it was in its queue.
            await self.queues.enter(owned.record)
            return render_change(owned.held, repeated=True)
        refuse_queued(owned.record)
        refuse_second_run(owned.record)
        agent = command.agent or owned.record.assignee or owned.record.kind
        require_sending(principal, agent)
        await check_above(self.turns.writes, owned.record)
        turn = self._compose(owned.record, command, agent)
        caller = read_trace(command.traceparent, command.tracestate)
        TRACE.set(choose_trace(caller, self.turns.writes.ids.draw))
        peer = None if is_routed(owned.record, agent) else self.find_peer(agent)
        if self.dispatch.runs.is_draining:
            raise Draining("this instance is shutting down", retry_after_s=1)
        request = StartRequest(principal, owned, turn, command.version, once)
        if peer is None:
            return await self._start_routed(request)
        try:
            return await self._start_at(request, peer)
        except UncoveredError as error:
            raise self.planning.spending.refuse(principal, error.shortage) from None

    async def _start_at(self, request: StartRequest, peer: LimitedPeer) -> TaskChanged:
        """Starts a task at a named agent; its status is preparing while the card is read."""
        owned, turn = request.owned, request.turn
        referred = await self.references.find(request.principal, turn.agent, turn.message)
        target = StartTarget(peer, referred)
        if peer.peek() is not None:
            return await self._start(request, target)
        # Reading an agent's card may take as long as the agent takes.
        await self.preparing.begin(owned, request.version)
        try:
            return await self._start(change(request, version=None), target)
        except (PasserelleError, UncoveredError) as error:
            await self.preparing.put_back(owned.ref, owned.record.session_id, str(error))
            raise

    async def _start_routed(self, request: StartRequest) -> TaskChanged:
        """Starts a task at an agent that the gateway chooses by the task's profile (TR-12).

        Raises:
            InvalidInput: its profile is invalid.
            UnsupportedOperation: no agent fits; the reason for each is recorded on the task.
        """
        principal, owned, message = request.principal, request.owned, request.turn.message
        check_version(request.version, owned.held.stamp.version)
        uncovered: dict[str, Route] = {}
        while True:
            route = await self.routing.choose(principal, owned.record, message, uncovered)
            may_wait = route.agent is None
            if route.agent is None:
                first = next(iter(uncovered.values()), None)
                if first is None:
                    raise await self.routing.refuse(owned, route)
                route = first
            agent = route.agent or ""
            peer = self.find_peer(agent)
            referred = await self.references.find(principal, agent, message)
            try:
                target = StartTarget(peer, referred, route, may_wait=may_wait)
                return await self._start(request, target)
            except UncoveredError as error:
                # Another agent may cost less; without one, the task is refused as at the agent chosen first.
                if may_wait:
                    raise self.planning.spending.refuse(principal, error.shortage) from None
                uncovered[agent] = route

    async def _start(self, request: StartRequest, target: StartTarget) -> TaskChanged:
        """Starts a task at a named or chosen agent.

        Raises:
            UncoveredError: no quota of the caller covers it, and it does not wait for one.
        """
        principal, owned, turn = request.principal, request.owned, request.turn
        peer, referred = target.peer, target.referred
        plan = await self.planning.plan(turn, peer, target.route)
        agent = plan.find_agent(turn)
        plan = change(
            plan,
            policy=bound_policy(owned.record, plan.policy),
            catalog=self.resolve_tools(principal),
            referred=referred,
            template_key=object(),
        )
        self.queues.admission.refuse_drained(agent)
        with AttemptReservation() as reserved:
            if self.planning.spending.is_on:
                plan, reserved.charge = await self.queues.admission.cover(
                    principal, agent, turn, plan, may_wait=target.may_wait
                )
            admitted = None if plan.hold else await self.queues.admission.admit(agent, peer)
            if isinstance(admitted, str):
                plan = change(plan, hold=await self.queues.admission.explain(agent, admitted))
            else:
                reserved.slot = admitted
            _check_constraints(owned.record, agent, plan)
            start = await self._prepare(request, plan)
            written = await self._append(start)
        if written.repeated is not None and written.repeated != start.run_id.encode():
            reserved.give_back()
            return render_change(written.held[owned.ref], repeated=True)
        if plan.hold is None:
            self._begin(start, written, peer, referred, reserved.slot)
            return render_change(written.held[owned.ref])
        queued = written.held[owned.ref].record
        if isinstance(queued, TaskRecord):
            await self.queues.enter(queued)
        return render_change(written.held[owned.ref])

    def _compose(self, record: TaskRecord, command: StartTask, agent: str) -> SubmitTurn:
        message = command.message or {
            "role": ROLE_USER,
            "messageId": self.turns.writes.ids.mint(
                "msg", EntityRef(EntityKind.TASK, record.task_id).shard
            ),
            "parts": [{"text": record.objective}],
        }
        for name in ("taskId", "contextId"):
            if name in message:
                raise InvalidInput(
                    f"message.{name}", "is set by the gateway for a task that starts"
                )
        self.message_bounds.judge(message)
        return SubmitTurn(agent, message, command.source, "none")

    async def _prepare(self, request: StartRequest, plan: Delegation) -> TaskStart:
        owned, turn = request.owned, request.turn
        record, ids, shard = owned.record, self.turns.writes.ids, owned.ref.shard
        scope = Scope(record.session_id, record.thread_id, ids.mint("turn", shard), record.task_id)
        _, assigned = await load_assigned(self.turns.writes, record, None)
        spill = BlobOverflow()
        submitting = submit(turn, scope, spill)
        for blob in spill.blobs:
            await self.turns.blobs.put(shard, blob)
        return TaskStart(
            task=owned.ref,
            thread=EntityRef(EntityKind.THREAD, record.thread_id or ""),
            version=request.version,
            turn=turn,
            scope=scope,
            plan=plan,
            submitting=submitting,
            run_id=ids.mint("run", shard),
            remote_context=ids.mint(REMOTE_CONTEXT, shard),
            once=request.once,
            caller=request.principal.id,
            wanted=() if plan.route is None else self._list_wanted(plan, turn),
            other=next(iter(assigned), None),
        )

    def _list_wanted(self, plan: Delegation, turn: SubmitTurn) -> tuple[JsonObject, ...]:
        return self.planning.find_terms(plan.find_agent(turn)).acceptance

    async def _append(self, start: TaskStart) -> Written:
        await self.turns.regain(start.task.shard)
        driver = start.plan.drives(start.task.shard)

        def body(decision: Decision) -> AppendOptions:
            _decide(decision, start, self.turns.writes.ids)
            if start.plan.hold is not None:
                at_ms = decision.now_ms + FIRST_LOOK_MS
                rows = (
                    DueChange(f"{QUEUED}:{start.task.id}", at_ms),
                    DueChange(name_row(start.task.id), None),
                )
                return AppendOptions(due=rows, idem=start.once.remember(start.run_id))
            decision.set_field(start.task, OWNER, str(driver).encode())
            return AppendOptions(
                runs=(RunMove(start.run_id, start.task.id, driver, enters=True),),
                due=(
                    *list_limits(start.task.id, start.plan.policy, decision.now_ms),
                    DueChange(name_row(start.task.id), None),
                ),
                idem=start.once.remember(start.run_id),
            )

        refs = [start.task, start.thread, *([start.other] if start.other else [])]
        try:
            written = await self.turns.writes.decide(start.scope.session_id, refs, body)
        except StoreUnavailable as error:
            if error.wrote == "unknown":
                self.turns.on_unknown_outcome(start.task)
            raise
        if not isinstance(written, Written):
            raise StoreUnavailable("the lease of this instance is lost", "no")
        return written

    def _begin(
        self,
        start: TaskStart,
        written: Written,
        peer: Peer,
        referred: ResolvedReferences,
        place: SendSlot | None,
    ) -> None:
        record = written.held[start.task].record
        context = record.scope.context_id if isinstance(record, TaskRecord) else ""
        session = EntityRef(EntityKind.SESSION, start.scope.session_id)
        opened = OpenedTurn(
            Place(start.thread.shard, context, start.thread, session),
            start.task,
            start.scope.turn_id or "",
            written.held,
            start.plan.drives(start.task.shard),
        )
        params: JsonObject = {"message": start.turn.message}
        begun = self.dispatch.begin(opened, peer, start.turn.message, params, referred, place)
        self.dispatch.runs.start(*begun)


def _check_constraints(record: TaskRecord, agent: str, plan: Delegation) -> None:
    """Raises Forbidden if a constraint of the task excludes the agent."""
    estimates = [one.amount_micros for one in plan.facts if isinstance(one, CostEstimated)]
    obstacle = find_obstacle(record, agent, plan.card.endpoint or None, sum(estimates))
    if obstacle is not None:
        raise Forbidden(obstacle, why="constraint")


def _decide(decision: Decision, start: TaskStart, ids: Ids) -> None:
    decision.belong(start.plan.trace)
    record = read_task(decision, start.task, start.version)
    refuse_queued(record)
    if record.status is Status.DRAFT:
        decision.add(tasks.decide(record, tell.AcceptTask()))
    thread = decision.state(start.thread)
    if not isinstance(thread, ThreadRecord):
        raise NotFound("context", record.scope.context_id)
    decision.add(threads.decide(thread, start.submitting))
    submitted = decision.state(start.thread)
    if (route := start.plan.route) is not None:
        decision.add(Fact(start.scope, payload) for payload in route.list_facts())
        _add_conditions(decision, start)
    decision.add([Fact(start.scope, start.plan.judge(start.caller, ids, start.task.shard))])
    if isinstance(submitted, ThreadRecord):
        tools = ResolveTools(start.scope, start.caller, start.plan.catalog)
        decision.add(threads.decide(submitted, tools))
    decision.add(Fact(start.scope, payload) for payload in start.plan.facts)
    _note_references(decision, start)
    ready = decision.state(start.task)
    if isinstance(ready, TaskRecord):
        runs = decision.state(start.other) if start.other else thread
        remotes = runs.remotes if isinstance(runs, ThreadRecord) else {}
        remote = remotes.get(start.plan.find_agent(start.turn)) or start.remote_context
        started = begin_attempt(ready, start.turn, start.plan, remote)
        hold = start.plan.hold
        begins = (
            tell.StartRun(start.run_id, started, thread_id=start.other.id if start.other else None)
            if hold is None
            else make_command(started, hold)
        )
        decision.add(tasks.decide(ready, begins))


def _add_conditions(decision: Decision, start: TaskStart) -> None:
    """Adds the chosen agent's acceptance conditions to those of the caller (TR-13)."""
    record, wanted = decision.state(start.task), start.wanted
    if not isinstance(record, TaskRecord) or not wanted:
        return
    conditions = add_conditions(wanted, record.acceptance)
    if conditions != record.acceptance:
        changed: JsonObject = {"old": [*record.acceptance], "new": [*conditions]}
        decision.add(tasks.decide(record, tell.DescribeTask({"acceptance": changed})))


def _note_references(decision: Decision, start: TaskStart) -> None:
    """Records which tasks the message references, and what is sent in their place."""
    referred = start.plan.referred
    if not referred.names_any:
        return
    agent = start.plan.find_agent(start.turn)
    decision.add(Fact(start.scope, one) for one in referred.list_facts(agent))
    for edge in referred.list_edges():
        record = decision.state(start.task)
        if isinstance(record, TaskRecord):
            decision.add(tasks.decide(record, tell.LinkTask(edge)))
