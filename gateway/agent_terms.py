"""The settings of each agent, looked up by name; a reload replaces all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.principal import OWNER
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.delegation.runs.volume import OutputLimits
from passerelle.gateway.auth.principals import find_principal, make_client_principal
from passerelle.gateway.capabilities import describe_capabilities
from passerelle.gateway.settings.policy import read_policy
from passerelle.gateway.settings.values import make_retry_policy
from passerelle.permission_bridge.governing.rulebook import Rulebook

if TYPE_CHECKING:
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.capabilities import CapabilityPage
    from passerelle.delegation.runs.follow_strategy import Timeouts
    from passerelle.gateway.settings.agents import AgentSettings
    from passerelle.gateway.settings.model import Settings
    from passerelle.permission_bridge.rules import Policy


class AgentTerms:
    """The settings of each agent, the callers who may use its tasks, and the rules.

    A removed agent keeps its retry policy for its open runs.
    """

    def __init__(self, settings: Settings, timeouts: Timeouts) -> None:
        """``timeouts`` are the defaults for agents whose settings do not set them."""
        self.timeouts: Final = timeouts
        self._unknown = PeerTerms(timeouts)
        self._known: dict[str, PeerTerms] = {}
        self.rulebook = Rulebook()
        self.fault: str | None = None
        """Why the current configuration file is not applied."""
        self.reload(settings)

    def reload(self, settings: Settings) -> None:
        """Applies another configuration."""
        self._outputs = settings.outputs
        self._held_bytes = settings.memory.find_budget()
        gone = {name: PeerTerms(self.timeouts, one.policy) for name, one in self._known.items()}
        served = [(name, agent) for agent in settings.agents for name in agent.served_names]
        self._known = gone | {name: self._read(agent) for name, agent in served}
        self.rulebook.configure(read_policy(settings.policy))
        self._settings = settings

    def _read(self, agent: AgentSettings) -> PeerTerms:
        timeout = agent.timeout
        return PeerTerms(
            timeouts=replace(
                self.timeouts,
                doubt_s=timeout.arrival.seconds,
                liveness_s=timeout.liveness.seconds,
                stalled_s=timeout.stalled.seconds,
                notify_after_s=agent.busy.told_after.seconds,
                refuses=agent.busy.callers == "refuse",
                busy_s=agent.busy.give_up.seconds if agent.busy.give_up else None,
            ),
            policy=make_retry_policy(agent),
            tags=frozenset(agent.tags),
            acceptance=agent.conditions,
            always_task=agent.answers == "always_task",
            correlates=agent.correlation,
            await_approval=agent.streams.await_approval,
            connect_ms=round(agent.connect_s * 1000),
            limits=OutputLimits(
                agent.artifact_bytes or self._outputs.artifact_bytes,
                agent.task_bytes or self._outputs.task_bytes,
                agent.events_per_s or self._outputs.events_per_s,
                agent.bytes_per_s or self._outputs.bytes_per_s,
                (self._outputs.chunk_delay if agent.chunk_delay is None else agent.chunk_delay).ms,
                self._held_bytes,
            ),
        )

    def find(self, agent: str) -> PeerTerms:
        """The settings of an agent; defaults for one that was never configured."""
        return self._known.get(agent, self._unknown)

    def find_tags(self, agent: str) -> frozenset[str]:
        """The operator's tags of an agent."""
        return self.find(agent).tags

    def find_connect_ms(self, agent: str) -> int:
        """How long a message waits for an agent that dials in, in ms; 0 for one no longer configured."""
        return self.find(agent).connect_ms

    def describe_capabilities(self) -> CapabilityPage:
        """The capability page under the current configuration."""
        return describe_capabilities(self._settings)

    def find_rules(self) -> Policy:
        """The policy in force."""
        return self.rulebook.find_rules()

    def find_principal(self, identity: str, tenant: str) -> Principal | None:
        """A principal by id and tenant, as configured; None if it is not in the configuration."""
        return find_principal(self._settings, identity, tenant)

    def list_callers(self) -> tuple[Principal, ...]:
        """All callers that the configuration names: the owner and the clients."""
        return OWNER, *(make_client_principal(client) for client in self._settings.clients)
