"""The calls for operators of a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.oversight_requests import GetAgentHealth, GetOverview
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.agent_health import AgentHealth
from passerelle.core.read_models.overview import Overview
from passerelle.runtime.common.calls import MethodRow

OVERSIGHT_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "get_overview",
        "Open work of the tenant, and the state of the runtime",
        (AccessScope.OVERSEE_TASKS, AccessScope.OPERATE),
        GetOverview,
        lambda given, _: given,
        model=Overview,
    ),
    MethodRow(
        "get_agent_health",
        "The state of an agent: card, breakers, limits, and calls of the last hour",
        (AccessScope.OVERSEE_TASKS, AccessScope.OPERATE),
        GetAgentHealth,
        lambda given, _: given,
        model=AgentHealth,
    ),
)
