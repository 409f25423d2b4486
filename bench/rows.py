"""Rows of the table: the measure, its spread over the rounds, and whether its bound held.

The median of the rounds is judged and not the best: a bound that only the best round meets is missed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias, assert_never

RowState: TypeAlias = Literal["held", "missed", "no bound", "not measured"]

COLUMNS: Final = f"{'what':<66} {'min':>10} {'median':>10} {'max':>10} unit"
_SIGNIFICANT: Final = 3


class MeasurementError(Exception):
    """Something failed, so there is nothing to measure; the text names it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A measure over its rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """From one value per round; there is at least one."""
        return cls(min(values), statistics.median(values), max(values))


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of the median of the rounds."""

    kind: Literal["at most", "at least", "exactly"]
    limit: float

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound."""
        match self.kind:
            case "at most":
                return value <= self.limit
            case "at least":
                return value >= self.limit
            case "exactly":
                return value == self.limit
            case _:
                assert_never(self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line; without a spread it was not measured."""

    what: str
    spread: Spread | None
    unit: str = ""
    bound: Bound | None = None

    @property
    def verdict(self) -> RowState:
        """The end of the line."""
        if self.spread is None:
            return "not measured"
        if self.bound is None:
            return "no bound"
        return "held" if self.bound.holds(self.spread.median) else "missed"

    def render(self) -> str:
        """The line, as wide as ``COLUMNS``."""
        spread = self.spread
        values = (spread.low, spread.median, spread.high) if spread else ()
        cells = " ".join(f"{_show(value):>10}" for value in values) or " " * 32
        bound = f" ({self.bound})" if self.bound else ""
        return f"{self.what:<66} {cells} {self.unit:<9} {self.verdict}{bound}"


def summarize(rows: Sequence[Row], seconds: float) -> str:
    """The last line."""
    counts = Counter(row.verdict for row in rows)
    return (
        f"bench: {len(rows)} rows, {counts['held']} held, {counts['missed']} missed,"
        f" {counts['no bound']} no bound, {counts['not measured']} not measured, {seconds:.0f} s"
    )


def _show(value: float) -> str:
    """Three significant digits: more would be noise."""
    if value == 0:
        return "0"
    places = max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"
