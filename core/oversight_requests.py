"""Queries of an operator about the gateway as a whole."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.wire.record import record


@record
class GetOverview:
    """Counts of open objects, and the state of the runtime."""


@record
class GetAgentHealth:
    """The health of an agent, as the answering instance knows it."""

    name: Annotated[str, Field(min_length=1, max_length=256)]


OversightQuery: TypeAlias = GetOverview | GetAgentHealth
