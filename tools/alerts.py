"""Reads the table of alerts, ``tools/alerts.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

TABLE: Final = Path(__file__).with_suffix(".yaml")
_WINDOW: Final = "15m"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``hold`` is for how long it has to be so, in whole minutes.

    ``fires`` and ``quiet`` are series, name and labels to values by the minute; ``labels`` are those of the alert when
    it fires, besides its severity.
    """

    name: str
    expression: str
    hold: str
    severity: str
    summary: str
    means: str
    do: tuple[str, ...]
    fires: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]


def expect_none(counter: str, window: str = _WINDOW) -> str:
    """Whether a counter went up.

    One with labels has no value before its first event, which ``increase`` alone would miss.
    """
    return f"increase({counter}[{window}]) > 0 or ({counter} unless {counter} offset {window}) > 0"


def read_alerts() -> tuple[Alert, ...]:
    """The table in order; a row that lacks something is a KeyError that names it."""
    rows = cast("list[dict[str, Any]]", yaml.safe_load(TABLE.read_text("utf-8")))
    return tuple(_read(row) for row in rows)


def _read(row: dict[str, Any]) -> Alert:
    counter = row.get("increased")
    return Alert(
        row["alert"],
        expect_none(counter) if counter else row["expression"],
        row["hold"],
        row["severity"],
        row["summary"],
        row["means"],
        tuple(row["do"]),
        row["fires"],
        row["quiet"],
        row["labels"],
    )


ALERTS: Final = read_alerts()
