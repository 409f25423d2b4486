"""The authenticated caller, as every command and query gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from passerelle.core.agent_name import ROUTER, find_base
from passerelle.core.ids import Shard, derive_id, derive_shard
from passerelle.core.wire.record import value

EVERY_AGENT: Final = "*"
_TENANT: Final = "tn"

PrincipalKind: TypeAlias = Literal["person", "service", "agent", "gateway"]


class AccessScope(StrEnum):
    """A scope. Agents never hold ``approvals:decide``."""

    CALL = "a2a:call"
    READ_TASKS = "tasks:read"
    WRITE_TASKS = "tasks:write"
    CONNECT = "channels:connect"
    SERVE = "agents:serve"
    READ_APPROVALS = "approvals:read"
    DECIDE = "approvals:decide"
    DECIDE_HIGH = "approvals:decide-high"
    MANAGE_DEVICES = "devices:manage"
    READ_AUDIT = "audit:read"
    GRANT = "approvals:grant"
    HOST = "approvals:host"
    ASK = "approvals:ask"
    OPERATE = "runtime:operate"
    WRITE_POLICY = "policy:write"
    OVERSEE_TASKS = "tasks:oversee"
    OPERATE_TASKS = "tasks:operate"
    OVERSEE_APPROVALS = "approvals:oversee"


@value
class Principal:
    """An authenticated caller. ``agents`` are the names it may call, or None for all of them.

    ``operations`` are the only A2A operations that it may use at an agent (``*``: at every agent that is not named);
    None, or an agent that is not in it, means all of them. ``expires_ms`` is when its credential expires; None: never.
    """

    id: str
    tenant: str = "default"
    kind: PrincipalKind = "service"
    scopes: frozenset[AccessScope] = frozenset()
    agents: frozenset[str] | None = None
    device: str | None = None
    device_name: str | None = None
    operations: Mapping[str, frozenset[str] | None] = field(
        default_factory=dict[str, frozenset[str] | None], hash=False
    )
    expires_ms: int | None = field(default=None, compare=False)
    paired: bool = False
    """Whether ``device`` is a paired device that has proven its identity."""
    serves: frozenset[str] | None = frozenset()
    """Names of agents that it may serve when it dials in, or None for all of them."""

    @property
    def home(self) -> Shard:
        """The shard of this principal's own data: index, inbox, devices."""
        return _find_home(self.tenant, self.id)

    @property
    def key(self) -> str:
        """The owner key of this principal's data: tenant and id, hashed into an id of its home shard."""
        return _derive_key(self.tenant, self.id)

    @property
    def home_session(self) -> str:
        """The session for facts about this principal that belong to no conversation."""
        return derive_id("se", self.home, "home", self.tenant, self.id)

    @property
    def has_inbox(self) -> bool:
        """Whether it may follow and list the approvals in its name; an agent's own credential never may."""
        return self.kind != "agent"

    def sees(self, agent: str) -> bool:
        """Whether ``agent`` exists for this principal; if not, the answers are those for an unknown name.

        The gateway's own agent exists for every principal with at least one agent, since it routes to those only.
        """
        agents = self.agents
        if agents is None or agent in agents or find_base(agent) in agents:
            return True
        return agent == ROUTER and bool(agents)

    def may_use(self, agent: str, operation: str) -> bool:
        """Whether the grants allow an A2A operation at ``agent``; scopes are checked separately."""
        if not self.sees(agent):
            return False
        if not self.operations:
            return True
        base = find_base(agent)
        if base == ROUTER and ROUTER not in self.operations:
            # The router must not allow an operation that one of its agents would refuse.
            return all(named is None or operation in named for named in self.operations.values())
        allowed = self.operations.get(base, self.operations.get(EVERY_AGENT))
        return allowed is None or operation in allowed

    def may_call(self, agent: str) -> bool:
        """Whether this principal may send to ``agent``."""
        return AccessScope.CALL in self.scopes and self.sees(agent)

    def may_serve(self, agent: str) -> bool:
        """Whether this principal may serve as ``agent``."""
        return AccessScope.SERVE in self.scopes and (self.serves is None or agent in self.serves)


@lru_cache(1024)
def _find_home(tenant: str, principal: str) -> Shard:
    return derive_shard("principal", tenant, principal)


@lru_cache(1024)
def _derive_key(tenant: str, principal: str) -> str:
    return derive_id("pr", _find_home(tenant, principal), tenant, principal)


@lru_cache(1024)
def name_tenant_lists(tenant: str) -> str:
    """The key under which changes in the lists of all owners of a tenant are noted."""
    return derive_id(_TENANT, derive_shard("tenant", tenant), tenant)


def is_tenant_key(key: str) -> bool:
    """Whether a key is a tenant's, not an owner's."""
    return key.startswith(f"{_TENANT}_")


OWNER: Final = Principal(id="owner", kind="person", scopes=frozenset(AccessScope), serves=None)
"""The principal that set this gateway up."""
