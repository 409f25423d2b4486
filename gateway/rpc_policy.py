"""The calls about policy: grants, and the mode that is on for a while. Their parameters are the requests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.policy_requests import (
    BypassSet,
    GrantRevoked,
    ListGrants,
    RevokeGrant,
    SetBypass,
)
from passerelle.core.principal import Scope
from passerelle.gateway.rpc_call import Call

POLICY_ROWS: Final[Sequence[Call]] = (
    Call(
        "list_grants",
        "The standing yeses of the caller, and how often each was used",
        (Scope.READ_APPROVALS,),
        ListGrants,
        lambda given, _: given,
    ),
    Call(
        "revoke_grant",
        "End a standing yes",
        (Scope.GRANT, Scope.DECIDE),
        RevokeGrant,
        lambda given, _: given,
        GrantRevoked,
    ),
    Call(
        "set_bypass",
        "Have everything allowed for a while, but for what is critical or destroys",
        (Scope.GRANT,),
        SetBypass,
        lambda given, _: given,
        BypassSet,
    ),
)
