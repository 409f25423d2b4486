"""Quiet hours of pushes: by the time zone of a place, over midnight, and across daylight saving changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from passerelle.core.payloads.approval import Risk
from passerelle.core.wire.times import parse_ms
from passerelle.permission_bridge.quiet import QuietHours, find_quiet_end, is_high_risk

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(22 * 60, 7 * 60, BERLIN)
NOON = QuietHours(12 * 60, 13 * 60, UTC, frozenset({"ada"}))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-11-21T21:59:59+01:00", None),
        ("2026-11-21T22:00:00+01:00", "2026-11-22T07:00:00+01:00"),
        ("2026-11-22T00:30:00+01:00", "2026-11-22T07:00:00+01:00"),
        ("2026-11-22T06:59:59.999+01:00", "2026-11-22T07:00:00+01:00"),
        ("2026-11-22T07:00:00+01:00", None),
        ("2026-03-28T23:00:00+01:00", "2026-03-29T07:00:00+02:00"),
        ("2026-10-24T23:00:00+02:00", "2026-10-25T07:00:00+01:00"),
    ],
)
def test_a_night_is_over_at_its_end_by_the_clock_of_its_place(now: str, end: str | None) -> None:
    found = NIGHT.find_end_ms("ada", parse_ms(now))
    assert found == (parse_ms(end) if end else None)


def test_quiet_hours_apply_only_to_named_principals() -> None:
    now_ms = round(datetime(2026, 11, 21, 12, 30, tzinfo=UTC).timestamp() * 1000)
    assert NOON.find_end_ms("ada", now_ms) == now_ms + 30 * 60_000
    assert NOON.find_end_ms("bob", now_ms) is None


@pytest.mark.parametrize(
    ("risk", "grave"), [("low", False), ("medium", False), ("high", True), ("critical", True)]
)
def test_high_risk_is_sent_in_quiet_hours(risk: Risk, grave: bool) -> None:  # noqa: FBT001  a case
    assert is_high_risk(risk) is grave


def test_of_several_the_last_end_counts() -> None:
    longer = QuietHours(11 * 60, 15 * 60, UTC)
    now_ms = parse_ms("2026-11-21T12:30:00Z")
    assert find_quiet_end([NOON, longer], "ada", now_ms) == parse_ms("2026-11-21T15:00:00Z")
