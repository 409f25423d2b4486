"""A reader of a task while its store is unavailable."""

import pytest

from passerelle.channels.position import PositionItem, ReplayEnd
from passerelle.channels.task_follower import take_step
from passerelle.core.errors import StoreUnavailable
from passerelle.protocol.cursor import Cursor

pytestmark = pytest.mark.anyio
LIVE = ReplayEnd(Cursor("e", 1, "c"), 0)


class Steps:
    """Fails some times, then gives one item and ends."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.items: list[PositionItem] = [LIVE]

    def __aiter__(self) -> "Steps":
        return self

    async def __anext__(self) -> PositionItem:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away", "no")
        if not self.items:
            raise StopAsyncIteration
        return self.items.pop()


async def test_step_that_fails_is_taken_again() -> None:
    steps = Steps(failures=2)
    assert await take_step(steps) is LIVE
    assert await take_step(steps) is None


async def test_store_that_stays_away_is_an_error_in_the_end() -> None:
    steps = Steps(failures=100)
    with pytest.raises(StoreUnavailable):
        await take_step(steps, patience_s=0.3)
    assert 90 < steps.failures < 99
