"""The result: one value that every check adds to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.takeovers import TakenUp


@dataclass(frozen=True, slots=True)
class Fault:
    """One violation, with the errand that shows it."""

    label: str
    what: str


@dataclass(slots=True)
class Verdict:
    """All results. ``taken_up`` has one entry for each run of a dead gateway."""

    faults: list[Fault] = field(default_factory=list[Fault])
    taken_up: list[TakenUp] = field(default_factory=list["TakenUp"])
    frozen: list[str] = field(default_factory=list[str])
    """The outcome of each send that a gateway was frozen around."""
    notes: list[str] = field(default_factory=list[str])
    """The gateways' log lines while a run waited for too long."""
    refused: int = 0
    """Messages that were answered with an error: their callers sent another one."""
    away: int = 0
    """Tasks that failed because their agent was being killed at each attempt."""
    streams: int = 0
    sessions: int = 0

    def blame(self, label: str, what: str) -> None:
        """Records a violation."""
        self.faults.append(Fault(label, what))
