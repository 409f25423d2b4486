"""Blocks of shared limits: what an instance reserves, what it returns, and that nothing is counted twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from passerelle.runtime.limits.limit import SlotBlock, UnitBlock


def fill(block: SlotBlock, limit: int) -> int:
    """Calls enter until the limit is full; returns how often the store was asked."""
    asked = 0
    while block.used < limit:
        if block.is_full:
            wanted = block.grow(1)
            block.settle(wanted, wanted)
            asked += 1
        block.take()
    return asked


def test_caller_on_one_instance_gets_its_whole_limit_in_few_calls_to_the_store() -> None:
    block = SlotBlock(100)
    assert fill(block, 100) <= 9
    assert (block.held, block.grow(1)) == (100, 100)


def test_slots_come_and_go_without_the_store_once_they_are_held() -> None:
    block = SlotBlock(10)
    block.settle(block.grow(1), 1)
    for _ in range(1000):
        assert not block.is_full
        block.take()
        block.leave()
    assert block.grow(0) == block.held


def test_quiet_round_keeps_what_was_used_and_the_next_gives_all_back() -> None:
    block = SlotBlock(100)
    fill(block, 40)
    for _ in range(32):
        block.leave()
    assert block.shrink() == block.held
    assert block.shrink() == block.held == 10
    for _ in range(8):
        block.leave()
    block.shrink()
    assert block.shrink() == block.held == 0


def test_slots_of_running_calls_are_never_returned() -> None:
    block = SlotBlock(10)
    fill(block, 6)
    for _ in range(5):
        assert block.shrink() >= 6


def test_lower_limit_stops_new_calls_and_ends_none() -> None:
    block = SlotBlock(10)
    fill(block, 10)
    block.rebind(4)
    assert not block.take()
    assert (block.is_full, block.used, block.held) == (True, 10, 4)
    for _ in range(6):
        block.leave()
    assert block.is_full
    block.leave()
    assert not block.is_full


def test_without_a_limit_slots_are_only_counted() -> None:
    block = SlotBlock(None)
    for _ in range(1000):
        assert not block.is_full
        block.take()
    assert (block.used, block.grow(5), block.shrink()) == (1000, 0, 0)
    block.rebind(3)
    assert block.is_full


def test_units_are_drawn_in_steps_that_double_while_they_are_used_up() -> None:
    block = UnitBlock(100)
    steps: list[int] = []
    for _ in range(5):
        wanted = block.want(1)
        steps.append(wanted)
        block.settle(wanted, wanted)
        for _ in range(wanted):
            assert block.take()
    assert steps == [5, 10, 20, 25, 25]
    assert not block.take()


def test_units_that_lay_unused_for_a_round_go_back_at_once() -> None:
    block = UnitBlock(100)
    block.settle(5, 5)
    block.take()
    assert (block.shrink(), block.left) == (0, 4)
    assert (block.shrink(), block.left) == (4, 0)
    assert block.shrink() == 0


def test_debt_is_drawn_before_anything_else_is_used() -> None:
    block = UnitBlock(100)
    block.left = -30
    wanted = block.want(10)
    assert wanted == 40
    block.settle(wanted, wanted)
    assert block.take(10)
    assert block.left == 0


def test_late_refund_is_not_added() -> None:
    block = UnitBlock(100)
    block.settle(-4, -4)
    assert block.left == 0


class Ledger:
    """What the store knows of one slot limit: the rule of its script, for several blocks."""

    def __init__(self, limit: int, blocks: int) -> None:
        self.limit = limit
        self.blocks = [SlotBlock(limit) for _ in range(blocks)]
        self.known = [0] * blocks

    def ask(self, index: int, wanted: int, *, lose: bool) -> None:
        others = sum(self.known) - self.known[index]
        granted = max(0, min(wanted, self.limit - others))
        self.known[index] = granted
        if not lose:
            self.blocks[index].settle(wanted, granted)


@given(
    limit=st.integers(1, 12),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["enter", "leave", "round"]), st.booleans()),
        max_size=120,
    ),
)
def test_all_instances_together_never_run_more_than_the_limit(
    limit: int, steps: list[tuple[int, str, bool]]
) -> None:
    ledger = Ledger(limit, 3)
    for index, what, lose in steps:
        block = ledger.blocks[index]
        match what:
            case "enter":
                if block.is_full:
                    ledger.ask(index, block.grow(1), lose=lose)
                if not block.is_full:
                    block.take()
            case "leave":
                if block.used:
                    block.leave()
            case _:
                ledger.ask(index, block.shrink(), lose=lose)
        assert sum(one.used for one in ledger.blocks) <= limit
        assert all(
            one.held <= known for one, known in zip(ledger.blocks, ledger.known, strict=True)
        )
