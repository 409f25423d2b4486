"""Principals by their names: what the configuration says of somebody who is not asked for a credential now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.principal import OWNER
from passerelle.gateway.auth.grants import enter_client, make_principal

if TYPE_CHECKING:
    from passerelle.core.principal import Principal
    from passerelle.gateway.settings import Settings


def find_principal(settings: Settings, identity: str, tenant: str) -> Principal | None:
    """What a principal may do by the configuration alone, without its credential; None where it is not in there.

    Of somebody whom an identity provider knows only its tokens say which agents are narrowed: then no agent is seen.
    """
    if (identity, tenant) == (OWNER.id, OWNER.tenant):
        return OWNER
    for client in settings.clients:
        if (client.name, "default") == (identity, tenant):
            return enter_client(client)
    for issuer in settings.issuers:
        if identity.startswith(f"{issuer.name}:") and (
            issuer.claims.tenant or tenant == issuer.tenant
        ):
            found = make_principal(issuer, identity, tenant)
            return replace(found, agents=frozenset()) if issuer.claims.agents else found
    return None
