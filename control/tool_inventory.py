"""The tools that a caller may use now: the agents it may call, with their skills and the decision of policy for each.

Nothing is written, and no agent is called except for a card that was never read; agents that the caller may not call
are left out. As for a send, two evaluations apply: of the call, and of the delegation to the agent.

If a rule applies, a turn records the same as a fact (EVC-8): what is withheld, and by which rule. Grants do not count
there, as for messages.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.a2a_mapping.rpc import Method
from passerelle.core.commands import ListAgents
from passerelle.core.frozen import frozen
from passerelle.core.payloads.tool import ToolCatalogResolved, ToolGroup
from passerelle.core.policy.requests import (
    AgentTools,
    EvaluatePermission,
    Subject,
    ToolInventory,
)
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.governing.command_gate import GOVERNED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.control.catalogue import Catalogue
    from passerelle.core.policy.requests import GetToolInventory
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.governing.judgement import CallerPolicy, PolicyPreview
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import Effect, Policy

_State: TypeAlias = Literal["allowed", "ask", "denied", "unavailable"]
_STATES: Final[dict[Effect, _State]] = {
    "allow": "allowed",
    "ask": "ask",
    "deny": "denied",
}
_STRICTEST: Final[tuple[Effect, ...]] = ("deny", "ask", "allow")
_About: TypeAlias = Literal["calls", "delegations"]
_JUDGED: Final[tuple[_About, ...]] = ("calls", "delegations")
_NOT_BY_RULE: Final = frozenset({"credential", "agent"})

FRESH_MS: Final = 60_000
"""Validity of a catalog for the turns of its caller: rules may depend on the time, and agents change."""
KEPT_CATALOGS: Final = 1_024
NAMED_GROUPS: Final = 64
"""Groups that a fact lists; further ones are only counted."""


@frozen
class _Availability:
    """The state of an agent or command for a caller, and its source."""

    state: _State
    source: str
    reason: str
    found: Evaluation


@frozen
class _KeptCatalog:
    rules: Policy
    until_ms: int
    catalog: ToolCatalogResolved


@frozen
class ToolInventories:
    """Composes inventories."""

    catalogue: Catalogue
    judging: PolicyPreview
    _kept: OrderedDict[Principal, _KeptCatalog] = field(
        default_factory=OrderedDict["Principal", _KeptCatalog]
    )

    async def read(self, principal: Principal, query: GetToolInventory) -> JsonObject:
        """The inventory of the caller (CMD-18, SNAP-3)."""
        policy = await self.judging.prepare(principal)
        listed = await self.catalogue.list(principal, ListAgents(query.skill, query.tag))
        agents = tuple(self._describe(policy, entry) for entry in objects_at(listed, "agents"))
        inventory = ToolInventory(
            policy.rules.mode, policy.rules.version, bypass=policy.facts.bypass, agents=agents
        )
        return to_wire(inventory)

    def resolve(self, principal: Principal) -> ToolCatalogResolved | None:
        """The catalog for a caller's turn, at most ``FRESH_MS`` old; None if nothing is withheld (EVC-8).

        No agent is asked: the skills of an agent whose card was never read are missing.
        """
        if not self.judging.find_rules().judges_tools:
            return None
        policy, kept = self.judging.prepare_by_rules(principal), self._kept.pop(principal, None)
        if kept is None or kept.rules is not policy.rules or kept.until_ms <= policy.now_ms:
            catalog = self._compose_catalog(policy)
            kept = _KeptCatalog(policy.rules, policy.now_ms + FRESH_MS, catalog)
            if len(self._kept) >= KEPT_CATALOGS:
                self._kept.popitem(last=False)
        self._kept[principal] = kept
        return kept.catalog if kept.catalog.groups else None

    def _compose_catalog(self, policy: CallerPolicy) -> ToolCatalogResolved:
        groups, allowed = list[ToolGroup](), 0
        # Without a rule about it, the default allows.
        spoken: list[_About] = [one for one in _JUDGED if policy.rules.speaks_about(one)]
        for agent in filter(policy.principal.may_call, self.catalogue.list_names()):
            card = self.catalogue.peek(agent)
            availability = self._judge(
                policy, agent, is_known=card is not None, abouts=spoken or _JUDGED
            )
            if availability.state == "allowed":
                allowed += 1
                continue
            skills = objects_at(card.card, "skills") if card else []
            names = tuple(text_at(skill, "id") for skill in skills)
            groups.append(_group("skill", availability, names, agent))
        if policy.rules.speaks_about("commands"):
            groups += _list_commands(policy)
        return ToolCatalogResolved(
            caller=policy.principal.id,
            groups=tuple(groups[:NAMED_GROUPS]),
            allowed=allowed,
            unnamed=max(len(groups) - NAMED_GROUPS, 0),
            policy_version=policy.rules.version,
            mode=policy.rules.mode,
            digest=digest([to_wire(one) for one in groups]),
        )

    def _describe(self, policy: CallerPolicy, entry: JsonObject) -> AgentTools:
        agent = text_at(entry, "name")
        is_known = text_at(entry, "status") != "unreachable"
        availability = self._judge(policy, agent, is_known=is_known)
        return AgentTools(
            agent=agent,
            state=availability.state,
            source=availability.source,
            reason=availability.reason,
            rules=availability.found.rules,
            risk=availability.found.risk,
            title=text_at(entry, "title"),
            tags=tuple(texts_at(entry, "tags")),
            skills=tuple(objects_at(entry, "skills")),
        )

    def _judge(
        self,
        policy: CallerPolicy,
        agent: str,
        *,
        is_known: bool,
        abouts: Sequence[_About] = _JUDGED,
    ) -> _Availability:
        """The strictest decision of policy, unless the credential forbids it, or the agent is unavailable."""
        judged = [policy.evaluate(EvaluatePermission(about, agent)) for about in abouts]
        found = min(judged, key=lambda one: _STRICTEST.index(one.decision))
        if not policy.principal.may_use(agent, Method.SEND_MESSAGE):
            why = "it may not send messages to the agent"
            return _Availability("denied", "credential", why, found)
        missing = self._find_missing(agent, is_known=is_known)
        if missing is not None and found.decision != "deny":
            return _Availability("unavailable", "agent", missing, found)
        return _to_availability(found)

    def _find_missing(self, agent: str, *, is_known: bool) -> str | None:
        if not is_known:
            return "its card could not be read"
        return "calls to it have failed" if self.catalogue.rests(agent) else None


def _to_availability(found: Evaluation) -> _Availability:
    return _Availability(_STATES[found.decision], str(found.source), found.reason, found)


def _list_commands(policy: CallerPolicy) -> list[ToolGroup]:
    """The commands that rules withhold, as far as the rules do not depend on the task and the arguments."""
    groups = list[ToolGroup]()
    for tool, action_type in GOVERNED.items():
        query = EvaluatePermission("commands", action_type=action_type, subject=Subject(tool=tool))
        found = policy.evaluate(query)
        if found.decision != "allow":
            groups.append(_group("gateway_action", _to_availability(found), (tool,)))
    return groups


def _group(
    kind: Literal["skill", "gateway_action"],
    availability: _Availability,
    names: tuple[str, ...],
    peer: str | None = None,
) -> ToolGroup:
    rules = () if availability.source in _NOT_BY_RULE else availability.found.rules
    return ToolGroup(kind, availability.state, names, peer, rules, availability.reason)
