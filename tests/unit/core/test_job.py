"""The job machine: its table, its ends, and invariants of every course of items."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.events import AnyPayload, Event, Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Ref, Scope
from passerelle.core.job import machine
from passerelle.core.job.machine import (
    LIVE,
    JobCommand,
    JobState,
    JobStatus,
    RetryItems,
    StopJob,
    decide,
    evolve,
    find_end,
    list_next,
)
from passerelle.core.payloads.job import (
    ItemRefusal,
    JobCancelled,
    JobCreated,
    JobItemCompleted,
    JobItemFailed,
    JobItemStarted,
    JobProgress,
)
from passerelle.core.wire.record import change

JOB: Final = "se_0000000000000000000000000000"
ITEM_LETTERS: Final = "".join(machine.ITEM_STATES)
ERROR: Final = ErrorDetail("failed", ErrorCategory.PEER, "failed")


def evolve_with(state: JobState | None, payload: AnyPayload, task: str | None = None) -> JobState:
    fact = Fact(Scope(JOB, task_id=task), payload, {"input": Ref(blob="0")})
    after = evolve(state, Event("ev", "2026-01-01T00:00:00.000Z", "rt", fact))
    assert after is not None
    return after


def make(items: int = 3, **members: object) -> JobState:
    created = JobCreated(JOB, "o", "inputs", items, "ada", agents=("echo",), concurrency=2)
    return evolve_with(None, change(created, **members))


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("command", [StopJob("ada"), RetryItems("ada")])
def test_only_commands_of_the_table_are_accepted(status: JobStatus, command: JobCommand) -> None:
    state = change(make(), status=status, states="wfx")
    target = machine.TABLE[type(command)].get(status)
    if target is None:
        with pytest.raises(UnsupportedOperation):
            decide(JOB, state, command)
        return
    assert evolve_with(state, decide(JOB, state, command)).status is target


def test_cancelled_job_leaves_what_has_ended() -> None:
    state = change(make(5), status=JobStatus.RUNNING, states="cfrwx")
    after = evolve_with(state, decide(JOB, state, StopJob("ada")))
    assert after.states == "cfxxx"


def test_job_keeps_its_parent_and_records_who_stopped_it() -> None:
    assert make().parent is None
    state = make(parent_task_id="task_1")
    assert state.parent == "task_1"
    for source in ("user", "runtime"):
        said = decide(JOB, state, StopJob("gateway", "a storm", source))
        assert isinstance(said, JobCancelled)
        assert (said.actor, said.source, said.reason) == ("gateway", source, "a storm")
        assert evolve_with(state, said).parent == "task_1"


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((1,), "item 1 is completed"),
        ((2, 1), "item 1 is completed"),
        ((4,), "the job has no item 4"),
        ((0,), "the job has no item 0"),
    ],
)
def test_item_that_has_not_failed_is_not_tried_again(items: tuple[int, ...], reason: str) -> None:
    state = change(make(), status=JobStatus.FAILED, states="cff")
    with pytest.raises(InvalidInput, match=f"items: {reason}"):
        decide(JOB, state, RetryItems("ada", items))


def test_item_is_not_tried_again_for_ever() -> None:
    state = change(make(1), status=JobStatus.FAILED, states="f", tries="9")
    with pytest.raises(UnsupportedOperation):
        decide(JOB, state, RetryItems("ada"))


@pytest.mark.parametrize(
    ("states", "most_failed", "end"),
    [
        ("ccc", 0, "job.completed"),
        ("ccf", 0, "job.failed"),
        ("ccf", 1, "job.completed"),
        ("cff", 1, "job.failed"),
        ("ccw", 0, None),
        ("ccr", 3, None),
    ],
)
def test_job_ends_by_its_rule(states: str, most_failed: int, end: str | None) -> None:
    state = change(make(), status=JobStatus.RUNNING, states=states, most_failed=most_failed)
    found = find_end(JOB, state)
    assert (None if found is None else found.type) == end


@given(
    st.text(ITEM_LETTERS, min_size=1, max_size=12),
    st.sampled_from(JobStatus),
    st.data(),
)
def test_attempt_begins_next_where_the_list_names_it(
    states: str, status: JobStatus, data: st.DataObject
) -> None:
    tries = data.draw(st.text("0123456789", min_size=len(states), max_size=len(states)))
    state = change(make(len(states)), states=states, tries=tries, status=status)
    named = set(list_next(state, len(states)))
    for item in range(-1, len(states) + 2):
        for attempt in range(12):
            assert machine.begins_next(state, item, attempt) is ((item, attempt) in named)


@pytest.mark.parametrize("item", [-1, 0, 3])
def test_fact_about_an_item_that_is_none_changes_no_letter(item: int) -> None:
    state = change(make(2), status=JobStatus.RUNNING)
    for said in (JobItemStarted(JOB, item, 1), JobItemCompleted(JOB, item, 1)):
        after = evolve_with(state, said, "task")
        assert (after.states, after.tries) == (state.states, state.tries)


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("sefru"), st.integers(0, 20)), max_size=80),
)
def test_every_item_ends_within_the_attempts_of_its_policy(
    items: int, attempts: int, course: list[tuple[str, int]]
) -> None:
    state = make(items, attempts=attempts)
    for act, which in [*course, *(("s" if step % 2 else "f", 0) for step in range(200))]:
        chosen = list_next(state, 1)
        running = state.running[which % len(state.running)] if state.running else None
        if act in "su" and chosen and len(state.running) < state.concurrency:
            [(item, attempt)] = chosen
            if act == "u":
                refusal = ItemRefusal(item, attempt, ERROR)
                state = evolve_with(state, JobProgress(JOB, state.counts, (refusal,)))
            else:
                state = evolve_with(
                    state, JobItemStarted(JOB, item, attempt), f"task {item} {attempt}"
                )
        elif act in "ef" and running is not None:
            retries = machine.has_attempt_left(state, running.attempt)
            ended: AnyPayload = (
                JobItemCompleted(JOB, running.item, running.attempt)
                if act == "e"
                else JobItemFailed(JOB, running.item, running.attempt, ERROR, retries)
            )
            state = evolve_with(state, ended, running.task_id)
        counts = state.counts
        assert counts.running == len(state.running) <= state.concurrency
        assert sum(vars(counts).values()) == items == len(state.tries)
        assert all(int(tries) <= attempts for tries in state.tries)
        if (end := find_end(JOB, state)) is not None:
            state = evolve_with(state, end)
    assert state.status not in LIVE
    assert set(state.states) <= {"c", "f"}
    for letter, tries in zip(state.states, state.tries, strict=True):
        assert letter == "c" or int(tries) == attempts
