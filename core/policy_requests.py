"""What can be asked about policy: grants, a mode that is on for a while. Each is the form in which it is sent."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.record import record
from passerelle.core.task_requests import Id

LONGEST_BYPASS_S = 8 * 3_600


@record
class RevokeGrant:
    """End a standing yes."""

    grant_id: Id


@record
class GrantRevoked:
    """``revoked``: it ended now; ``gone``: it had been revoked before."""

    grant_id: str
    outcome: Literal["revoked", "gone"]


@record
class SetBypass:
    """Have everything allowed for so long, but for what is critical or destroys; 0 ends it."""

    seconds: Annotated[int, Field(ge=0, le=LONGEST_BYPASS_S)] = 3_600


@record
class BypassSet:
    """Until when it is on, RFC 3339; None: it is off."""

    until: str | None = None


PolicyRequest: TypeAlias = RevokeGrant | SetBypass
PolicyAnswer: TypeAlias = GrantRevoked | BypassSet


@record
class ListGrants:
    """The grants of the caller."""
