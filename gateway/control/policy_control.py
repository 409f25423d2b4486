"""Every command and query about policy, each to the part that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from passerelle.core.errors import Forbidden
from passerelle.core.policy_requests import RevokeGrant, SetBypass

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.policy_requests import ListGrants, PolicyAnswer, PolicyRequest
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.granting import Granting


@dataclass(frozen=True, slots=True)
class PolicyControl:
    """The control plane over policy."""

    granting: Granting

    async def execute(self, principal: Principal, command: PolicyRequest) -> PolicyAnswer:
        """Carries out one command; each is the same when it comes twice.

        Raises:
            Forbidden: an agent wants to loosen what it is held by.
        """
        if principal.kind == "agent":
            raise Forbidden("a credential of kind agent changes no policy", kind=principal.kind)
        match command:
            case RevokeGrant():
                return await self.granting.revoke(principal, command)
            case SetBypass():
                return await self.granting.set_bypass(principal, command)
            case _:
                assert_never(command)

    async def read(self, principal: Principal, query: ListGrants) -> JsonObject:
        """Answers one query."""
        del query
        return await self.granting.show(principal)
