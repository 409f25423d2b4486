"""Client settings, as a configuration file defines them."""

from __future__ import annotations

from passerelle.core.principal import AccessScope
from passerelle.gateway.auth.keys import hash_key
from passerelle.gateway.settings.callers import (
    DEFAULT_SCOPES,
    CallerKind,
    ClientSettings,
    GrantSettings,
)
from passerelle.runtime.common.secret import Secret


def make_client(
    name: str,
    key: str | None,
    *agents: str,
    scopes: tuple[AccessScope, ...] = DEFAULT_SCOPES,
    kind: CallerKind = "service",
    certificate: str | None = None,
) -> ClientSettings:
    """A client with a plain-text key and the agents that it may call."""
    return ClientSettings(
        name=name,
        key_hash=hash_key(Secret(key)) if key else None,
        certificate=certificate,
        may_call=tuple(GrantSettings(agent=agent) for agent in agents),
        scopes=scopes,
        kind=kind,
    )
