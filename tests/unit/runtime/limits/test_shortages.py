"""Periods of quotas, and the refusal when one is used up."""

from __future__ import annotations

from typing import Final

import pytest

from passerelle.core.payloads.limit import LimitSubject, QuotaBlocked
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.runtime.limits.account import PeriodName, Quota, find_period
from passerelle.runtime.limits.costs import Shortage

NOW_MS: Final = parse_ms("2026-12-31T23:59:58.250Z")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("minute", "2026-12-31T23:59:00.000Z"),
        ("hour", "2026-12-31T23:00:00.000Z"),
        ("day", "2026-12-31T00:00:00.000Z"),
        ("month", "2026-12-01T00:00:00.000Z"),
    ],
)
def test_periods_are_whole_and_end_where_the_next_one_begins(name: PeriodName, begins: str) -> None:
    start_ms, end_ms = find_period(name, NOW_MS)
    assert format_ms(start_ms) == begins
    assert format_ms(end_ms) == "2027-01-01T00:00:00.000Z"
    assert find_period(name, end_ms)[0] == end_ms
    assert find_period(name, end_ms - 1) == (start_ms, end_ms)


def short(quota: Quota, asked: int) -> Shortage:
    fact = QuotaBlocked(
        limited=LimitSubject("caller", "ada"),
        kind=quota.kind,
        unit="micros" if quota.currency else "calls",
        limit=quota.limit,
        used=quota.limit,
        asked=asked,
    )
    return Shortage(quota, NOW_MS, fact)


@pytest.mark.parametrize(
    ("quota", "asked", "waits", "name"),
    [
        (Quota(2, "day"), 1, False, "the quota of 2 calls a day"),
        (Quota(1, "minute", waits=True), 1, True, "the quota of 1 call a minute"),
        (Quota(0, "hour", waits=True), 1, False, "the quota of 0 calls an hour"),
        (
            Quota(250_000, "month", currency="EUR", waits=True),
            250_000,
            True,
            "the budget of 0.25 EUR a month",
        ),
        (
            Quota(5_000_000, "day", currency="USD", waits=True),
            5_000_001,
            False,
            "the budget of 5 USD a day",
        ),
        (
            Quota(1_234_567, "day", currency="EUR"),
            1,
            False,
            "the budget of 1.234567 EUR a day",
        ),
    ],
)
def test_amount_above_every_period_is_not_waited_for(
    quota: Quota, asked: int, name: str, *, waits: bool
) -> None:
    found = short(quota, asked)
    assert (found.is_waited_for, found.name) == (waits, name)
