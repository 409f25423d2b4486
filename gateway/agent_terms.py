"""What the configuration says of each agent, for those who ask by name; a reload swaps all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.gateway.auth.grants import enter_client
from passerelle.gateway.auth.keys import OWNER
from passerelle.gateway.auth.principals import find_principal
from passerelle.gateway.rulebook import Rulebook
from passerelle.gateway.settings_peers import make_retry_policy
from passerelle.gateway.settings_policy import read_policy

if TYPE_CHECKING:
    from passerelle.core.facts import RetryPolicy
    from passerelle.core.json import JsonObject
    from passerelle.core.principal import Principal
    from passerelle.gateway.delegation.patience import Patience
    from passerelle.gateway.settings import Settings
    from passerelle.gateway.settings_agents import AgentTimeout
    from passerelle.permission_bridge.rules import Policy


class AgentTerms:
    """Tags, forms of answers, retry policies, and who may have their tasks.

    An agent that is gone keeps its policy for the runs that it has.
    """

    def __init__(self, settings: Settings) -> None:
        self._policies: dict[str, RetryPolicy] = {}
        self._tags: dict[str, frozenset[str]] = {}
        self._acceptance: dict[str, tuple[JsonObject, ...]] = {}
        self._always: frozenset[str] = frozenset()
        self._correlated: frozenset[str] = frozenset()
        self._timeouts: dict[str, AgentTimeout] = {}
        self._connect_ms: dict[str, int] = {}
        self._adapted: dict[str, tuple[Patience, Patience]] = {}
        self.rulebook = Rulebook()
        self._settings = settings
        self.reload(settings)

    def reload(self, settings: Settings) -> None:
        """The agents of another configuration."""
        served = [(name, agent) for agent in settings.agents for name in agent.served_names]
        policies = {name: make_retry_policy(agent) for name, agent in served}
        self._policies = {**self._policies, **policies}
        self.rulebook.configure(read_policy(settings.policy))
        self._settings = settings
        self._tags = {name: frozenset(agent.tags) for name, agent in served}
        self._acceptance = {name: agent.conditions for name, agent in served}
        self._always = frozenset(name for name, agent in served if agent.answers == "always_task")
        self._correlated = frozenset(name for name, agent in served if agent.correlation)
        self._timeouts = {name: agent.timeout for name, agent in served}
        self._adapted = {}
        self._connect_ms = {name: round(agent.connect_s * 1000) for name, agent in served}

    def find_principal(self, identity: str, tenant: str) -> Principal | None:
        """A principal by its name, as the configuration knows it; None where it is not in there."""
        return find_principal(self._settings, identity, tenant)

    def list_callers(self) -> tuple[Principal, ...]:
        """Everybody whom the configuration knows by name: the owner and the clients."""
        return OWNER, *(enter_client(client) for client in self._settings.clients)

    def adapt(self, agent: str, patience: Patience) -> Patience:
        """The patience with an agent: how long its messages may be on their way, and itself out of reach."""
        known = self._adapted.get(agent)
        if known is not None and known[0] is patience:
            return known[1]
        timeout = self._timeouts.get(agent)
        if timeout is None:
            return patience
        adapted = replace(
            patience, doubt_s=timeout.arrival.seconds, liveness_s=timeout.liveness.seconds
        )
        # Asked for with every run, and the same for all runs at an agent.
        self._adapted[agent] = patience, adapted
        return adapted

    def find_connect_ms(self, agent: str) -> int:
        """How long a message waits for an agent that dials in; none for one that is configured no more."""
        return self._connect_ms.get(agent, 0)

    def correlates(self, agent: str) -> bool:
        """Whether messages to an agent carry a key by which its tasks are found again."""
        return agent in self._correlated

    def find_policy(self, agent: str) -> RetryPolicy:
        """The terms of an attempt at an agent."""
        return self._policies[agent]

    def find_rules(self) -> Policy:
        """What may happen without asking."""
        return self.rulebook.find_rules()

    def find_tags(self, agent: str) -> frozenset[str]:
        """Words of the operator's own."""
        return self._tags.get(agent, frozenset())

    def find_acceptance(self, agent: str) -> tuple[JsonObject, ...]:
        """What its tasks must bring; a task keeps what was wanted when it was made."""
        return self._acceptance.get(agent, ())

    def shows_always(self, agent: str) -> bool:
        """Whether callers get a Task of an agent whatever it answers."""
        return agent in self._always
