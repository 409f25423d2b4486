"""The capability page of this gateway: what the ledger lists as built, without what the configuration turns off."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from passerelle.core.read_models.capabilities import Capability, show_capabilities
from passerelle.gateway.settings.values import read_memory_terms
from passerelle.runtime.common.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.read_models.capabilities import CapabilityPage
    from passerelle.gateway.settings.model import Settings

FILE: Final = "capabilities.json"
"""Generated from the ledger, which is not part of the package."""


def describe_capabilities(settings: Settings | None = None) -> CapabilityPage:
    """The page under these settings; without settings nothing is turned off (ID-17)."""
    off = dict(_find_switched_off(settings)) if settings else {}
    return show_capabilities(VERSION, _load_built(), off)


@cache
def _load_built() -> tuple[Capability, ...]:
    stored = files("passerelle.gateway").joinpath(FILE).read_bytes()
    return TypeAdapter(tuple[Capability, ...]).validate_json(stored)


def _find_switched_off(settings: Settings) -> Iterator[tuple[str, str]]:
    """Parts that this configuration turns off, as ``item.part``, each with the setting that does it."""
    if not settings.policy.hooks:
        yield "boundaries.hooks", "no hook is configured (policy.hooks)"
    if settings.policy.mode == "no_ask":
        reason = "requests that need approval are denied (policy.mode is no_ask)"
        yield "human_in_the_loop.approvals", reason
    if settings.spans.otlp_endpoint is None:
        yield "evidence.spans", "no spans are sent (spans.otlp_endpoint)"
    has_price = any(agent.price for agent in settings.agents)
    has_quota = any(client.quotas for client in settings.clients)
    if not (has_price or has_quota):
        reason = "no agent has a price, and no client a quota (agents.price, clients.quotas)"
        yield "routing_and_limits.cost_and_quota", reason
    if read_memory_terms(settings).shortest_ms is None:
        reason = "sessions stay in the memory of the store forever (retention.memory)"
        yield "tasks.archive", reason
