"""Which shapes are learned, and that no mix of them is learned all the time."""

from itertools import cycle, islice

import pytest

from passerelle.runtime.records.shape_memory import USES, ShapeMemory


def use(memory: ShapeMemory[str], shape: str) -> bool:
    """Whether a use of a shape learned it."""
    try:
        assert memory.recall(shape) == shape
    except KeyError:
        if not memory.is_worth(shape):
            return False
        memory.keep(shape, shape)
        return True
    return False


def test_few_shapes_are_learnt_when_they_come_first() -> None:
    memory: ShapeMemory[str] = ShapeMemory(most=8, few=2)
    assert [use(memory, shape) for shape in "abcabc"] == [True, True, False, False, False, False]


def test_many_shapes_are_learnt_when_they_have_come_often() -> None:
    memory: ShapeMemory[str] = ShapeMemory(most=8, few=0)
    assert [use(memory, "a") for _ in range(USES + 1)] == [*[False] * (USES - 1), True, False]


@pytest.mark.parametrize("callers", [9, 20, 200])
def test_more_shapes_than_are_remembered_are_learnt_once_in_many_uses(callers: int) -> None:
    memory: ShapeMemory[str] = ShapeMemory(most=8, few=2)
    uses = 100 * callers
    learnt = sum(use(memory, f"{one}") for one in islice(cycle(range(callers)), uses))
    assert learnt <= uses / USES + 2


def test_a_frequent_shape_is_kept_whatever_else_is_used() -> None:
    memory: ShapeMemory[str] = ShapeMemory(most=8, few=2)
    use(memory, "always")
    learnt = 0
    for passing in range(50 * USES):
        learnt += use(memory, "always")
        use(memory, f"{passing // USES}")
    assert learnt == 0
