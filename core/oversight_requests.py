"""Requests of an operator: the gateway as a whole, the health of an agent, and to pause, drain or resume agents."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.payloads.limit import AgentState
from passerelle.core.task.requests import Id, ReasonText
from passerelle.core.wire.record import record


@record
class GetOverview:
    """Counts of open objects, and the state of the runtime."""


@record
class GetAgentHealth:
    """The health of an agent, as the answering instance knows it."""

    name: Annotated[str, Field(min_length=1, max_length=256)]


OversightQuery: TypeAlias = GetOverview | GetAgentHealth


@record
class PauseAgent:
    """Hold new work for an agent until it is resumed; running work goes on. Callers see ``reason``."""

    name: Id
    reason: ReasonText | None = None


@record
class DrainAgent:
    """Refuse new work for an agent until it is resumed, and hold queued work; running work ends normally."""

    name: Id
    reason: ReasonText | None = None


@record
class ResumeAgent:
    """Give an agent work again: queued work goes on in order."""

    name: Id


@record
class AgentChanged:
    """The state of an agent. ``waiting`` is how many tasks wait for it; ``by`` and ``at`` are of the last change."""

    name: str
    state: AgentState
    waiting: int
    by: str | None = None
    at: str | None = None
    reason: str | None = None
    repeated: bool = False


AgentRequest: TypeAlias = PauseAgent | DrainAgent | ResumeAgent
