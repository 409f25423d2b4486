"""Bounds of the design that are not measured yet."""

from __future__ import annotations

from typing import Final

from bench.rows import Bound, Row

_MOST: Final = "at most"


def list_unmeasured() -> list[Row]:
    """One row for each of them, so that an unmeasured bound is visible."""
    return [
        Row("append at 1 M tasks ÷ at 1 k", None, "ratio", Bound(_MOST, 1.15)),
        Row("runs of a killed instance driven again after", None, "s", Bound(_MOST, 6.0)),
    ]
