"""Answers of people that a run owes its peer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PendingReturns:
    """By the ids of their actions."""

    owed: set[str] = field(default_factory=set[str])
    """Answers that somebody said are owed on this run."""
    put_off: dict[str, int] = field(default_factory=dict[str, int])
    """Answer that is owed -> when to look again, in ms; its due row comes due then."""
    untaken: set[str] = field(default_factory=set[str])
    """Answers whose last try certainly did not reach the peer."""
