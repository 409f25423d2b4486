"""A message that refers to a task whose second attempt worked: the new task leads to that attempt (GR-4)."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.facts import RetryPolicy
from passerelle.core.task.status import Status
from tests.support.desk import Desk
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("GR-4")
async def test_refinement_leads_to_the_attempt_that_produced_what_it_refines(desk: Desk) -> None:
    house = desk.house
    house.policy = RetryPolicy(attempts=2, backoff_ms=1_000, backoff_max_ms=1_000)

    async def fail(turn: Turn) -> None:
        await turn.artifact("half of it", artifact_id="draft")
        await turn.status("FAILED", "no luck")

    async def succeed(turn: Turn) -> None:
        await turn.artifact("all of it", artifact_id="draft")
        await turn.status("COMPLETED")

    house.peer.next(fail, succeed)
    first = await house.send("go", wait="stream")
    await house.until(first, Status.RETRYING)
    await house.come_due("retry", first.task_id, after_ms=60_000)
    record = await house.until(first, Status.COMPLETED)
    one, two = (attempt.run_id for attempt in record.attempts)
    message = house.message("shorter, please")
    message["referenceTaskIds"] = [first.facade]
    second = await house.send("", context_id=first.context_id, message=message)
    await house.until(second, Status.COMPLETED)
    graph: Any = await desk.do("get_task_graph", taskId=second.task_id)
    edges = {(edge["edge"]["kind"], edge["edge"]["target"]) for edge in graph["edges"]}
    assert ("source_task", first.task_id) in edges
    assert ("source_attempt", two) in edges
    assert ("source_attempt", one) not in edges
