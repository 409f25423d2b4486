"""The calls of operators: the gateway as a whole, the health of agents, and to pause, drain and resume them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.oversight_requests import (
    AgentChanged,
    DrainAgent,
    GetAgentHealth,
    GetOverview,
    PauseAgent,
    ResumeAgent,
)
from passerelle.core.principal import AccessScope
from passerelle.core.read_models.agent_health import AgentHealth
from passerelle.core.read_models.overview import Overview
from passerelle.runtime.common.calls import MethodRow

_LOOK: Final = (AccessScope.OVERSEE_TASKS, AccessScope.OPERATE)
_OPERATE: Final = (AccessScope.OPERATE,)

OVERSIGHT_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "get_overview",
        "Open work of the tenant, and the state of the runtime",
        _LOOK,
        GetOverview,
        model=Overview,
    ),
    MethodRow(
        "get_agent_health",
        "The state of an agent: card, breakers, limits, and calls of the last hour",
        _LOOK,
        GetAgentHealth,
        model=AgentHealth,
    ),
    MethodRow(
        "pause_agent",
        "Queue new messages to an agent until it is resumed",
        _OPERATE,
        PauseAgent,
        AgentChanged,
    ),
    MethodRow(
        "drain_agent",
        "Refuse new messages to an agent until it is resumed; running work ends",
        _OPERATE,
        DrainAgent,
        AgentChanged,
    ),
    MethodRow(
        "resume_agent",
        "Send work to an agent again, queued messages first",
        _OPERATE,
        ResumeAgent,
        AgentChanged,
    ),
)
