"""The calls that pause, drain and resume agents."""

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
    _change("pause_agent", "Queue new messages to an agent until it is resumed", PauseAgent),
    _change(
        "drain_agent",
        "Refuse new messages to an agent until it is resumed; running work ends",
        DrainAgent,
    ),
    _change("resume_agent", "Send work to an agent again, queued messages first", ResumeAgent),
)
