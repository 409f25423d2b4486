"""What follows a failed run: tables of faults, and properties of every verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.facts import ErrorCategory, ErrorDetail, RetryPolicy
from passerelle.core.task.retry import (
    IN_DOUBT,
    RETRIED,
    EarlierAttempts,
    GiveUp,
    RetryElsewhere,
    RetryLater,
    RunFault,
    back_off,
    classify,
    decide,
)

NOW_MS = 1_000_000
PEERS = ("one", "two", "three")
policies = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 10),
    backoff_ms=st.integers(0, 60_000),
    backoff_max_ms=st.integers(0, 600_000),
    backoff=st.sampled_from([None, "exponential", "fixed"]),
    jitter_percent=st.none() | st.integers(0, 100),
    retry_on=st.none() | st.lists(st.sampled_from([*RETRIED, "malformed"])).map(tuple),
    never_on=st.none() | st.lists(st.sampled_from([*RETRIED, "malformed"])).map(tuple),
    idempotent=st.none() | st.booleans(),
)
histories = st.builds(
    EarlierAttempts,
    st.lists(st.sampled_from(PEERS), min_size=1, max_size=12),
    policies,
    st.lists(st.sampled_from(PEERS), unique=True),
)
chances = st.floats(0, 1, exclude_max=True)
faults = st.sampled_from(RunFault)


@pytest.mark.parametrize(
    ("code", "category", "native", "fault"),
    [
        ("peer_unavailable", ErrorCategory.TRANSPORT, None, RunFault.UNREACHABLE),
        ("peer_unavailable", ErrorCategory.PEER, "429", RunFault.BUSY),
        ("peer_unavailable", ErrorCategory.PEER, "503", RunFault.BUSY),
        ("peer_failed", ErrorCategory.PEER, "TASK_STATE_FAILED", RunFault.FAILED),
        ("acceptance", ErrorCategory.POLICY, "TASK_STATE_COMPLETED", RunFault.FAILED),
        ("rejected", ErrorCategory.PEER, "TASK_STATE_REJECTED", RunFault.REJECTED),
        ("invalid_agent_response", ErrorCategory.PEER, "-32603", RunFault.FAILED),
        ("invalid_agent_response", ErrorCategory.PROTOCOL, None, RunFault.MALFORMED),
        ("peer_refused", ErrorCategory.PEER, "-32602", RunFault.REFUSED),
        ("peer_refused", ErrorCategory.PEER, "-32004", RunFault.REJECTED),
        ("lost", ErrorCategory.TRANSPORT, None, RunFault.LOST),
        ("timed_out", ErrorCategory.TIMEOUT, None, RunFault.TIMED_OUT),
        ("idle", ErrorCategory.TIMEOUT, None, RunFault.TIMED_OUT),
        ("cancelled", ErrorCategory.CALLER, None, RunFault.REFUSED),
        ("policy_denied", ErrorCategory.POLICY, None, RunFault.REFUSED),
        ("failed", ErrorCategory.INTERNAL, None, RunFault.REFUSED),
    ],
)
def test_each_error_is_a_fault(
    code: str, category: ErrorCategory, native: str | None, fault: RunFault
) -> None:
    assert classify(ErrorDetail(code, category, "…", native=native)) is fault


def test_a_temporary_limit_of_the_gateway_counts_as_a_busy_agent() -> None:
    held = ErrorDetail("peer_unavailable", ErrorCategory.POLICY, "…", retryable=True)
    assert classify(held) is RunFault.BUSY


@given(
    code=st.text(),
    category=st.sampled_from(ErrorCategory),
    native=st.none() | st.text(),
    retryable=st.booleans(),
)
def test_every_error_is_some_fault(
    code: str, category: ErrorCategory, native: str | None, *, retryable: bool
) -> None:
    assert classify(ErrorDetail(code, category, "", retryable, native=native)) in RunFault


@pytest.mark.requirement("ATT-10", "MK-7")
@given(faults, histories, chances)
def test_no_agent_is_tried_more_often_than_the_policy_allows(
    fault: RunFault, tried: EarlierAttempts, chance: float
) -> None:
    verdict = decide(fault, tried, NOW_MS, chance)
    if isinstance(verdict, RetryLater):
        assert tried.peers.count(tried.peers[-1]) < tried.policy.attempts
        assert fault not in (tried.policy.never_on or ())
        assert fault in (RETRIED if tried.policy.retry_on is None else tried.policy.retry_on)
    if isinstance(verdict, RetryElsewhere):
        assert verdict.peer in tried.fallback
        assert verdict.peer not in tried.peers


@given(faults, policies, st.lists(st.sampled_from(PEERS), unique=True), chances)
def test_attempts_come_to_an_end(
    fault: RunFault, policy: RetryPolicy, fallback: list[str], chance: float
) -> None:
    peers = ["one"]
    while not isinstance(
        verdict := decide(fault, EarlierAttempts(peers, policy, fallback), 0, chance), GiveUp
    ):
        peers.append(verdict.peer if isinstance(verdict, RetryElsewhere) else peers[-1])
        assert len(peers) <= policy.attempts * len(PEERS)


@given(st.sampled_from(sorted(IN_DOUBT)), histories, chances)
def test_work_in_doubt_is_never_done_twice_unasked(
    fault: RunFault, tried: EarlierAttempts, chance: float
) -> None:
    careful = EarlierAttempts(tried.peers, replace(tried.policy, idempotent=False), tried.fallback)
    assert decide(fault, careful, NOW_MS, chance) == GiveUp("in_doubt")


@given(histories, chances)
def test_wrong_request_goes_nowhere_again(tried: EarlierAttempts, chance: float) -> None:
    assert decide(RunFault.REFUSED, tried, NOW_MS, chance) == GiveUp("not_retryable")


@given(faults, histories, chances, st.integers(0, 10**6))
def test_agent_is_left_alone_as_long_as_it_asks(
    fault: RunFault, tried: EarlierAttempts, chance: float, wait_ms: int
) -> None:
    verdict = decide(fault, tried, NOW_MS, chance, wait_ms=wait_ms)
    if isinstance(verdict, RetryLater):
        assert verdict.at_ms >= NOW_MS + wait_ms


@given(policies, st.integers(1, 10_000), chances)
def test_pause_stays_within_its_bounds(policy: RetryPolicy, failed: int, chance: float) -> None:
    pause_ms = back_off(policy, failed, chance)
    assert 0 <= pause_ms <= policy.backoff_max_ms
    jitter = 50 if policy.jitter_percent is None else policy.jitter_percent
    assert pause_ms >= back_off(policy, failed, 0) * (100 - jitter) // 100


@given(policies)
def test_pause_never_shrinks_with_further_failures(policy: RetryPolicy) -> None:
    pauses = [back_off(policy, failed, 0) for failed in range(1, 40)]
    assert all(earlier <= later for earlier, later in pairwise(pauses))


def test_pause_doubles_up_to_its_limit() -> None:
    policy = RetryPolicy(backoff_ms=1000, backoff_max_ms=5000)
    assert [back_off(policy, failed, 0) for failed in (1, 2, 3, 4)] == [1000, 2000, 4000, 5000]
    fixed = replace(policy, backoff="fixed")
    assert [back_off(fixed, failed, 0) for failed in (1, 4)] == [1000, 1000]


@pytest.mark.parametrize("fault", [RunFault.UNREACHABLE, RunFault.REJECTED])
def test_other_agent_is_better_than_another_try(fault: RunFault) -> None:
    tried = EarlierAttempts(["one"], RetryPolicy(attempts=5), ["one", "two"])
    assert isinstance(decide(fault, tried, 0, 0), RetryElsewhere)


def test_other_agent_waits_for_the_last_try() -> None:
    policy = RetryPolicy(attempts=2)
    assert isinstance(
        decide(RunFault.FAILED, EarlierAttempts(["one"], policy, ["two"]), 0, 0), RetryLater
    )
    last = decide(RunFault.FAILED, EarlierAttempts(["one", "one"], policy, ["two"]), 0, 0)
    assert last == RetryElsewhere("two", "failed")
