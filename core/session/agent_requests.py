"""What an operator can ask of an agent: to give it no new work, and to go on. Each is the form in which it is sent."""

from __future__ import annotations

from typing import TypeAlias

from passerelle.core.payloads.limit import AgentState
from passerelle.core.task.requests import Id, ReasonText
from passerelle.core.wire.record import record


@record
class PauseAgent:
    """Hold what comes for an agent until it is resumed; what it works on goes on. ``reason`` is told to callers."""

    name: Id
    reason: ReasonText | None = None


@record
class DrainAgent:
    """Refuse what comes for an agent until it is resumed, and hold what waits already; what it works on ends."""

    name: Id
    reason: ReasonText | None = None


@record
class ResumeAgent:
    """Give an agent work again: what waits goes on in its order."""

    name: Id


@record
class AgentChanged:
    """Where an agent stands. ``waiting`` is how many tasks wait for it; ``by`` and ``at`` are of the last change."""

    name: str
    state: AgentState
    waiting: int
    by: str | None = None
    at: str | None = None
    reason: str | None = None
    repeated: bool = False


AgentRequest: TypeAlias = PauseAgent | DrainAgent | ResumeAgent
