"""Messages to agents: judged, planned, paid for and stored, and their runs begun (CMD-1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import object_at
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
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.session.thread import ThreadRecord, find_holder
from passerelle.core.task.record import TaskRecord, waits_for_quota
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change, value
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.answers import Answers, OpenTurn
from passerelle.delegation.runs.delivery import read_options
from passerelle.delegation.runs.quota_waits import UncoveredError
from passerelle.delegation.runs.turn_places import find_thread
from passerelle.delegation.runs.turn_request import TurnRequest
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.common.carried import TRACE, choose_trace
from passerelle.runtime.limits.costs import FREE, Shortage
from passerelle.runtime.records.references import MEMBER, NOTHING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.prerequisites import Prerequisites
    from passerelle.control.router import Router
    from passerelle.core.commands import SubmitTurn, TurnAccepted
    from passerelle.core.decision import Held
    from passerelle.core.payloads.task import QueueCause
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.peer import SendSlot
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import Route
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import Begun
    from passerelle.delegation.runs.admission import LimitedPeer
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.follow_ups import FollowUps
    from passerelle.delegation.runs.holds import QueueHold
    from passerelle.delegation.runs.plan import Delegation, Planner
    from passerelle.delegation.runs.turn_request import OpenedTurn
    from passerelle.delegation.runs.turn_templates import TemplatedTurns
    from passerelle.delegation.runs.turns import Turns
    from passerelle.runtime.limits.costs import Charge
    from passerelle.runtime.records.references import References, Referred
    from passerelle.webhooks.push_configs import PushConfigs


@value
class _Uncovered:
    """An agent that was chosen for a message whose run there no quota covers."""

    peer: LimitedPeer
    route: Route


async def _interrupt_nobody(_principal: Principal, _opened: OpenedTurn) -> None:
    """Nothing is stopped."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Takes messages. What comes of one is a turn of a new task, or of one that goes on."""

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
    bounds: MessageBounds = field(default_factory=MessageBounds)
    interrupt: Callable[[Principal, OpenedTurn], Awaitable[None]] = _interrupt_nobody
    """Stops what goes on in the context of a turn that waits."""
    resolve_tools: Callable[[Principal], ToolCatalogResolved | None] = lambda _principal: None
    """What is held back from a caller by rules."""
    check_room: Callable[[], None] = lambda: None
    """Raises StoreUnavailable where no new task is taken."""

    async def submit(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> tuple[TurnAccepted, Begun | None]:
        """Stores a message, once for each key, as a turn of the task that it names or of a new one.

        Raises:
            NotFound, InvalidInput, Draining: nothing is stored.
            IdempotencyConflict: the key came with another message before.
        """
        peer = self._admit(principal, command)
        if command.task is not None:
            if command.after:
                raise InvalidInput("after", "a message to a task goes to it at once")
            return await self._follow_up(principal, command, idem), None
        opened, begun = await self._open_turn(principal, command, idem, peer)
        return opened.accept(), begun

    async def open(
        self, principal: Principal, command: SubmitTurn
    ) -> tuple[OpenTurn, Begun | None]:
        """Opens the task of a message without a key, for whoever does not wait and is told.

        Raises:
            NotFound, InvalidInput, Draining: nothing is stored.
        """
        peer = self._admit(principal, command)
        opened, begun = await self._open_turn(principal, command, None, peer)
        driver = None if begun is None else begun[0]
        return OpenTurn(opened, self.answers, principal, driver), begun

    def _admit(self, principal: Principal, command: SubmitTurn) -> LimitedPeer | None:
        """The agent of a message that may come in, as far as nobody has to be asked; None: it is chosen later.

        Raises:
            NotFound, InvalidInput, Draining: it may not.
            Forbidden: it is to stop others, and its caller may not cancel tasks of the agent.
        """
        if not principal.may_call(command.agent):
            raise NotFound("agent", command.agent)
        self.bounds.judge(command.message)
        # What is started from here on, the run among it, belongs to the caller's trace (ENV-8).
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

    async def _refer(self, principal: Principal, agent: str, command: SubmitTurn) -> Referred:
        """What the message refers to, as ``agent`` is told."""
        if MEMBER not in command.message:
            return NOTHING
        return await self.references.find(principal, agent, command.message)

    async def _open_turn(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        peer: LimitedPeer | None,
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn that opens a task, and makes its driver."""
        if peer is not None:
            try:
                return await self._open_at(principal, command, idem, peer)
            except UncoveredError as error:
                raise self.planning.refuse_uncovered(principal, error.shortage) from None
        profile, uncovered = read_wanted(command.message, command.params), dict[str, _Uncovered]()
        known = (
            await find_thread(self.turns.writes, principal, command) if profile.continuity else None
        )
        while True:
            route = await self.router.route(principal, profile, _find_holder(known), uncovered)
            if route.agent is None:
                first = next(iter(uncovered.values()), None)
                if first is None:
                    return await self._refuse(principal, command, idem, route), None
                # Nobody else is left: it waits for the agent that would have got it.
                return await self._wait_at(principal, command, idem, first, known)
            chosen = self.find_peer(route.agent)
            try:
                return await self._open_at(
                    principal, command, idem, chosen, route, known, may_wait=False
                )
            except UncoveredError:
                # Nothing is stored, and another agent may cost less.
                uncovered[route.agent] = _Uncovered(chosen, route)

    async def _wait_at(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        first: _Uncovered,
        known: Held | None,
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn that waits for a quota, at the agent that comes first.

        Raises:
            Limited: it does not wait.
        """
        try:
            return await self._open_at(principal, command, idem, first.peer, first.route, known)
        except UncoveredError as error:
            raise self.planning.refuse_uncovered(principal, error.shortage) from None

    async def _refuse(
        self, principal: Principal, command: SubmitTurn, idem: str | None, route: Route
    ) -> OpenedTurn:
        """Stores a turn that no agent gets, with the reason."""
        self.check_room()
        plan = self.planning.refuse(route)
        return await self.turns.open(TurnRequest(principal, command, plan, idem))

    async def _open_at(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        peer: LimitedPeer,
        route: Route | None = None,
        known: Held | None = None,
        *,
        may_wait: bool = True,
    ) -> tuple[OpenedTurn, Begun | None]:
        """``route``: how the agent was chosen, if it was; ``known``: the thread of the context, if it was read.

        Raises:
            UncoveredError: no quota of its caller covers it, and it does not wait for one.
        """
        agent = command.agent if route is None else peer.name
        referred = await self._refer(principal, agent, command)
        self.check_room()
        plan = await self.planning.plan(command, peer, route)
        if (catalog := self.resolve_tools(principal)) is not None:
            plan = change(plan, catalog=catalog)
        plan = _add_references(plan, referred, agent)
        if command.after or "metadata" in command.message:
            plan = await self.prerequisites.plan(principal, command, agent, plan)
        taken = await self._refuse_drained(agent, TurnRequest(principal, command, plan, idem))
        if taken is not None:
            return taken, None
        charge = FREE
        admitted = None if plan.hold else await self.queues.admission.admit(agent, peer)
        place = None if isinstance(admitted, str) else admitted
        try:
            if isinstance(admitted, str):
                plan = change(plan, hold=await self._explain(agent, admitted, command))
            if self.planning.charges:
                plan, charge = await self._charge(
                    principal, command, agent, plan, may_wait=may_wait
                )
            request = TurnRequest(
                principal, command, plan, idem, known, partial(_read_options, command)
            )
            opened = None if plan.hold else await self.templated_turns.open(request)
            if opened is None:
                opened = await self.turns.open(request)
        except BaseException:
            charge.refund()
            _give_back(place)
            raise
        if opened.repeated:
            charge.refund()
            _give_back(place)
            return opened, None
        if plan.hold is not None or opened.position is not None:
            _give_back(place)
            await self._put_in_line(principal, command, opened)
            return opened, None
        params: JsonObject = {**(command.params or {}), "message": command.message}
        begun = self.dispatch.begin(opened, peer, command.message, params, referred, place)
        return opened, begun

    async def _refuse_drained(self, agent: str, request: TurnRequest) -> OpenedTurn | None:
        """What the key of a request came to before its agent was drained; None: the agent takes new work.

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

    async def _explain(self, agent: str, cause: QueueCause, command: SubmitTurn) -> QueueHold:
        """Why a message waits, with what its request says beside it."""
        configuration = object_at(command.params or {}, "configuration")
        return await self.queues.admission.explain(
            agent,
            cause,
            _read_options(command),
            answers_at_once=configuration.get("returnImmediately") is True,
        )

    async def _charge(
        self,
        principal: Principal,
        command: SubmitTurn,
        agent: str,
        plan: Delegation,
        *,
        may_wait: bool,
    ) -> tuple[Delegation, Charge]:
        """The plan with what is said of the quotas of its caller, and what these were charged.

        Where they do not cover it that is nothing, and it waits for them, whatever else it has to wait for.

        Raises:
            UncoveredError: it does not wait.
        """
        charged = await self.queues.admission.charge(principal, agent)
        if not isinstance(charged, Shortage):
            return change(plan, facts=(*plan.facts, *charged.facts)), charged
        hold = None
        if may_wait:
            configuration = object_at(command.params or {}, "configuration")
            hold = await self.queues.admission.explain_shortage(
                principal,
                agent,
                charged,
                _read_options(command),
                answers_at_once=configuration.get("returnImmediately") is True,
            )
        if hold is None:
            raise UncoveredError(charged)
        return change(plan, hold=hold, facts=(*plan.facts, charged.fact)), FREE

    async def _put_in_line(
        self, principal: Principal, command: SubmitTurn, opened: OpenedTurn
    ) -> None:
        held = opened.held if isinstance(opened.held, dict) else opened.held.read()
        record = held[opened.task].record
        if isinstance(record, TaskRecord) and (
            record.status is Status.QUEUED or waits_for_quota(record)
        ):
            await self.queues.enter(record)
        for one in record.relationships if isinstance(record, TaskRecord) else ():
            if one.holds:
                await self.dispatch.refresh(
                    one.target
                )  # whoever drives it is told that it is waited for
        if opened.position is not None and _is_urgent(command, opened):
            try:
                await self.interrupt(principal, opened)
            except PasserelleError as error:
                # It is stored, and waits for its turn: that is what its caller is told.
                self.dispatch.log.info(
                    "turn.not_interrupted", task=opened.task.id, reason=str(error)
                )

    async def _follow_up(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> TurnAccepted:
        charge = await self.planning.charge(principal, command)
        try:
            if command.push is not None:
                await self.push_configs.set_with_message(principal, command, command.push)
            accepted = await self.follow_ups.take(
                principal, command, idem, self.resolve_tools(principal)
            )
        except BaseException:
            charge.refund()
            raise
        if accepted.repeated:
            charge.refund()
        return accepted


def _add_references(plan: Delegation, referred: Referred, agent: str) -> Delegation:
    """The plan with the tasks that its message refers to; most refer to none."""
    if not referred.names_any:
        return plan
    return change(plan, referred=referred, facts=(*plan.facts, *referred.list_facts(agent)))


def _read_options(command: SubmitTurn) -> JsonObject | None:
    return read_options({**(command.params or {}), "message": command.message})


def _is_urgent(command: SubmitTurn, opened: OpenedTurn) -> bool:
    """Whether a message that waits stops what goes on in its context."""
    if command.when_busy is not None:
        return command.when_busy == "interrupt"
    held = opened.held if isinstance(opened.held, dict) else opened.held.read()
    thread = held[opened.place.thread].record
    return isinstance(thread, ThreadRecord) and thread.queue_policy == "interrupt"


def _give_back(place: SendSlot | None) -> None:
    """No send follows."""
    if place is not None:
        place.give_back()


def _find_holder(known: Held | None) -> str | None:
    """The agent that a context was given to last."""
    thread = known.record if known is not None else None
    return find_holder(thread) if isinstance(thread, ThreadRecord) else None
