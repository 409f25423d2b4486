"""Principals from the configuration: what their grants allow, and the rights that a name has by itself.

``find_principal`` looks a principal up by name, without its credential.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.principal import EVERY_AGENT, OWNER, Principal

if TYPE_CHECKING:
    from passerelle.gateway.settings.callers import CallerSettings, ClientSettings, GrantSettings
    from passerelle.gateway.settings.model import Settings


def make_client_principal(client: ClientSettings) -> Principal:
    """The principal of a client."""
    return make_principal(client, client.name)


def make_principal(caller: CallerSettings, identity: str, tenant: str = "default") -> Principal:
    """A principal with all rights that its settings grant."""
    return Principal(
        id=identity,
        tenant=tenant,
        kind=caller.kind,
        scopes=frozenset(caller.scopes),
        agents=_list_agents(caller.may_call),
        operations=_list_operations(caller.may_call),
        serves=None if EVERY_AGENT in caller.serves else frozenset(caller.serves),
    )


def _list_agents(grants: tuple[GrantSettings, ...]) -> frozenset[str] | None:
    names = frozenset(grant.agent for grant in grants)
    return None if EVERY_AGENT in names else names


def _list_operations(grants: tuple[GrantSettings, ...]) -> dict[str, frozenset[str] | None]:
    """Empty if nothing is restricted, which is checked first."""
    if all(grant.operations is None for grant in grants):
        return {}
    return {
        grant.agent: None if grant.operations is None else frozenset(grant.operations)
        for grant in grants
    }


def find_principal(settings: Settings, identity: str, tenant: str) -> Principal | None:
    """The configured rights of a principal, without its credential; None if it is not in the configuration.

    For a principal of an identity provider whose tokens restrict agents, it has no agents: only a token can name them.
    """
    if (identity, tenant) == (OWNER.id, OWNER.tenant):
        return OWNER
    for client in settings.clients:
        if (client.name, "default") == (identity, tenant):
            return make_client_principal(client)
    for issuer in settings.issuers:
        if identity.startswith(f"{issuer.name}:") and (
            issuer.claims.tenant or tenant == issuer.tenant
        ):
            found = make_principal(issuer, identity, tenant)
            return replace(found, agents=frozenset()) if issuer.claims.agents else found
    return None
