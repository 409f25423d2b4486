"""The failures of the place for content: each is told, and the last one is shown for a minute."""

from __future__ import annotations

from passerelle.store.content_failures import SHOWN_S, ContentFailures


def test_last_failure_is_shown_for_a_minute() -> None:
    told: list[str] = []
    now_s = 100.0
    failures = ContentFailures(told.append, lambda: now_s)
    assert failures.describe() is None
    error = failures.note("no space")
    assert (error.reason, error.wrote) == ("no space", "no")
    failures.note("no right")
    now_s += SHOWN_S - 1
    assert failures.describe() == "no right"
    now_s += 1
    assert failures.describe() is None
    assert told == ["no space", "no right"]
