"""How a message is sent: what must be known and free before it is accepted, and the attempt that follows.

This includes the card of the agent, the policy, the quota, and the conditions of the task: those that the configuration
sets for the agent's tasks, and those of its caller (TR-13).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.a2a_mapping.acceptance import read_conditions
from passerelle.a2a_mapping.errors import ExtensionRequired
from passerelle.a2a_mapping.extensions import ACCEPTANCE, PREFIX, UNDERSTOOD, list_required
from passerelle.a2a_mapping.inbound import read_named
from passerelle.a2a_mapping.members import object_at
from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import PeerUnavailable
from passerelle.core.facts import RetryPolicy, Worker
from passerelle.core.frozen import frozen
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.peer import PeerCard
from passerelle.core.wire.record import change, value
from passerelle.permission_bridge.cases import InboundCall
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.runtime.common.carried import EXTENSIONS, TRACE
from passerelle.runtime.records.references import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.commands import SubmitTurn, WaitMode
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import PermissionEvaluated
    from passerelle.core.payloads.context import ContextResolved
    from passerelle.core.payloads.limit import LimitPayload
    from passerelle.core.payloads.runtime import WarningRaised
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Ids
    from passerelle.core.routing.table import Route
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.core.wire.trace import Trace
    from passerelle.delegation.runs.holds import QueueHold
    from passerelle.delegation.runs.peer_profile import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.limits.costs import Spending
    from passerelle.runtime.records.references import ResolvedReferences
    from passerelle.runtime.records.writes import Writes


_PlanKey: TypeAlias = "tuple[str, WaitMode, int | None]"
_KEPT: Final = 8_192
"""Plans that are cached; then the least recently used one is dropped."""
_NO_CARD: Final = PeerCard({}, "", "", streaming=False, protocol="a2a/1.0", stale=True)


@value
class Delegation:
    """What is known of the peer before the first append."""

    card: PeerCard
    mechanism: Literal["unary", "streaming"]
    policy: RetryPolicy
    judge: Callable[[str, Ids, Shard], PermissionEvaluated]
    """Judges a call by the caller's id, with an evaluation id minted in a shard."""
    drives: Callable[[Shard], Incarnation]
    facts: tuple[LimitPayload | WarningRaised | ContextResolved, ...] = ()
    """Further facts of the turn: its price, a quota that is low, the content added from other tasks."""
    referred: ResolvedReferences = NOTHING
    """What the message refers to."""
    acceptance: tuple[JsonObject, ...] = ()
    """The conditions of the task."""
    catalog: ToolCatalogResolved | None = None
    """The tools of the caller, if a rule withholds any of them (EVC-8)."""
    trace: Trace | None = None
    """Our span in the caller's trace, if it has one."""
    extensions: tuple[str, ...] = ()
    """URIs of extensions that the caller requests, for every call of the run."""
    demands: frozenset[str] = frozenset()
    """Extensions that the card requires and the gateway cannot activate in its own name."""
    shows_at_once: bool = False
    """Whether callers are shown the Task before the agent is called."""
    gated: bool = False
    """Whether a rule or hook may deny or change what is sent."""
    route: Route | None = None
    """How the agent was chosen, if the caller left that to the gateway."""
    hold: QueueHold | None = None
    """Why the attempt does not begin yet, if it waits for its agent."""
    blockers: tuple[str, ...] = ()
    """Tasks that have to complete before the message is sent."""
    template_key: object = field(default_factory=object, compare=False)
    """The same object for all plans that differ only per message: facts, references, conditions, extensions, trace.

    The sender of the message does not change a plan.
    """

    def find_agent(self, command: SubmitTurn) -> str:
        """The agent that the message is sent to."""
        return command.agent if self.route is None else self.route.agent or ""


def begin_attempt(
    record: TaskRecord, command: SubmitTurn, plan: Delegation, remote_context: str
) -> TaskAttemptStarted:
    """The intent to send the message of a turn, as the next attempt of its task."""
    card, trace = plan.card, plan.trace
    return TaskAttemptStarted(
        ordinal=len(record.attempts) + 1,
        worker=Worker(
            "agent", plan.find_agent(command), card.endpoint or None, card.sha256 or None
        ),
        native_protocol=card.protocol,
        delivery_mechanism=plan.mechanism,
        message_id=str(command.message["messageId"]),
        retry_policy=plan.policy,
        reason="first",
        remote_context_id=remote_context,
        traceparent=trace.parent if trace else None,
        tracestate=trace.state if trace else None,
        extensions=plan.extensions,
        gated=plan.gated,
    )


@frozen
class Conditions:
    """The conditions of new tasks; a task keeps those that it was created with."""

    find_terms: Callable[[str], PeerTerms]

    def read_command(self, agent: str, own: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        """The conditions of a task that a command creates or changes.

        Raises:
            InvalidInput: the caller's conditions are malformed, or too many.
        """
        return _join(self.find_terms(agent).acceptance, [*own], "acceptance")


def read_acceptance(wanted: tuple[JsonObject, ...], message: JsonObject) -> tuple[JsonObject, ...]:
    """The conditions of a task that ``message`` opens, at an agent with the configured conditions ``wanted``.

    Raises:
        InvalidInput: the caller's conditions are malformed, or too many.
    """
    own = object_at(message, "metadata").get(ACCEPTANCE) if "metadata" in message else None
    return wanted if own is None else _join(wanted, own, _AT_MESSAGE)


def add_conditions(
    wanted: tuple[JsonObject, ...], own: tuple[JsonObject, ...]
) -> tuple[JsonObject, ...]:
    """The conditions of a task once its owner is known.

    Raises:
        InvalidInput: they are too many together.
    """
    return _join(wanted, [*own], "acceptance")


def _join(wanted: tuple[JsonObject, ...], own: Json, at: str) -> tuple[JsonObject, ...]:
    further = [one for one in read_conditions(own, at) if one not in wanted]
    return read_conditions([*wanted, *further], at)


_AT_MESSAGE = f"message.metadata.{ACCEPTANCE}"


@frozen
class Planner:
    """Prepares delegations."""

    writes: Writes
    find_terms: Callable[[str], PeerTerms]
    drives: Callable[[Shard], Incarnation]
    """This instance's incarnation in a shard; raises where it holds no lease."""
    find_rules: Callable[[], Policy]
    spending: Spending
    _plans: OrderedDict[_PlanKey, Delegation] = field(
        default_factory=OrderedDict["_PlanKey", "Delegation"]
    )
    """Plans of messages without further options, by agent, wait mode and route."""

    async def plan(self, command: SubmitTurn, peer: Peer, route: Route | None = None) -> Delegation:
        """Gathers what must be known before the first append; ``route``: how ``peer`` was chosen, if it was.

        Raises:
            ExtensionRequired: the card requires one that the caller has not named and the gateway does not support.
            PeerUnavailable: the agent never had a readable card, and no further attempt would follow.
        """
        agent = command.agent if route is None else peer.name
        terms = self.find_terms(agent)
        card = peer.fresh or await _describe(peer, terms.policy)
        gated = self.find_rules().judges_sends
        # By identity and not by value: equal routes have the same object.
        key = (agent, command.wait, None if route is None else id(route))
        known = self._plans.get(key)
        if (
            known is None
            or known.route is not route
            or not (known.card is card or _are_alike(known.card, card))
            or (
                known.policy is not terms.policy
                if route is None
                else known.policy != _hand_over(terms.policy, route)
            )
            or known.shows_at_once is not terms.always_task
            or known.gated is not gated
        ):
            known = self._compose(agent, command.wait, card, terms, gated=gated)
            if route is not None:
                known = change(known, route=route, policy=_hand_over(terms.policy, route))
            if key not in self._plans and len(self._plans) >= _KEPT:
                self._plans.popitem(last=False)
            self._plans[key] = known
        self._plans.move_to_end(key)
        extensions = EXTENSIONS.get()
        if missing := known.demands - extensions:
            raise ExtensionRequired(min(missing))
        if "metadata" in command.message and read_named(command.message):
            # The name is resolved before anything is sent.
            known = change(known, gated=True)
        acceptance, trace = read_acceptance(terms.acceptance, command.message), TRACE.get()
        if not acceptance and trace is None and not extensions:
            return known
        return change(
            known, acceptance=acceptance, trace=trace, extensions=_choose_extensions(extensions)
        )

    def refuse(self, route: Route) -> Delegation:
        """The plan of a message that is sent to no agent."""
        return Delegation(
            card=_NO_CARD,
            mechanism="unary",
            policy=RetryPolicy(),
            judge=self._make_judge(ROUTER),
            drives=self.drives,
            route=route,
            trace=TRACE.get(),
        )

    def _make_judge(self, agent: str) -> Callable[[str, Ids, Shard], PermissionEvaluated]:
        def judge(who: str, ids: Ids, shard: Shard) -> PermissionEvaluated:
            evaluation = evaluate(
                InboundCall(who, agent),
                PolicyFacts(ids.mint("eval", shard), may_call=True),
                self.writes.clock.now_ms(),
            )
            return evaluation.to_payload()

        return judge

    def _compose(
        self,
        agent: str,
        wait: WaitMode,
        card: PeerCard,
        terms: PeerTerms,
        *,
        gated: bool,
    ) -> Delegation:
        # Without a list of tasks, a task is found again after a lost answer only by the id in its first frame.
        streams = card.streaming and (wait != "unary" or not card.lists)
        return Delegation(
            card=card,
            mechanism="streaming" if streams else "unary",
            policy=terms.policy,
            judge=self._make_judge(agent),
            drives=self.drives,
            shows_at_once=terms.always_task,
            gated=gated,
            demands=list_required(card.card) - UNDERSTOOD,
        )


def _hand_over(policy: RetryPolicy, route: Route) -> RetryPolicy:
    """The retry policy at an agent that the gateway has chosen: the other suitable agents are its fallbacks."""
    return replace(policy, fallback=route.others or None)


def _are_alike(one: PeerCard, other: PeerCard) -> bool:
    """Whether two cards lead to the same plan; usually a card is unchanged when it is read again."""
    return (
        one.sha256 == other.sha256
        and one.endpoint == other.endpoint
        and one.protocol == other.protocol
        and one.streaming == other.streaming
        and one.lists == other.lists
    )


def _choose_extensions(extensions: frozenset[str]) -> tuple[str, ...]:
    """The caller's extensions that a run stores: extensions of the gateway end here (A2A 1.0 section 4.6)."""
    return tuple(sorted(uri for uri in extensions if not uri.startswith(PREFIX)))


async def _describe(peer: Peer, policy: RetryPolicy) -> PeerCard:
    """Requests the card; an agent without one is refused, unless a further attempt may follow (ATT-16)."""
    try:
        return await peer.describe()
    except PeerUnavailable:
        if policy.attempts == 1 and not policy.fallback:
            raise
        return _NO_CARD
