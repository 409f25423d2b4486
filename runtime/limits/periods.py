"""Periods of quotas: whole hours, days and months of UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, assert_never

PeriodName: TypeAlias = Literal["hour", "day", "month"]

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_DECEMBER: Final = 12


def find_period(name: PeriodName, now_ms: int) -> tuple[int, int]:
    """Beginning and end of the period that a moment lies in, in ms."""
    match name:
        case "hour":
            start_ms = now_ms - now_ms % _HOUR_MS
            return start_ms, start_ms + _HOUR_MS
        case "day":
            start_ms = now_ms - now_ms % _DAY_MS
            return start_ms, start_ms + _DAY_MS
        case "month":
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            return _begin(now.year, now.month), (
                _begin(now.year + 1, 1)
                if now.month == _DECEMBER
                else _begin(now.year, now.month + 1)
            )
        case _:
            assert_never(name)


def _begin(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000
