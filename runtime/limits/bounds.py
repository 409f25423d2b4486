"""Limits of a caller as values: concurrency, rate, and the refusal."""

from __future__ import annotations

from dataclasses import dataclass

from passerelle.core.errors import CallerLimitKind


@dataclass(frozen=True, slots=True)
class Rate:
    """``units`` per ``per_ms``; unused units accumulate up to ``units``, which is also the largest burst."""

    units: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Cluster-wide limits; None means unlimited."""

    concurrency: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class OverLimit:
    """Nothing was taken. ``limit`` is the exceeded bound; retry after ``retry_after_ms``."""

    kind: CallerLimitKind
    limit: int
    retry_after_ms: int
