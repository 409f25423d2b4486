"""What was found out: one value that every part of the proof adds to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.takeovers import TakenUp


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it must be, with the errand that shows it."""

    label: str
    what: str


@dataclass(slots=True)
class Verdict:
    """Everything that was found. ``taken_up`` has one for each run of a gateway that died."""

    faults: list[Fault] = field(default_factory=list[Fault])
    taken_up: list[TakenUp] = field(default_factory=list["TakenUp"])
    frozen: list[str] = field(default_factory=list[str])
    """What became of each send that a gateway was frozen around."""
    notes: list[str] = field(default_factory=list[str])
    """What the gateways said while a run waited for too long."""
    refused: int = 0
    """Messages that were answered with an error: their callers sent another one."""
    away: int = 0
    """Tasks that failed as their agent was being killed at each of their tries."""
    streams: int = 0
    sessions: int = 0

    def blame(self, label: str, what: str) -> None:
        """Keeps a fault."""
        self.faults.append(Fault(label, what))
