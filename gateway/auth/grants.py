"""From the grants of a configuration to those of a principal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.principal import EVERY_AGENT, Principal

if TYPE_CHECKING:
    from passerelle.gateway.settings_callers import CallerSettings, ClientSettings, GrantSettings


def enter_client(client: ClientSettings) -> Principal:
    """The principal of a client."""
    return make_principal(client, client.name)


def make_principal(caller: CallerSettings, identity: str, tenant: str = "default") -> Principal:
    """A principal with everything that its settings may give."""
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
    """Empty where nothing is restricted, which is what is looked at first."""
    if all(grant.operations is None for grant in grants):
        return {}
    return {
        grant.agent: None if grant.operations is None else frozenset(grant.operations)
        for grant in grants
    }
