"""What must be known, and what must be free, before a message is taken: the agent's card, the policy, the quota."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.errors import ExtensionRequired
from passerelle.a2a_mapping.extensions import PREFIX, UNDERSTOOD, list_required
from passerelle.core.errors import PeerUnavailable
from passerelle.core.peer import PeerCard
from passerelle.delegation.runs.conditions import read_message
from passerelle.delegation.runs.plan import Delegation
from passerelle.permission_bridge.cases import InboundCall
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.runtime.common.carried import EXTENSIONS, TRACE
from passerelle.runtime.limits.spending import FREE

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import Incarnation
    from passerelle.core.commands import SubmitTurn, Wait
    from passerelle.core.facts import RetryPolicy
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import PermissionEvaluated
    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.peer_terms import PeerTerms
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.limits.spending import Charge, Spending
    from passerelle.runtime.records.writes import Writes

_KEPT: Final = 8_192
"""Plans that are remembered; then the one that has not been wanted for the longest time makes room."""
_NO_CARD: Final = PeerCard({}, "", "", streaming=False, protocol="a2a/1.0", stale=True)


@dataclass(frozen=True, slots=True)
class Planning:
    """Prepares delegations."""

    writes: Writes
    find_terms: Callable[[str], PeerTerms]
    drives: Callable[[Shard], Incarnation]
    """This instance's incarnation in a shard; raises where it holds no lease."""
    find_rules: Callable[[], Policy]
    spending: Spending | None = None
    _kept: OrderedDict[tuple[str, str, Wait], Delegation] = field(
        default_factory=OrderedDict[tuple[str, str, "Wait"], "Delegation"]
    )
    """By caller, agent and how the caller waits: the plan of a message of which nothing else is known."""

    async def plan(self, principal: Principal, command: SubmitTurn, peer: Peer) -> Delegation:
        """What must be known before the first append.

        Raises:
            ExtensionRequired: the card requires one that neither the caller has named nor the gateway speaks.
            PeerUnavailable: the agent never had a card that could be read, and nothing would follow.
        """
        terms = self.find_terms(command.agent)
        card = peer.fresh or await _describe(peer, terms.policy)
        gated = self.find_rules().judges_sends
        key = (principal.id, command.agent, command.wait)
        known = self._kept.get(key)
        if (
            known is None
            or not (known.card is card or _are_alike(known.card, card))
            or known.policy is not terms.policy
            or known.shows_at_once is not terms.always_task
            or known.gated is not gated
        ):
            known = self._compose(principal, command, card, terms, gated=gated)
            if key not in self._kept and len(self._kept) >= _KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = known
        self._kept.move_to_end(key)
        wishes = EXTENSIONS.get()
        if missing := known.demands - wishes:
            raise ExtensionRequired(min(missing))
        acceptance, trace = read_message(terms.acceptance, command.message), TRACE.get()
        if not acceptance and trace is None and not wishes:
            return known
        return replace(known, acceptance=acceptance, trace=trace, extensions=_choose_kept(wishes))

    def _compose(
        self,
        principal: Principal,
        command: SubmitTurn,
        card: PeerCard,
        terms: PeerTerms,
        *,
        gated: bool,
    ) -> Delegation:
        who, agent = principal.id, command.agent

        def judge(ids: Ids, shard: Shard) -> PermissionEvaluated:
            evaluation = evaluate(
                InboundCall(who, agent),
                PolicyFacts(ids.mint("eval", shard), may_call=True),
                self.writes.clock.now_ms(),
            )
            return evaluation.to_payload()

        # Without a list of tasks the answer to a send is found again only by an id seen at its first frame.
        streams = card.streaming and (command.wait != "unary" or not card.lists)
        return Delegation(
            card=card,
            mechanism="streaming" if streams else "unary",
            policy=terms.policy,
            judge=judge,
            drives=self.drives,
            shows_at_once=terms.always_task,
            gated=gated,
            demands=list_required(card.card) - UNDERSTOOD,
        )

    @property
    def charges(self) -> bool:
        """Whether anybody has a quota, or any agent a price."""
        return self.spending is not None and self.spending.is_on

    async def charge(self, principal: Principal, command: SubmitTurn) -> Charge:
        """Before anything is stored: a caller whose quota is used up opens no turn."""
        if self.spending is None:
            return FREE
        return await self.spending.charge(principal, command.agent, opens=command.task is None)

    async def charge_run(self, principal: Principal, agent: str) -> Charge:
        """The same for a further attempt at a task that its owner wants."""
        if self.spending is None:
            return FREE
        return await self.spending.charge(principal, agent, opens=True)


def _are_alike(one: PeerCard, other: PeerCard) -> bool:
    """Whether two cards lead to the same plan; one that was read anew mostly says what the last one said."""
    return (
        one.sha256 == other.sha256
        and one.endpoint == other.endpoint
        and one.protocol == other.protocol
        and one.streaming == other.streaming
        and one.lists == other.lists
    )


def _choose_kept(wishes: frozenset[str]) -> tuple[str, ...]:
    """What a run has to remember of its caller's wishes: those that are ours end here (A2A 1.0 section 4.6)."""
    return tuple(sorted(uri for uri in wishes if not uri.startswith(PREFIX)))


async def _describe(peer: Peer, policy: RetryPolicy) -> PeerCard:
    """The card, asked for; one that never had any is refused, unless a further attempt may follow (ATT-16)."""
    try:
        return await peer.describe()
    except PeerUnavailable:
        if policy.attempts == 1 and not policy.fallback:
            raise
        return _NO_CARD
