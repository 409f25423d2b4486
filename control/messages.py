"""Submits messages to agents: evaluates policy, plans, charges quotas, stores the turn, and starts the run (CMD-1)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.rpc import Method
from passerelle.control.router import read_wanted
from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import (
    Draining,
    InvalidInput,
    NotFound,
    PasserelleError,
    PeerUnavailable,
)
from passerelle.core.frozen import frozen
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.session.thread import ThreadRecord, find_holder
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change, value
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.admission import AttemptReservation, LimitedPeer
from passerelle.delegation.runs.answers import Answers, OpenTurn
from passerelle.delegation.runs.delivery import read_options
from passerelle.delegation.runs.quota_waits import UncoveredError
from passerelle.delegation.runs.turn_places import find_thread
from passerelle.delegation.runs.turn_request import TurnRequest
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.common.carried import TRACE, choose_trace
from passerelle.runtime.records.references import MEMBER, NOTHING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.prerequisites import Prerequisites
    from passerelle.control.router import Router
    from passerelle.core.commands import SubmitTurn, TurnAccepted
    from passerelle.core.decision import Held
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import Route
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import Begun
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.follow_ups import FollowUps
    from passerelle.delegation.runs.plan import Delegation, Planner
    from passerelle.delegation.runs.turn_request import OpenedTurn
    from passerelle.delegation.runs.turn_templates import TemplatedTurns
    from passerelle.delegation.runs.turns import Turns
    from passerelle.runtime.records.references import References, ResolvedReferences
    from passerelle.webhooks.push_configs import PushConfigs


@value
class Submission:
    """A message as its caller submits it; ``idem`` is the caller's idempotency key."""

    principal: Principal
    command: SubmitTurn
    idem: str | None = None

    def request(self, plan: Delegation, known: Held | None = None) -> TurnRequest:
        """The request that opens its turn; ``known``: the thread of the context, if it was read."""
        return TurnRequest(
            self.principal,
            self.command,
            plan,
            self.idem,
            known,
            partial(read_options, self.command.params or {}),
        )


@value
class _Uncovered:
    """A chosen agent whose run is covered by no quota."""

    peer: LimitedPeer
    route: Route


@frozen
class Messages:
    """Accepts messages. Each becomes a turn of a new task, or of an existing one."""

    turns: Turns
    templated_turns: TemplatedTurns
    follow_ups: FollowUps
    references: References
    push_configs: PushConfigs
    planning: Planner
    dispatch: Dispatch
    answers: Answers
    queues: AgentQueues
    router: Router
    find_peer: Callable[[str], LimitedPeer]
    ids: Ids
    prerequisites: Prerequisites
    bounds: MessageBounds
    interrupt: Callable[[Principal, OpenedTurn], Awaitable[None]]
    """Interrupts the running turns of the context for a turn that waits."""
    resolve_tools: Callable[[Principal], ToolCatalogResolved | None]
    """The tools that rules withhold from a caller."""
    check_room: Callable[[], None]
    """Raises StoreUnavailable if no new task is accepted."""

    async def submit(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> tuple[TurnAccepted, Begun | None]:
        """Stores a message, once per key, as a turn of the task that it names or of a new one.

        Raises:
            NotFound, InvalidInput, Draining: nothing is stored.
            IdempotencyConflict: the key was used for another message.
        """
        peer = self._admit(principal, command)
        if command.task is not None:
            if command.after:
                raise InvalidInput("after", "a message to a task goes to it at once")
            return await self._follow_up(principal, command, idem), None
        opened, begun = await self._open_turn(Submission(principal, command, idem), peer)
        return opened.accept(), begun

    async def open(
        self, principal: Principal, command: SubmitTurn
    ) -> tuple[OpenTurn, Begun | None]:
        """Opens the task of a message without a key, for a caller that is notified instead of waiting.

        Raises:
            NotFound, InvalidInput, Draining: nothing is stored.
        """
        peer = self._admit(principal, command)
        opened, begun = await self._open_turn(Submission(principal, command), peer)
        driver = None if begun is None else begun[0]
        return OpenTurn(opened, self.answers, principal, driver), begun

    def _admit(self, principal: Principal, command: SubmitTurn) -> LimitedPeer | None:
        """The agent of a message that passes the checks without a policy consultation; None: it is chosen later.

        Raises:
            NotFound, InvalidInput, Draining: it may not be submitted.
            Forbidden: it is to interrupt others, and its caller may not cancel tasks of the agent.
        """
        if not principal.may_call(command.agent):
            raise NotFound("agent", command.agent)
        self.bounds.judge(command.message)
        # What starts from here on, including the run, belongs to the caller's trace (ENV-8).
        parent = command.traceparent
        caller = read_trace(parent, command.tracestate) if parent else None
        TRACE.set(choose_trace(caller, self.ids.draw))
        peer = None if command.agent == ROUTER else self.find_peer(command.agent)
        if self.dispatch.runs.is_draining:
            raise Draining("this instance is shutting down", retry_after_s=1)
        if command.push is not None:
            self.push_configs.check(command.push)
        if command.when_busy == "interrupt" and command.task is None:
            require_operation(principal, command.agent, Method.CANCEL_TASK)
        return peer

    async def _refer(
        self, principal: Principal, agent: str, command: SubmitTurn
    ) -> ResolvedReferences:
        """The tasks that the message references, in the form that ``agent`` gets."""
        if MEMBER not in command.message:
            return NOTHING
        return await self.references.find(principal, agent, command.message)

    async def _open_turn(
        self, submission: Submission, peer: LimitedPeer | None
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn that opens a task, and creates its driver."""
        if peer is not None:
            return await self._open_or_wait(submission, peer)
        principal, command = submission.principal, submission.command
        profile, uncovered = read_wanted(command.message, command.params), dict[str, _Uncovered]()
        known = (
            await find_thread(self.turns.writes, principal, command) if profile.continuity else None
        )
        while True:
            route = await self.router.route(principal, profile, _find_holder(known), uncovered)
            if route.agent is None:
                first = next(iter(uncovered.values()), None)
                if first is None:
                    return await self._refuse(submission, route), None
                # No other agent is left: the message waits for the one that was chosen first.
                return await self._open_or_wait(submission, first.peer, first.route, known)
            chosen = self.find_peer(route.agent)
            try:
                return await self._open_at(submission, chosen, route, known, may_wait=False)
            except UncoveredError:
                # Nothing is stored, and another agent may cost less.
                uncovered[route.agent] = _Uncovered(chosen, route)

    async def _open_or_wait(
        self,
        submission: Submission,
        peer: LimitedPeer,
        route: Route | None = None,
        known: Held | None = None,
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn for one agent; without a quota that covers it, it waits for one.

        Raises:
            Limited: it does not wait.
        """
        try:
            return await self._open_at(submission, peer, route, known)
        except UncoveredError as error:
            refused = self.planning.spending.refuse(submission.principal, error.shortage)
            raise refused from None

    async def _refuse(self, submission: Submission, route: Route) -> OpenedTurn:
        """Stores a turn that no agent gets, with the reason."""
        self.check_room()
        return await self.turns.open(submission.request(self.planning.refuse(route)))

    async def _open_at(
        self,
        submission: Submission,
        peer: LimitedPeer,
        route: Route | None,
        known: Held | None,
        *,
        may_wait: bool = True,
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn for one agent and starts it, or queues it.

        ``route``: how the agent was chosen, if it was; ``known``: the thread of the context, if it was read.

        Raises:
            UncoveredError: no quota of its caller covers it, and it does not wait for one.
        """
        principal, command = submission.principal, submission.command
        agent = command.agent if route is None else peer.name
        plan, referred = await self._plan(submission, agent, peer, route)
        taken = await self._refuse_drained(agent, submission.request(plan))
        if taken is not None:
            return taken, None
        with AttemptReservation() as reserved:
            admitted = None if plan.hold else await self.queues.admission.admit(agent, peer)
            if isinstance(admitted, str):
                plan = change(
                    plan, hold=await self.queues.admission.explain(agent, admitted, command)
                )
            else:
                reserved.slot = admitted
            if self.planning.spending.is_on:
                plan, reserved.charge = await self.queues.admission.cover(
                    principal, agent, command, plan, may_wait=may_wait
                )
            request = submission.request(plan, known)
            opened = None if plan.hold else await self.templated_turns.open(request)
            if opened is None:
                opened = await self.turns.open(request)
        if opened.repeated:
            reserved.give_back()
            # The instance that stored it may have died before it was in its queue.
            await self._enter(opened)
            return opened, None
        if plan.hold is not None or opened.position is not None:
            reserved.release_slot()
            await self._enqueue(principal, command, opened)
            return opened, None
        params: JsonObject = {**(command.params or {}), "message": command.message}
        slot = reserved.slot
        begun = self.dispatch.begin(opened, peer, command.message, params, referred, slot)
        return opened, begun

    async def _plan(
        self, submission: Submission, agent: str, peer: LimitedPeer, route: Route | None
    ) -> tuple[Delegation, ResolvedReferences]:
        """The plan of a turn at one agent, and the tasks that its message references."""
        principal, command = submission.principal, submission.command
        referred = await self._refer(principal, agent, command)
        self.check_room()
        plan = await self.planning.plan(command, peer, route)
        if (catalog := self.resolve_tools(principal)) is not None:
            plan = change(plan, catalog=catalog)
        plan = _add_references(plan, referred, agent)
        if command.after or "metadata" in command.message:
            plan = await self.prerequisites.plan(principal, command, agent, plan)
        return plan, referred

    async def _refuse_drained(self, agent: str, request: TurnRequest) -> OpenedTurn | None:
        """The turn that the request's key led to before its agent was drained; None: the agent takes new work.

        Raises:
            PeerUnavailable: it takes none.
        """
        try:
            self.queues.admission.refuse_drained(agent)
        except PeerUnavailable:
            taken = await self.turns.find_repeat(request)
            if taken is None:
                raise
            return taken
        return None

    async def _enter(self, opened: OpenedTurn) -> TaskRecord | None:
        """Puts the task into its queue, if it waits; one that is there keeps its position."""
        held = opened.held if isinstance(opened.held, dict) else opened.held.read()
        record = held[opened.task].record
        if not isinstance(record, TaskRecord):
            return None
        if record.status is Status.QUEUED or waits_for_quota(record):
            await self.queues.enter(record)
        return record

    async def _enqueue(self, principal: Principal, command: SubmitTurn, opened: OpenedTurn) -> None:
        record = await self._enter(opened)
        for one in record.relationships if record else ():
            if one.holds:
                # Its driver learns that a task waits for it.
                await self.dispatch.refresh(one.target)
        if opened.position is not None and _is_urgent(command, opened):
            try:
                await self.interrupt(principal, opened)
            except PasserelleError as error:
                # The message is stored and waits for its turn; the answer reports that.
                self.dispatch.log.info(
                    "turn.not_interrupted", task=opened.task.id, reason=str(error)
                )

    async def _follow_up(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> TurnAccepted:
        charge = await self.planning.spending.charge(principal, command.agent, opens=False)
        with AttemptReservation(charge=charge) as reserved:
            if command.push is not None:
                await self.push_configs.set_with_message(principal, command, command.push)
            accepted = await self.follow_ups.take(
                principal, command, idem, self.resolve_tools(principal)
            )
        if accepted.repeated:
            reserved.give_back()
        return accepted


def _add_references(plan: Delegation, referred: ResolvedReferences, agent: str) -> Delegation:
    """The plan with the tasks that its message references; most reference none."""
    if not referred.names_any:
        return plan
    return change(plan, referred=referred, facts=(*plan.facts, *referred.list_facts(agent)))


def _is_urgent(command: SubmitTurn, opened: OpenedTurn) -> bool:
    """Whether a waiting message interrupts the running turns of its context."""
    if command.when_busy is not None:
        return command.when_busy == "interrupt"
    held = opened.held if isinstance(opened.held, dict) else opened.held.read()
    thread = held[opened.place.thread].record
    return isinstance(thread, ThreadRecord) and thread.queue_policy == "interrupt"


def _find_holder(known: Held | None) -> str | None:
    """The agent that a context was last assigned to."""
    thread = known.record if known is not None else None
    return find_holder(thread) if isinstance(thread, ThreadRecord) else None
