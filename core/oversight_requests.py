"""What whoever keeps a gateway running asks of it as a whole."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.wire.record import record


@record
class GetOverview:
    """What is open, and how the runtime stands."""


@record
class GetAgentHealth:
    """How an agent stands, as the instance that answers knows it."""

    name: Annotated[str, Field(min_length=1, max_length=256)]


OversightQuery: TypeAlias = GetOverview | GetAgentHealth
