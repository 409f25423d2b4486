"""The delivery of answers: check first, send once, never resend blindly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.approval.commands import BeginReturn, FailReturn, RetryReturn
from passerelle.core.peer import Answered, Malformed, PeerOutcome, RefusedByPeer, Unknown, Unreached
from passerelle.permission_bridge.return_machine import (
    Gone,
    LookAgain,
    ReturnAttempts,
    Returned,
    ReturnStep,
    RunningOn,
    SendReturn,
    StillWaiting,
    TaskOver,
    TaskSighting,
    TurnedDown,
    Undeliverable,
    Unreachable,
    WaitUntil,
    back_off,
    choose_step,
    judge_sending,
    read_attempts,
)
from tests.support.approvals import NOW_MS, Stream, make_answer

DOUBT_MS = 35_000
WAITING = StillWaiting(same=True, native_status="TASK_STATE_INPUT_REQUIRED")
UNMOVED = StillWaiting(same=True, native_status="w", has_message=True)
UNHEARD = Undeliverable("peer_refused: the agent has the answer and still waits")
NONE = ReturnAttempts()
JUST_NOW = ReturnAttempts(1, NOW_MS - 1000)
LONG_AGO = ReturnAttempts(1, NOW_MS - DOUBT_MS - 1)


@pytest.mark.parametrize(
    ("sight", "attempts", "step"),
    [
        (WAITING, NONE, SendReturn()),
        (WAITING, LONG_AGO, SendReturn()),
        (WAITING, JUST_NOW, WaitUntil(NOW_MS - 1000 + DOUBT_MS + 1)),
        (WAITING, ReturnAttempts(1, NOW_MS - DOUBT_MS), WaitUntil(NOW_MS + 1)),
        (WAITING, ReturnAttempts(1, NOW_MS + 60_000), WaitUntil(NOW_MS + DOUBT_MS + 1)),
        (WAITING, ReturnAttempts(1, NOW_MS - 1, untaken=True), SendReturn()),
        (UNMOVED, NONE, Returned("w")),
        (UNMOVED, JUST_NOW, WaitUntil(NOW_MS - 1000 + DOUBT_MS + 1)),
        (UNMOVED, LONG_AGO, UNHEARD),
        (StillWaiting(same=False, native_status="w"), NONE, Undeliverable("stale")),
        (StillWaiting(same=False, native_status="w"), JUST_NOW, Undeliverable("stale")),
        (StillWaiting(same=False, native_status="w", has_message=True), JUST_NOW, Returned("w")),
        (RunningOn("r"), JUST_NOW, Returned("r")),
        (RunningOn("r"), NONE, Undeliverable("peer_moved_on")),
        (RunningOn("r", has_message=False), JUST_NOW, Undeliverable("peer_moved_on")),
        (RunningOn("r", has_message=True), JUST_NOW, Returned("r")),
        (TaskOver("e"), NONE, Undeliverable("peer_terminal")),
        (TaskOver("e"), JUST_NOW, Undeliverable("peer_terminal")),
        (TaskOver("e", has_message=True), JUST_NOW, Returned("e")),
        (Gone(), NONE, Undeliverable("task_not_found")),
        (Unreachable(), NONE, WaitUntil(NOW_MS + 10_000)),
        (Unreachable(), ReturnAttempts(3, NOW_MS), WaitUntil(NOW_MS + 40_000)),
    ],
)
def test_the_state_of_the_agents_task_decides_the_step(
    sight: TaskSighting, attempts: ReturnAttempts, step: ReturnStep
) -> None:
    assert choose_step(sight, attempts, NOW_MS, DOUBT_MS) == step


_SEEN = st.sampled_from([None, True, False])
_SIGHTS = st.one_of(
    st.builds(StillWaiting, same=st.booleans(), native_status=st.just("w"), has_message=_SEEN),
    st.builds(RunningOn, st.just("r"), _SEEN),
    st.builds(TaskOver, st.just("e"), _SEEN),
    st.just(Gone()),
    st.just(Unreachable()),
)


@given(
    _SIGHTS,
    st.builds(
        ReturnAttempts, st.integers(0, 20), st.integers(NOW_MS - 10**6, NOW_MS), st.booleans()
    ),
)
def test_an_answer_is_sent_only_to_a_task_that_waits_for_it_and_cannot_have_it(
    sight: TaskSighting, attempts: ReturnAttempts
) -> None:
    step = choose_step(sight, attempts, NOW_MS, DOUBT_MS)
    if isinstance(step, SendReturn):
        assert isinstance(sight, StillWaiting)
        assert sight.same
        assert not sight.has_message
        in_doubt = NOW_MS - attempts.last_ms <= DOUBT_MS
        assert attempts.count == 0 or attempts.untaken or not in_doubt
    if isinstance(step, WaitUntil):
        assert step.at_ms > NOW_MS


@given(_SIGHTS)
def test_an_answer_that_the_agent_does_not_have_is_not_returned(sight: TaskSighting) -> None:
    if not isinstance(sight, Gone | Unreachable) and sight.has_message is False:
        step = choose_step(sight, LONG_AGO, NOW_MS, DOUBT_MS)
        assert not isinstance(step, Returned)


def test_back_off_doubles_up_to_five_minutes() -> None:
    assert [back_off(attempts) for attempts in range(9)] == [
        10_000,
        10_000,
        20_000,
        40_000,
        80_000,
        160_000,
        300_000,
        300_000,
        300_000,
    ]
    assert back_off(10_000) == 300_000


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Answered({}), Returned("TASK_STATE_WORKING")),
        (RefusedByPeer(-32602, "no"), TurnedDown(RefusedByPeer(-32602, "no"))),
        (
            RefusedByPeer(-32603, "HTTP 400", 400),
            TurnedDown(RefusedByPeer(-32603, "HTTP 400", 400)),
        ),
        (
            RefusedByPeer(-32603, "HTTP 503", 503),
            TurnedDown(RefusedByPeer(-32603, "HTTP 503", 503)),
        ),
        (RefusedByPeer(-32603, "HTTP 503", 503, 7), LookAgain(NOW_MS + 7_000, untaken=True)),
        (RefusedByPeer(-32603, "HTTP 429", 429), LookAgain(NOW_MS + 20_000, untaken=True)),
        (Unreached("down"), LookAgain(NOW_MS + 20_000, untaken=True)),
        (Unknown("cut"), LookAgain(NOW_MS + 20_000)),
        (Malformed("what", b""), TurnedDown(Malformed("what", b""))),
    ],
)
def test_only_an_answer_of_the_peer_is_a_delivery(
    outcome: PeerOutcome, expected: Returned | TurnedDown | LookAgain
) -> None:
    assert judge_sending(outcome, "TASK_STATE_WORKING", 2, NOW_MS) == expected


def test_broken_first_exchange_is_checked_after_the_full_pause() -> None:
    """An agent may still show its question while it works: an early check would take it for asked again."""
    assert judge_sending(Unknown("cut"), None, 1, NOW_MS) == LookAgain(NOW_MS + 10_000)


def test_a_bare_message_delivers_without_a_status() -> None:
    assert judge_sending(Answered({}), None, 1, NOW_MS) == Returned("unknown")


def test_the_record_has_the_number_and_time_of_attempts() -> None:
    stream = Stream()
    stream.open()
    stream.tell(make_answer(stream.now))
    assert read_attempts(stream.now).count == 0
    stream.now_ms += 1000
    stream.tell(BeginReturn())
    assert read_attempts(stream.now) == ReturnAttempts(1, NOW_MS + 1000)
    assert read_attempts(stream.now, untaken=True).untaken


def test_a_requested_retry_also_checks_the_agent_first() -> None:
    stream = Stream()
    stream.open()
    for command in (make_answer(stream.now), BeginReturn(), FailReturn("stale"), RetryReturn()):
        stream.tell(command)
    attempts = read_attempts(stream.now)
    assert isinstance(choose_step(WAITING, attempts, stream.now_ms, DOUBT_MS), WaitUntil)
