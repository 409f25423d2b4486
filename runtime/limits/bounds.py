"""How much somebody may do, as values: concurrency, rate, and how a refusal is told."""

from __future__ import annotations

from dataclasses import dataclass

from passerelle.core.errors import CallerLimitKind


@dataclass(frozen=True, slots=True)
class Rate:
    """``units`` in ``per_ms``; unused ones add up to ``units`` and no further, so that is also the longest burst."""

    units: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Cluster-wide; None is no limit."""

    concurrency: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Nothing was taken. ``limit`` is the bound that was met; trying again makes sense after ``retry_after_ms``."""

    kind: CallerLimitKind
    limit: int
    retry_after_ms: int
