"""The calls about agents that an operator pauses, drains and resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from passerelle.core.principal import AccessScope
from passerelle.core.session.agent_requests import (
    AgentChanged,
    DrainAgent,
    PauseAgent,
    ResumeAgent,
)
from passerelle.runtime.common.calls import MethodRow

if TYPE_CHECKING:
    from collections.abc import Sequence


def _change(name: str, summary: str, command: type[Any]) -> MethodRow:
    scopes = (AccessScope.OPERATE,)
    return MethodRow(name, summary, scopes, command, lambda given, _: given, AgentChanged)


AGENT_ROWS: Final[Sequence[MethodRow]] = (
    _change("pause_agent", "Hold what comes for an agent until it is resumed", PauseAgent),
    _change(
        "drain_agent",
        "Refuse what comes for an agent until it is resumed, and let end what it works on",
        DrainAgent,
    ),
    _change("resume_agent", "Give an agent work again; what waits goes on in order", ResumeAgent),
)
