"""Names of agents: ``echo``, or ``echo/acme`` for one tenant of it.

A tenant of an agent is served, called and listed like an agent of its own below it. Nobody is granted one: who may call
an agent may call all its tenants, since a tenant is a way to route and no right (A2A 1.0 section 8.3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

SEPARATOR: Final = "/"
ROUTER: Final = "passerelle"
"""The gateway's own agent: it has every message done by one of those that its caller may call."""


def is_served(agent: str, names: Collection[str]) -> bool:
    """Whether there is an agent of that name beside the configured ``names``."""
    return agent == ROUTER or agent in names


def find_base(agent: str) -> str:
    """The configured agent that a name belongs to; grants, limits and prices are its."""
    return agent.partition(SEPARATOR)[0]


def find_tenant(agent: str) -> str | None:
    """The tenant in a name."""
    return agent.partition(SEPARATOR)[2] or None


def name_tenant(base: str, tenant: str) -> str:
    """The name of a tenant of an agent."""
    return f"{base}{SEPARATOR}{tenant}"
