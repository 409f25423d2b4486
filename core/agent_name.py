"""Names of agents: ``echo``, or ``echo/acme`` for its tenant ``acme``.

A tenant of an agent is served, called and listed like an agent. It is never granted by itself: a caller that may call
an agent may call all its tenants, since a tenant routes a call and carries no right (A2A 1.0 section 8.3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

SEPARATOR: Final = "/"
ROUTER: Final = "passerelle"
"""The gateway's own agent: it routes each message to one of the agents that the caller may call."""


def is_served(agent: str, names: Collection[str]) -> bool:
    """Whether ``agent`` is the router or one of the configured ``names``."""
    return agent == ROUTER or agent in names


def find_base(agent: str) -> str:
    """The configured agent that a name belongs to: its grants, limits and prices apply."""
    return agent.partition(SEPARATOR)[0]


def find_tenant(agent: str) -> str | None:
    """The tenant in a name, if there is one."""
    return agent.partition(SEPARATOR)[2] or None


def name_tenant(base: str, tenant: str) -> str:
    """The name of a tenant of an agent."""
    return f"{base}{SEPARATOR}{tenant}"
