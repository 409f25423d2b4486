"""Hands another configuration to the parts of a gateway that runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.payloads.governance import PolicyChanged
from passerelle.core.principal import OWNER
from passerelle.gateway.auth.grants import enter_client
from passerelle.gateway.settings_bounds import list_bounds, list_prices, list_quotas
from passerelle.gateway.settings_changes import list_limit_changes
from passerelle.gateway.settings_outputs import read_output_terms
from passerelle.gateway.settings_peers import make_peer_configs
from passerelle.runtime.observability.logs import configure_logs
from passerelle.runtime.records.places import Home

if TYPE_CHECKING:
    from passerelle.core.payloads.limit import LimitChanged
    from passerelle.core.principal import Principal
    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.auth.access import Access
    from passerelle.gateway.settings import Settings
    from passerelle.permission_bridge.rules import Policy


async def take_over(gateway: Gateway, access: Access, old: Settings, new: Settings) -> None:
    """Swaps what can be swapped; a request under way ends with what it began with.

    Raises:
        ConfigInvalid: an agent cannot be made of its section; nothing is changed then.
    """
    gateway.peers.replace(make_peer_configs(new.agents, os.environ))
    ruled = gateway.terms.find_rules()
    gateway.terms.reload(new)
    # Looked at before anything is waited for: what is edited meanwhile is told by whoever edits it.
    rules = gateway.terms.find_rules()
    access.reload(new)
    gateway.gate.rebind(list_bounds(new))
    gateway.spending.reload(list_quotas(new), list_prices(new))
    gateway.service.push_configs.rules.reload(new.webhooks.allow)
    gateway.service.dispatch.outputs.reload(read_output_terms(new.outputs))
    if new.log_level != old.log_level:
        configure_logs(new.log_level, old.log_format)
    await _tell_limits(gateway, old, new)
    await _tell_policy(gateway, ruled.version, rules)


async def _tell_policy(gateway: Gateway, previous: str, rules: Policy) -> None:
    """The rules of before and of now, in the home of whoever owns the gateway (EXT-3)."""
    if rules.version == previous:
        return
    changed = PolicyChanged("rules", "configuration", rules.version, previous, rules.mode)
    await _tell(Home(gateway.service.writes), OWNER, changed, f"policy {previous} {rules.version}")


async def _tell_limits(gateway: Gateway, old: Settings, new: Settings) -> None:
    """Every instance reads the same file: the row of the fact makes it one (EVC-17)."""
    home = Home(gateway.service.writes)
    clients = {client.name: enter_client(client) for client in new.clients}
    for fact in list_limit_changes(old, new):
        who = clients.get(fact.limited.name, OWNER) if fact.limited.kind == "caller" else OWNER
        limited = fact.limited
        key = f"{limited.kind} {limited.name} {fact.kind} {fact.unit} {fact.old} {fact.new}"
        await _tell(home, who, fact, key)


async def _tell(home: Home, who: Principal, fact: LimitChanged | PolicyChanged, key: str) -> None:
    try:
        await home.record(who, fact, key=key)
    except PasserelleError as error:
        structlog.get_logger().warning(
            "change.untold", what=fact.type, caller=who.id, why=str(error)
        )
