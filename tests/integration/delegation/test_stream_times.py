"""Event times of a stream never go back, even if the clock does; deadlines follow the current clock."""

from __future__ import annotations

import pytest

from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from tests.support.harness import Harness

pytestmark = pytest.mark.anyio

_SET_BACK_MS = 600_000


@pytest.mark.parametrize("text", ["hello", "chunks 3", "ask Which colour?"])
async def test_event_times_do_not_decrease_when_the_clock_is_set_back(
    harness: Harness, text: str
) -> None:
    harness.clock.ahead_ms = _SET_BACK_MS
    first, _ = await harness.talk("hello")
    before_ms = harness.clock.now_ms()
    harness.clock.ahead_ms = 0
    second = await harness.send(text, context_id=first.context_id)
    await harness.await_answer(second)
    times = [parse_ms(event.timestamp) for event in await harness.events(second)]
    assert times == sorted(times)
    assert times[-1] <= before_ms, "not ahead of the earlier clock"
    held = await harness.send("silent", context_id=first.context_id, wait="stream")
    due = await harness.due(held.task_id)
    (at_ms,) = [int(score) for row, score in due.items() if row == f"timeout:{held.task_id}"]
    assert at_ms < before_ms + harness.policy.total_timeout_ms, (
        "its limit follows the current clock"
    )
    assert (await harness.record(held)).status is not Status.FAILED
