"""The clock of a primary, estimated from the bounds that its replies give."""

from __future__ import annotations

import time

import pytest

from passerelle.store.clock import ServerTime, read_machine_ms


def test_clock_of_an_unknown_server_is_that_of_the_machine() -> None:
    before, read, after = read_machine_ms(), ServerTime().now_ms(), read_machine_ms()
    assert before - 1 <= read <= after + 1
    assert abs(ServerTime().skew_ms) <= 1


@pytest.mark.parametrize(
    ("known_ms", "server_ms", "sent_s", "received_s", "ahead_ms"),
    [
        pytest.param(5_000.0, 15_000, 10.0, 10.0, 5_000.0, id="exact"),
        pytest.param(5_000.0, 15_040, 10.0, 10.1, 5_000.0, id="within the round trip"),
        pytest.param(5_000.0, 15_000, 10.0, 10.0005, 5_000.0, id="cut off to a millisecond"),
        pytest.param(0.0, 615_000, 10.0, 10.1, 604_900.0, id="ten minutes ahead"),
        pytest.param(0.0, -585_000, 10.0, 10.1, -594_999.0, id="ten minutes behind"),
        pytest.param(604_900.0, 15_000, 10.0, 10.1, 5_001.0, id="set back"),
    ],
)
def test_server_time_moves_only_as_far_as_a_reply_requires(
    known_ms: float, server_ms: int, sent_s: float, received_s: float, ahead_ms: float
) -> None:
    clock = ServerTime(known_ms)
    clock.note(server_ms, sent_s, received_s)
    assert clock.ahead_ms == pytest.approx(ahead_ms)


def test_clock_of_the_machine_may_be_set_without_any_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ServerTime()
    read = time.time_ns  # noqa: TID251  the clock that is set
    before = clock.now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: read() + 600_000_000_000)
    assert 0 <= clock.now_ms() - before < 60_000
    assert clock.skew_ms == pytest.approx(-600_000, abs=60_000)
