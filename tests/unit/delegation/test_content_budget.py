"""Memory held by runs for their tasks: beyond a bound they grow one after another, and none waits for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from passerelle.delegation.runs.content_budget import (
    PAUSE_S,
    SMALL_BYTES,
    ContentBudget,
    HeldContent,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1024 * 1024


@dataclass
class Clock:
    """A monotonic clock that a test moves."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(clock: Clock) -> ContentBudget:
    return ContentBudget(100 * MB, clock)


def hold(room: ContentBudget, owner: str, megabytes: int) -> HeldContent:
    content = HeldContent(owner)
    room.grow(content, megabytes * MB)
    return content


async def begin_to_wait(room: ContentBudget, content: HeldContent) -> asyncio.Task[None]:
    before = room.waiting
    waiting = asyncio.create_task(room.wait(content))
    await wait_until(lambda: room.waiting > before, 5, "it waits")
    return waiting


def test_small_content_is_not_counted(room: ContentBudget) -> None:
    hold(room, "ada", 90)
    small = HeldContent("ada")
    room.grow(small, SMALL_BYTES)
    assert room.held == 90 * MB
    assert room.may_grow(small)


async def test_beyond_the_share_of_a_caller_its_largest_run_goes_on_and_the_others_wait(
    room: ContentBudget,
) -> None:
    large, small = hold(room, "ada", 40), hold(room, "ada", 20)
    other = hold(room, "bob", 30)
    assert room.may_grow(large)
    assert not room.may_grow(small)
    assert room.may_grow(other), "another caller has a share of its own"
    waiting = await begin_to_wait(room, small)
    room.grow(large, 0)
    await waiting
    assert room.held == 50 * MB


async def test_the_largest_waiting_answer_is_next(room: ContentBudget) -> None:
    first, middle, least = (hold(room, "ada", megabytes) for megabytes in (60, 56, 52))
    assert room.may_grow(first)
    waiting = [await begin_to_wait(room, one) for one in (least, middle)]
    room.grow(first, 0)
    await waiting[1]
    assert not waiting[0].done()
    room.grow(middle, 0)
    await waiting[0]


async def test_a_stalled_answer_loses_its_turn(room: ContentBudget, clock: Clock) -> None:
    paused, other = hold(room, "ada", 40), hold(room, "ada", 20)
    assert room.may_grow(paused), "it has the turn from now on"
    clock.now_s += PAUSE_S - 1
    assert not room.may_grow(other)
    clock.now_s += 2
    assert room.may_grow(other)
    assert not room.may_grow(paused)


def test_beyond_the_bound_of_all_one_run_goes_on(room: ContentBudget) -> None:
    runs = [hold(room, f"caller-{number}", 30) for number in range(4)]
    assert [room.may_grow(one) for one in runs] == [True, False, False, False]


def test_beyond_both_bounds_one_run_goes_on_and_not_one_of_each_caller(room: ContentBudget) -> None:
    runs = [hold(room, owner, 30) for owner in ("ada", "ada", "bob", "bob")]
    assert [room.may_grow(one) for one in runs] == [True, False, False, False]


@dataclass
class Run:
    """A run of the machine below."""

    content: HeldContent
    size: int = 0
    grown: list[int] = field(default_factory=list[int])


class Rooms(RuleBasedStateMachine):
    """Runs that begin, bring more where they may, and end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.room = ContentBudget(100 * MB, self.clock)
        self.runs: list[Run] = []

    @rule(owner=st.sampled_from(["ada", "bob", "carol"]))
    def begin(self, owner: str) -> None:
        self.runs.append(Run(HeldContent(owner)))

    @rule(which=st.integers(0, 40), megabytes=st.integers(1, 30))
    def bring(self, which: int, megabytes: int) -> None:
        if self.runs:
            run = self.runs[which % len(self.runs)]
            if self.room.may_grow(run.content):
                run.size += megabytes * MB
                self.room.grow(run.content, run.size)

    @rule(which=st.integers(0, 40))
    def end(self, which: int) -> None:
        if self.runs:
            self.room.grow(self.runs.pop(which % len(self.runs)).content, 0)

    @rule(seconds=st.integers(1, 20))
    def pass_time(self, seconds: int) -> None:
        self.clock.now_s += seconds

    @invariant()
    def somebody_may_go_on(self) -> None:
        self.clock.now_s += PAUSE_S
        assert not self.runs or any(self.room.may_grow(run.content) for run in self.runs)

    @invariant()
    def what_is_held_is_counted(self) -> None:
        large = [run.size for run in self.runs if run.size > SMALL_BYTES]
        assert self.room.held == sum(large)


TestRooms = settings(max_examples=50, stateful_step_count=40)(Rooms).TestCase
