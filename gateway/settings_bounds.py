"""From the sections of callers to the limits that hold for them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from passerelle.runtime.limits.bounds import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.gateway.settings import Settings
    from passerelle.gateway.settings_callers import CallerSettings
    from passerelle.runtime.limits.account import Quota
    from passerelle.runtime.limits.costs import Price


def list_callers(settings: Settings) -> Iterator[tuple[str, CallerSettings]]:
    """Clients by name, issuers by name and colon."""
    return chain(
        ((client.name, client) for client in settings.clients),
        ((f"{issuer.name}:", issuer) for issuer in settings.issuers),
    )


def list_bounds(settings: Settings) -> dict[str, Bounds]:
    """Rate and concurrency; whoever has no limit is not in it."""
    named = {name: caller.limits.bounds() for name, caller in list_callers(settings)}
    return {name: bounds for name, bounds in named.items() if bounds != Bounds()}


def list_quotas(settings: Settings) -> dict[str, tuple[Quota, ...]]:
    """What callers may use up; whoever has no quota is not in it."""
    return {
        name: tuple(quota.quota() for quota in caller.quotas)
        for name, caller in list_callers(settings)
        if caller.quotas
    }


def list_prices(settings: Settings) -> dict[str, Price]:
    """What agents cost; an agent without a price is not in it."""
    return {
        name: agent.price.price()
        for agent in settings.agents
        if agent.price
        for name in agent.served_names
    }
