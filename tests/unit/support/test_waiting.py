"""A wait returns what it waited for, or reports what it saw instead."""

import pytest

from tests.support.waiting import block_until, wait_until


@pytest.mark.anyio
async def test_wait_returns_the_first_true_value() -> None:
    answers = iter([0, 0, 7])
    assert await wait_until(lambda: next(answers), 5, "the third answer") == 7


@pytest.mark.anyio
async def test_wait_asks_a_coroutine_function() -> None:
    answers = iter([False, True])

    async def ask() -> bool:
        return next(answers)

    assert await wait_until(ask, 5, "the second answer")


@pytest.mark.anyio
async def test_wait_that_is_over_names_what_was_seen_last() -> None:
    with pytest.raises(AssertionError, match=r"a door to open: .* last seen ''"):
        await wait_until(lambda: "", 0.01, "a door to open")


def test_blocking_wait_is_bounded_too() -> None:
    answers = iter([None, "open"])
    assert block_until(lambda: next(answers), 5, "a door to open") == "open"
    with pytest.raises(AssertionError, match="last seen None"):
        block_until(lambda: None, 0.01, "a door to open")
