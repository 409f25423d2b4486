"""When a queue is flushed, by the calls queued before: tables without a clock or a connection."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from passerelle.store.flush_policy import (
    FLUSH_AT,
    MAX_FRUITLESS_LINGERS,
    MIN_LINGER_S,
    Flush,
    FlushPolicy,
)

BUDGET_S = 0.004


@dataclass
class Calls:
    """Queues calls at a policy and returns what it decides for each."""

    policy: FlushPolicy
    now_s: float = 0.0

    def queue(self, linger_s: float = 0.0, *, no_linger: bool = False) -> Flush:
        self.policy.add(linger_s, no_linger=no_linger)
        return self.policy.decide(linger_s, self.now_s)

    def queue_unacknowledged(self, linger_s: float = 0.0) -> Flush:
        return self.policy.decide(linger_s, self.now_s)

    def flush(self, counted: int, *, leaves: bool = False) -> None:
        self.policy.on_flush(counted, leaves=leaves)

    def linger_alone(self, times: int) -> None:
        for _ in range(times):
            assert self.queue(BUDGET_S) is Flush.AT_DEADLINE
            assert self.policy.on_deadline()
            self.flush(1)


@pytest.fixture
def calls() -> Calls:
    return Calls(FlushPolicy())


LINGER, PLAIN, URGENT = (BUDGET_S, False), (0.0, False), (0.0, True)


@pytest.mark.parametrize(
    ("queued", "decided"),
    [
        ([PLAIN], [Flush.AT_TICK_END]),
        ([PLAIN, PLAIN], [Flush.AT_TICK_END, Flush.PLANNED]),
        ([PLAIN, LINGER], [Flush.AT_TICK_END, Flush.PLANNED]),
        ([PLAIN, URGENT], [Flush.AT_TICK_END, Flush.NOW]),
        ([URGENT], [Flush.NOW]),
        ([URGENT, PLAIN], [Flush.NOW, Flush.NOW]),
        ([LINGER], [Flush.AT_DEADLINE]),
        ([LINGER, LINGER], [Flush.AT_DEADLINE, Flush.PLANNED]),
        ([LINGER, PLAIN], [Flush.AT_DEADLINE, Flush.AT_TICK_END]),
        ([LINGER, URGENT], [Flush.AT_DEADLINE, Flush.NOW]),
        ([(MIN_LINGER_S, False)], [Flush.AT_DEADLINE]),
        ([(MIN_LINGER_S / 2, False)], [Flush.AT_TICK_END]),
        ([LINGER, (2 * BUDGET_S, False)], [Flush.AT_DEADLINE, Flush.PLANNED]),
        ([LINGER, (BUDGET_S / 2, False)], [Flush.AT_DEADLINE, Flush.AT_DEADLINE]),
    ],
)
def test_each_call_is_decided_by_those_before_it(
    calls: Calls, queued: list[tuple[float, bool]], decided: list[Flush]
) -> None:
    assert [calls.queue(linger_s, no_linger=urgent) for linger_s, urgent in queued] == decided


def test_a_linger_ends_when_enough_calls_are_queued_unacknowledged_ones_aside(
    calls: Calls,
) -> None:
    assert calls.queue(BUDGET_S) is Flush.AT_DEADLINE
    for _ in range(FLUSH_AT - 2):
        assert calls.queue(BUDGET_S) is Flush.PLANNED
        assert calls.queue_unacknowledged(BUDGET_S) is Flush.PLANNED
    assert calls.queue(BUDGET_S) is Flush.AT_TICK_END


def test_the_deadline_is_that_of_the_smallest_budget(calls: Calls) -> None:
    calls.now_s = 100.0
    calls.queue(BUDGET_S)
    calls.now_s += BUDGET_S / 4
    calls.queue(BUDGET_S / 2)
    assert calls.policy.deadline_s == 100.0 + BUDGET_S * 3 / 4
    calls.flush(2)
    assert calls.policy.deadline_s is None


def test_the_end_of_a_linger_leaves_the_flush_to_the_end_of_the_tick(calls: Calls) -> None:
    calls.queue(BUDGET_S)
    assert calls.queue() is Flush.AT_TICK_END
    assert not calls.policy.on_deadline()
    calls.policy.on_tick_end()
    calls.flush(2)
    assert calls.queue() is Flush.AT_TICK_END, "the next tick has an end of its own"


def test_fruitless_lingers_end_lingering_until_a_call_with_a_budget_meets_another(
    calls: Calls,
) -> None:
    calls.linger_alone(MAX_FRUITLESS_LINGERS)
    assert calls.queue(BUDGET_S) is Flush.AT_TICK_END
    calls.policy.on_tick_end()
    calls.flush(1)
    assert calls.queue() is Flush.AT_TICK_END
    calls.queue()
    calls.policy.on_tick_end()
    calls.flush(2)
    assert calls.queue(BUDGET_S) is Flush.AT_TICK_END, "the two had no budget"
    calls.queue()
    calls.policy.on_tick_end()
    calls.flush(2)
    assert calls.queue(BUDGET_S) is Flush.AT_DEADLINE


def test_a_linger_that_was_joined_is_not_fruitless(calls: Calls) -> None:
    calls.linger_alone(MAX_FRUITLESS_LINGERS - 1)
    calls.queue(BUDGET_S)
    calls.queue(BUDGET_S)
    assert calls.policy.on_deadline()
    calls.flush(2)
    calls.linger_alone(MAX_FRUITLESS_LINGERS)
    assert calls.queue(BUDGET_S) is Flush.AT_TICK_END


def test_calls_that_did_not_fit_keep_their_urgency(calls: Calls) -> None:
    calls.queue()
    calls.queue(no_linger=True)
    calls.flush(1, leaves=True)
    assert calls.policy.decide(0.0, 0.0) is Flush.NOW
    calls.policy.on_tick_end()
    calls.flush(1)
    assert calls.queue() is Flush.AT_TICK_END
