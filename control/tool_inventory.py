"""What a caller may use now: the agents that it may call, with their skills and what policy says to work for them.

Nothing is written, no agent is called but for a card that was never read, and nobody is named whom the caller may not
call. Work for an agent passes two judgements, as a send does: of the call, and of what goes out to the agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.a2a_mapping.rpc import Method
from passerelle.core.commands import ListAgents
from passerelle.core.policy.requests import AgentTools, EvaluatePermission, ToolInventory
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from typing import Literal

    from passerelle.control.catalogue import Catalogue
    from passerelle.core.policy.requests import GetToolInventory
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.governing.judgement import CallerPolicy, Judging
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import Effect

_State: TypeAlias = "Literal['allowed', 'ask', 'denied', 'unavailable']"
_STATES: Final[dict[Effect, _State]] = {
    "allow": "allowed",
    "ask": "ask",
    "deny": "denied",
}
_STRICTEST: Final[tuple[Effect, ...]] = ("deny", "ask", "allow")


@dataclass(frozen=True, slots=True)
class ToolInventories:
    """Composes inventories."""

    catalogue: Catalogue
    judging: Judging

    async def read(self, principal: Principal, query: GetToolInventory) -> JsonObject:
        """The inventory of the caller (CMD-18, SNAP-3)."""
        policy = await self.judging.prepare(principal)
        listed = await self.catalogue.list(principal, ListAgents(query.skill, query.tag))
        agents = tuple(self._describe(policy, entry) for entry in objects_at(listed, "agents"))
        inventory = ToolInventory(
            policy.rules.mode, policy.rules.version, bypass=policy.facts.bypass, agents=agents
        )
        return to_wire(inventory)

    def _describe(self, policy: CallerPolicy, entry: JsonObject) -> AgentTools:
        agent = text_at(entry, "name")
        found = _judge(policy, agent)
        state, source, reason = _STATES[found.decision], str(found.source), found.reason
        if not policy.principal.may_use(agent, Method.SEND_MESSAGE):
            state, source, reason = "denied", "credential", "it may not send messages to the agent"
        elif state != "denied" and (missing := self._find_missing(entry)):
            state, source, reason = "unavailable", "agent", missing
        return AgentTools(
            agent=agent,
            state=state,
            source=source,
            reason=reason,
            rules=found.rules,
            risk=found.risk,
            title=text_at(entry, "title"),
            tags=tuple(texts_at(entry, "tags")),
            skills=tuple(objects_at(entry, "skills")),
        )

    def _find_missing(self, entry: JsonObject) -> str | None:
        if text_at(entry, "status") == "unreachable":
            return "its card could not be read"
        return "calls to it have failed" if self.catalogue.rests(text_at(entry, "name")) else None


def _judge(policy: CallerPolicy, agent: str) -> Evaluation:
    """The stricter word of two."""
    found = [
        policy.evaluate(EvaluatePermission("calls", agent)),
        policy.evaluate(EvaluatePermission("delegations", agent)),
    ]
    return min(found, key=lambda one: _STRICTEST.index(one.decision))
