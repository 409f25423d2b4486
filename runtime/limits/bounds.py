"""Limits of a caller as values: concurrency, rate, and the refusal."""

from __future__ import annotations

from passerelle.core.errors import CallerLimitKind
from passerelle.core.frozen import frozen


@frozen
class Rate:
    """``units`` per ``per_ms``; unused units accumulate up to ``units``, which is also the largest burst."""

    units: int
    per_ms: int


@frozen
class Bounds:
    """Cluster-wide limits; None means unlimited."""

    concurrency: int | None = None
    rate: Rate | None = None


@frozen
class OverLimit:
    """Nothing was taken. ``limit`` is the exceeded bound; retry after ``retry_after_ms``."""

    kind: CallerLimitKind
    limit: int
    retry_after_ms: int
