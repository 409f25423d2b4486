"""From the sections of callers to the limits that hold for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.gateway.limits.bounds import Bounds

if TYPE_CHECKING:
    from passerelle.gateway.settings import Settings


def list_bounds(settings: Settings) -> dict[str, Bounds]:
    """The limits of clients by name, and of issuers by name and colon; whoever has none is not in it."""
    named = [(client.name, client.limits.bounds()) for client in settings.clients]
    named += [(f"{issuer.name}:", issuer.limits.bounds()) for issuer in settings.issuers]
    return {name: bounds for name, bounds in named if bounds != Bounds()}
