"""How an agent stands, for whoever keeps the gateway running: the card, breakers, limits, and calls of the last hour.

All of it is what this instance knows by now. Nobody is asked, and no address or credential of the agent is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from passerelle.a2a_mapping.members import text_at
from passerelle.core.errors import NotFound
from passerelle.core.read_models.agent_health import AgentCalls, AgentHealth
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.oversight_requests import GetAgentHealth
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.agent_health import AgentLimits
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.observability.call_window import CallReport


class WatchedAgents(Protocol):
    """The configured agents as this process knows them; ``PeerRegistry`` is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the configuration."""
        ...

    @property
    def dialling(self) -> tuple[str, ...]:
        """Those that dial in."""
        ...

    def peek(self, name: str) -> PeerCard | None:
        """The card as it is known by now."""
        ...

    def list_breakers(self, name: str) -> Mapping[str, str]:
        """How the breaker of each interface that was used stands."""
        ...

    def count_links(self, name: str) -> int:
        """Sockets of one that dials in, to this instance."""
        ...

    def describe_limits(self, name: str) -> AgentLimits:
        """What is allowed, and what of it is used here."""
        ...


class WatchedCalls(Protocol):
    """The calls of the last hour; ``CallWindow`` is one."""

    def report(self, agent: str) -> CallReport:
        """How calls to an agent went."""
        ...

    def find_card_since(self, agent: str) -> int | None:
        """Since when its card is as it is, in ms."""
        ...


@dataclass(frozen=True, slots=True)
class AgentWatch:
    """Answers who asks how an agent stands."""

    agents: WatchedAgents | None
    calls: WatchedCalls | None
    clock: Clock
    count_driven: Callable[[str], int]
    name_instance: Callable[[], str]

    async def read(self, principal: Principal, query: GetAgentHealth) -> JsonObject:
        """The health of an agent that the reader sees.

        Raises:
            NotFound: there is none of that name, or the reader does not see it.
        """
        name = query.name
        if self.agents is None or self.calls is None:
            raise NotFound("agent", name)
        if name not in self.agents.names or not principal.sees(name):
            raise NotFound("agent", name)
        card, modes = self.agents.peek(name), self.agents.list_breakers(name)
        report = self.calls.report(name)
        since_ms = self.calls.find_card_since(name)
        return to_wire(
            AgentHealth(
                name=name,
                at=format_ms(self.clock.now_ms()),
                instance=self.name_instance(),
                status="unknown" if card is None else "stale" if card.stale else "ready",
                calls=_show_calls(report),
                limits=self.agents.describe_limits(name),
                card_since=None if since_ms is None or card is None else format_ms(since_ms),
                version=None if card is None else text_at(card.card, "version"),
                protocol=None if card is None else card.protocol,
                signature=None if card is None else card.signature,
                breakers=dict(sorted(modes.items())),
                rests=bool(modes) and "closed" not in modes.values(),
                links=self.agents.count_links(name) if name in self.agents.dialling else None,
                runs=self.count_driven(name),
            )
        )


def _show_calls(report: CallReport) -> AgentCalls:
    return AgentCalls(
        since=format_ms(report.since_ms),
        outcomes=report.outcomes,
        p50_ms=None if report.p50_s is None else max(1, round(report.p50_s * 1000)),
        p95_ms=None if report.p95_s is None else max(1, round(report.p95_s * 1000)),
        answered_at=None if report.answered_ms is None else format_ms(report.answered_ms),
        failed_at=None if report.failed_ms is None else format_ms(report.failed_ms),
    )
