"""One budget: it is never exceeded, each holder has a share, and everything is returned."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.errors import InstanceFull, Limited
from passerelle.runtime.memory.budget import Budget, MemoryShortage
from passerelle.runtime.memory.machine import LEAST, choose_budget
from passerelle.runtime.memory.room import (
    MemoryRoom,
    MemoryUse,
    Reservation,
    RoomOutcome,
)

_STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 80), st.booleans()), max_size=40)


def _stay() -> None:
    """It never has to give way here."""


@given(st.integers(2, 100), _STEPS)
def test_no_order_of_taking_and_giving_back_goes_beyond_it(
    total: int, steps: list[tuple[str, int, bool]]
) -> None:
    budget = Budget(total)
    held: list[tuple[str, int]] = []
    for holder, amount, gives in steps:
        if gives and held:
            budget.give_back(*held.pop(0))
            continue
        lack = budget.take(holder, amount)
        mine = sum(size for name, size in held if name == holder)
        everything = sum(size for _, size in held)
        assert (lack is MemoryShortage.SHARE) is (mine + amount > total // 2)
        assert (lack is None) is (mine + amount <= total // 2 and everything + amount <= total)
        if lack is None:
            held.append((holder, amount))
        assert budget.held == sum(size for _, size in held) <= total
    for one in held:
        budget.give_back(*one)
    assert (budget.held, [budget.find_held(name) for name in "abc"]) == (0, [0, 0, 0])


@given(st.integers(2, 60), _STEPS)
def test_every_reservation_is_granted_eventually(
    total: int, steps: list[tuple[str, int, bool]]
) -> None:
    room = MemoryRoom(Budget(total))
    served: list[int] = []
    waiting: list[Reservation] = []
    for number, (holder, amount, _) in enumerate(steps):
        one = room.bind("answer", holder).reserve(amount, partial(served.append, number), _stay)
        waiting.append(one)
        if one.granted:
            served.append(number)
    for _ in range(len(steps)):
        for one in waiting:
            if one.granted and not one.is_over:
                one.release()
                one.release()
                break
    assert sorted(served) == list(range(len(steps)))
    assert (room.budget.held, room.waiting, room.held["answer"]) == (0, 0, 0)


def test_a_refused_reservation_reports_the_holder_and_the_shortage() -> None:
    told: list[tuple[MemoryUse, str, MemoryShortage, RoomOutcome]] = []

    def hear(*said: *tuple[MemoryUse, str, MemoryShortage, RoomOutcome]) -> None:
        told.append(said)

    room = MemoryRoom(Budget(10), hear)
    room.bind("body", "caller:a").take(5)
    with pytest.raises(Limited):
        room.bind("body", "caller:a").take(1)
    room.bind("body", "caller:b").take(5)
    with pytest.raises(InstanceFull):
        room.bind("body", "caller:c").take(1)
    assert told == [
        ("body", "caller:a", MemoryShortage.SHARE, "refused"),
        ("body", "caller:c", MemoryShortage.TOTAL, "refused"),
    ]


def test_a_holder_over_its_share_does_not_block_others() -> None:
    room, went_on = MemoryRoom(Budget(20)), list[str]()
    first = room.bind("answer", "a").reserve(10, lambda: went_on.append("first"), _stay)
    room.bind("answer", "a").reserve(10, lambda: went_on.append("second"), _stay)
    other = room.bind("answer", "b").reserve(10, lambda: went_on.append("other"), _stay)
    assert (first.granted, other.granted, room.waiting) == (True, True, 1)
    third = room.bind("answer", "b").reserve(10, lambda: went_on.append("third"), _stay)
    other.release()
    assert (went_on, third.granted) == (["third"], True)
    first.release()
    assert went_on == ["third", "second"]


@pytest.mark.parametrize(
    ("memory", "budget"),
    [(1 << 20, LEAST), (1 << 30, 1 << 28), (1 << 32, 1 << 30), (1 << 40, 1 << 30)],
)
def test_the_budget_is_a_quarter_of_the_memory_within_bounds(memory: int, budget: int) -> None:
    assert choose_budget(memory) == budget
