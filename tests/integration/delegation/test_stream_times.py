"""Event times of a stream never go back, even if the clock does; deadlines follow the current clock."""

from __future__ import annotations

import pytest

from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from tests.support.house import House

pytestmark = pytest.mark.anyio

_SET_BACK_MS = 600_000


@pytest.mark.parametrize("text", ["hello", "chunks 3", "ask Which colour?"])
async def test_event_times_do_not_decrease_when_the_clock_is_set_back(
    house: House, text: str
) -> None:
    house.clock.ahead_ms = _SET_BACK_MS
    first, _ = await house.talk("hello")
    before_ms = house.clock.now_ms()
    house.clock.ahead_ms = 0
    second = await house.send(text, context_id=first.context_id)
    await house.hear(second)
    times = [parse_ms(event.timestamp) for event in await house.events(second)]
    assert times == sorted(times)
    assert times[-1] <= before_ms, "not ahead of the earlier clock"
    held = await house.send("silent", context_id=first.context_id, wait="stream")
    due = await house.due(held.task_id)
    (at_ms,) = [int(score) for row, score in due.items() if row == f"timeout:{held.task_id}"]
    assert at_ms < before_ms + house.policy.total_timeout_ms, "its limit follows the current clock"
    assert (await house.record(held)).status is not Status.FAILED
