"""The schedule machine: tables of commands, ticks and overlaps, and invariants of every course of events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.payloads.schedule import (
    MissedPolicy,
    OverlapPolicy,
    ScheduleChange,
    ScheduledRun,
    ScheduleTerms,
)
from passerelle.core.schedule import machine
from passerelle.core.schedule.machine import (
    MOST_WAITING,
    EndSchedule,
    RequestRun,
    ScheduleCommand,
    ScheduleState,
    ScheduleStatus,
    StartTicks,
    StopTicks,
    decide,
    evolve,
    find_due,
    find_startable,
    find_visit,
    judge_ticks,
)
from passerelle.core.wire.record import change
from passerelle.runtime.common.calendar import ZonedCalendar, find_zone

SESSION: Final = "se_0000000000000000000000000000"
CALENDAR: Final = ZonedCalendar()
MINUTE: Final = 60_000
MISSED: Final[tuple[MissedPolicy, ...]] = ("skip", "once", "all")
OVERLAPS: Final[tuple[OverlapPolicy, ...]] = ("skip", "wait", "replace", "allow")


def terms(**members: object) -> ScheduleTerms:
    return change(ScheduleTerms("echo", {"parts": []}, 0, every_s=60, grace_s=30), **members)


def open_schedule(**members: object) -> ScheduleState:
    said = terms(**members)
    step = ScheduleChange("created", terms=said, next_ms=CALENDAR.next_after(said, 0))
    state = evolve(None, step, 1)
    assert state is not None
    return state


def tick(state: ScheduleState, now_ms: int, *, busy: bool = False) -> ScheduleChange:
    step = judge_ticks(SESSION, state, now_ms, CALENDAR, busy=busy)
    assert step is not None
    return step


def causes(step: ScheduleChange) -> list[tuple[int, str]]:
    return [(run.tick_ms // MINUTE, run.cause) for run in step.runs]


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("status", ScheduleStatus)
@pytest.mark.parametrize(
    "command",
    [StopTicks("ada"), StartTicks("ada", 9), RequestRun("ada", 7), EndSchedule("ada")],
)
def test_only_commands_of_the_table_are_accepted(
    status: ScheduleStatus, command: ScheduleCommand
) -> None:
    state = change(open_schedule(), status=status)
    target = machine.TABLE[type(command)].get(status)
    if target is None:
        with pytest.raises(UnsupportedOperation):
            decide(state, command)
        return
    after = evolve(state, decide(state, command), 2)
    assert after is not None
    assert after.status is target


def test_run_that_is_requested_begins_whatever_goes_on_and_also_in_a_pause() -> None:
    paused = evolve(open_schedule(), ScheduleChange("paused"), 2)
    assert paused is not None
    after = evolve(paused, decide(paused, RequestRun("ada", 7)), 3)
    assert after is not None
    assert find_startable(after, busy=True) == ScheduledRun(1, 7, "requested", since=3)


def test_too_many_runs_do_not_wait() -> None:
    state = open_schedule()
    for number in range(MOST_WAITING):
        step = decide(state, RequestRun("ada", number))
        state = evolve(state, step, number + 2) or state
    with pytest.raises(UnsupportedOperation, match="too many"):
        decide(state, RequestRun("ada", 1))


def test_resumed_schedule_has_missed_nothing_of_its_pause() -> None:
    paused = evolve(open_schedule(missed="all"), ScheduleChange("paused"), 2)
    assert paused is not None
    assert judge_ticks(SESSION, paused, 9 * MINUTE, CALENDAR, busy=False) is None
    step = ScheduleChange("resumed", next_ms=CALENDAR.next_after(paused.terms, 9 * MINUTE))
    resumed = evolve(paused, step, 3)
    assert resumed is not None
    assert judge_ticks(SESSION, resumed, 9 * MINUTE, CALENDAR, busy=False) is None
    assert causes(tick(resumed, 10 * MINUTE)) == [(10, "due")]


def test_deleted_schedule_is_never_looked_at_again() -> None:
    state = open_schedule(overlap="wait")
    state = evolve(state, tick(state, MINUTE), 2) or state
    gone = evolve(state, ScheduleChange("deleted"), 3)
    assert gone is not None
    assert gone.waiting == ()
    assert find_visit(SESSION, gone, 10 * MINUTE, busy=False) is None


# ---------------------------------------------------------------- missed ticks


@pytest.mark.requirement("OBJ-8")
@pytest.mark.parametrize(
    ("missed", "now_ms", "runs", "dropped"),
    [
        # On time: the tick itself.
        ("skip", MINUTE + 1, [(1, "due")], 0),
        ("once", MINUTE + 1, [(1, "due")], 0),
        ("all", MINUTE + 1, [(1, "due")], 0),
        # One went by: later than the grace.
        ("skip", MINUTE + 30_001, [], 1),
        ("once", MINUTE + 30_001, [(1, "missed")], 0),
        ("all", MINUTE + 30_001, [(1, "missed")], 0),
        # Three went by, and none is on time.
        ("skip", 3 * MINUTE + 45_000, [], 3),
        ("once", 3 * MINUTE + 45_000, [(3, "missed")], 2),
        ("all", 3 * MINUTE + 45_000, [(1, "missed"), (2, "missed"), (3, "missed")], 0),
        # Two went by, and the third is on time.
        ("skip", 3 * MINUTE, [(3, "due")], 2),
        ("once", 3 * MINUTE, [(3, "due")], 2),
        ("all", 3 * MINUTE, [(1, "missed"), (2, "missed"), (3, "due")], 0),
    ],
)
def test_missed_ticks_are_handled_by_the_missed_policy(
    missed: MissedPolicy, now_ms: int, runs: list[tuple[int, str]], dropped: int
) -> None:
    step = tick(open_schedule(missed=missed, overlap="allow"), now_ms)
    assert causes(step) == runs
    assert (step.missed, step.skipped) == (dropped, 0)
    assert step.next_ms == (now_ms // MINUTE + 1) * MINUTE


def test_more_missed_ticks_than_may_wait_leave_the_newest() -> None:
    step = tick(open_schedule(missed="all"), 150 * MINUTE + 45_000)
    assert [run.tick_ms // MINUTE for run in step.runs] == list(range(51, 151))
    assert step.missed == 50


def test_absence_of_years_is_passed_over() -> None:
    step = tick(open_schedule(missed="once"), 20_000 * MINUTE + 45_000)
    assert len(step.runs) == 1
    assert step.next_ms == 20_001 * MINUTE


# ---------------------------------------------------------------- overlap


@pytest.mark.parametrize(
    ("overlap", "busy", "runs", "skipped", "starts"),
    [
        ("skip", False, [(1, "due")], 0, True),
        ("skip", True, [], 1, False),
        ("wait", False, [(1, "due")], 0, True),
        ("wait", True, [(1, "due")], 0, False),
        ("replace", False, [(1, "due")], 0, True),
        ("replace", True, [(1, "due")], 0, True),
        ("allow", False, [(1, "due")], 0, True),
        ("allow", True, [(1, "due")], 0, True),
    ],
)
def test_tick_during_a_run_is_handled_by_the_overlap_policy(
    overlap: OverlapPolicy,
    busy: bool,  # noqa: FBT001
    runs: list[tuple[int, str]],
    skipped: int,
    starts: bool,  # noqa: FBT001
) -> None:
    state = open_schedule(overlap=overlap)
    step = tick(state, MINUTE, busy=busy)
    assert causes(step) == runs
    assert step.skipped == skipped
    after = evolve(state, step, 2)
    assert after is not None
    assert (find_startable(after, busy=busy) is not None) is starts


def test_one_waiting_run_replaces_all_ticks_during_its_wait() -> None:
    state = open_schedule(overlap="wait")
    state = evolve(state, tick(state, MINUTE, busy=True), 2) or state
    step = tick(state, 2 * MINUTE, busy=True)
    assert (step.runs, step.skipped) == ((), 1)


def test_late_runs_of_all_wait_for_each_other_and_replace_nothing() -> None:
    state = open_schedule(missed="all", overlap="replace")
    state = evolve(state, tick(state, 2 * MINUTE + 45_000), 2) or state
    assert [run.cause for run in state.waiting] == ["missed", "missed"]
    assert find_startable(state, busy=True) is None
    assert find_startable(state, busy=False) == state.waiting[0]
    assert find_visit(SESSION, state, 2 * MINUTE + 45_000, busy=True) == 2 * MINUTE + 47_000


# ---------------------------------------------------------------- jitter, time zones


@given(st.integers(0, 10**12), st.integers(1, 3_600))
def test_jitter_is_deterministic_and_within_its_bound(at_ms: int, most_s: int) -> None:
    said = terms(jitter_s=most_s)
    due_ms = find_due(SESSION, said, at_ms)
    assert due_ms == find_due(SESSION, said, at_ms)
    assert 0 <= due_ms - at_ms < most_s * 1000


def test_jitter_spreads_ticks() -> None:
    said = terms(jitter_s=50)
    offsets = {find_due(SESSION, said, at * MINUTE) - at * MINUTE for at in range(100)}
    assert len(offsets) > 90


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # The night in which 02:00 to 03:00 does not exist: right behind the change.
        ("30 2 * * *", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        # The night in which it comes twice: once.
        ("30 2 * * *", "2026-10-24T12:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        # 09:00 stays 09:00 for people.
        ("0 9 * * *", "2026-03-28T00:00Z", ["2026-03-28T08:00Z", "2026-03-29T07:00Z"]),
        # What is due every half hour goes on through the change.
        ("*/30 * * * *", "2026-03-29T00:00Z", ["2026-03-29T00:30Z", "2026-03-29T01:00Z"]),
        ("*/30 * * * *", "2026-10-25T00:15Z", ["2026-10-25T00:30Z", "2026-10-25T01:00Z"]),
    ],
)
def test_changes_of_the_clock_lose_and_double_no_tick(
    cron: str, after: str, expected: list[str]
) -> None:
    said = terms(cron=cron, every_s=None, timezone="Europe/Paris")
    now_ms = round(datetime.fromisoformat(after).timestamp() * 1000)
    found: list[str] = []
    for _ in expected:
        now_ms = CALENDAR.next_after(said, now_ms) or 0
        found.append(f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%dT%H:%MZ}")
    assert found == expected


@given(st.integers(0, 4 * 10**12), st.integers(0, 4 * 10**12), st.integers(1, 10**7))
def test_interval_counts_from_its_anchor(after_ms: int, anchor_ms: int, every_s: int) -> None:
    said = terms(anchor_ms=anchor_ms, every_s=every_s)
    found = CALENDAR.next_after(said, after_ms)
    assert found is not None
    assert 0 < found - after_ms <= every_s * 1000
    assert (found - anchor_ms) % (every_s * 1000) == 0


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 31 * *", "15 3 * * MON#1", "0 */5 * * *"]),
    st.sampled_from(["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    st.integers(1_600_000_000_000, 1_900_000_000_000),
)
def test_next_tick_is_always_later(cron: str, zone: str, after_ms: int) -> None:
    said = terms(cron=cron, every_s=None, timezone=zone)
    first = CALENDAR.next_after(said, after_ms)
    assert first is not None
    assert first > after_ms
    second = CALENDAR.next_after(said, first)
    assert second is not None
    assert second > first


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        *((cron, "takes five fields") for cron in ("", "* * * *", "* * * * * *", "@daily")),
        ("61 * * * *", "'61' is not a valid minute"),
        ("*/0 9 * * *", "'[*]/0' is not a valid minute"),
        ("a b c d e", "'a' is not a valid minute"),
        ("0 9-8 * * *", "'9-8' is not a valid hour"),
        ("0 0 30 2 *", "'30' is not a valid day of the month"),
        ("0 0 * 13 *", "'13' is not a valid month"),
        ("0 0 * * FOO", "'FOO' is not a valid day of the week"),
    ],
)
def test_invalid_cron_expression_is_refused(cron: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"cron: {reason}"):
        CALENDAR.next_after(terms(cron=cron, every_s=None), 0)


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc/passwd", "", "x" * 300])
def test_invalid_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="timezone"):
        find_zone(zone)


# ---------------------------------------------------------------- every course of events


@dataclass
class Course:
    """One schedule and who has it fire; ``sent`` are the runs that were sent, each with how often."""

    state: ScheduleState
    now_ms: int = 0
    sequence: int = 1
    busy: bool = False
    sent: Counter[int] = field(default_factory=Counter[int])
    ticks: Counter[int] = field(default_factory=Counter[int])

    def record(self, step: ScheduleChange | None) -> None:
        if step is None:
            return
        self.sequence += 1
        state = evolve(self.state, step, self.sequence)
        assert state is not None
        self.state = state
        if step.step == "ticked":
            self.ticks.update(run.tick_ms for run in step.runs)

    def visit(self, *, dies_after: int) -> None:
        """Acts like a handler of the row, which may die after this number of acts."""
        if dies_after == 0:
            return
        self.record(judge_ticks(SESSION, self.state, self.now_ms, CALENDAR, busy=self.busy))
        for act in range(1, 40):
            run = find_startable(self.state, busy=self.busy)
            if run is None or act >= dies_after:
                return
            # The key of the run has the store take it once.
            self.sent[run.number] = 1
            if act + 1 >= dies_after:
                return
            self.record(machine.begin_run(self.state, run, f"task {run.number}"))
            self.busy = True


@given(
    st.sampled_from(MISSED),
    st.sampled_from(OVERLAPS),
    st.integers(0, 20),
    st.lists(
        st.tuples(
            st.integers(0, 6 * MINUTE),
            st.sampled_from(["visit", "end", "request", "pause", "resume"]),
            st.integers(0, 6),
        ),
        max_size=40,
    ),
)
def test_every_tick_is_judged_once_even_if_the_instance_dies(
    missed: MissedPolicy,
    overlap: OverlapPolicy,
    jitter_s: int,
    course: list[tuple[int, str, int]],
) -> None:
    one = Course(open_schedule(missed=missed, overlap=overlap, jitter_s=jitter_s))
    paused = False
    for ahead_ms, act, dies_after in course:
        one.now_ms += ahead_ms
        status = one.state.status
        match act:
            case "end":
                one.busy = False
            case "request":
                one.record(decide(one.state, RequestRun("ada", one.now_ms)))
            case "pause" if status is ScheduleStatus.ACTIVE:
                paused = True
                one.record(decide(one.state, StopTicks("ada")))
            case "resume" if status is ScheduleStatus.PAUSED:
                next_ms = CALENDAR.next_after(one.state.terms, one.now_ms)
                one.record(decide(one.state, StartTicks("ada", next_ms)))
            case _:
                one.visit(dies_after=dies_after)
    assert all(count == 1 for count in one.ticks.values())
    assert sorted(one.sent) == sorted(set(one.sent))
    begun = [run.number for run in one.state.recent]
    assert len(begun) == len(set(begun))
    named = {run.number for run in (*one.state.waiting, *one.state.recent)}
    assert len(one.state.waiting) <= MOST_WAITING + 40
    if one.state.runs <= machine.RECENT_RUNS:
        assert named == set(range(1, one.state.runs + 1))
    if not paused and one.state.next_ms is not None:
        # Nothing is lost: every tick before the next one has a run or is counted.
        passed = one.state.next_ms // MINUTE - 1
        assert sum(one.ticks.values()) + one.state.missed + one.state.skipped == passed


def test_a_run_starts_and_ends_once() -> None:
    state = open_schedule()
    state = evolve(state, tick(state, MINUTE), 2) or state
    run = find_startable(state, busy=False)
    assert run is not None
    state = evolve(state, machine.begin_run(state, run, "task"), 3) or state  # type: ignore[arg-type]
    assert machine.begin_run(state, run, "task") is None
    error = ErrorDetail("x", ErrorCategory.CALLER, "x")
    assert machine.fail_run(state, run, error) is None
