"""Every status of a task and every task event: reached through the whole system, but for what is only read."""

from __future__ import annotations

from typing import Final, get_args

import pytest

from passerelle.core.event_type import EventType
from passerelle.core.payloads.task import TaskPayload
from passerelle.core.task.status import Status
from tests.integration.control.stories import BESIDES, STORIES, Story
from tests.support.control_client import ControlClient
from tests.support.waiting import wait_until

READ: Final = {Status.ARCHIVED, EventType.TASK_ARCHIVED}
"""What readers make of the place where a task stands: no story leads there (``tests/integration/archive``)."""
EVENTS: Final = frozenset(payload.type for payload in get_args(TaskPayload))
OF_A_RUN: Final = frozenset(event for event in EVENTS if event.startswith("task.attempt."))
ROWS: Final = {
    Status.DRAFT: pytest.mark.requirement("ST-1"),
    Status.ACCEPTED: pytest.mark.requirement("ST-2"),
    Status.QUEUED: pytest.mark.requirement("ST-3"),
    Status.PREPARING: pytest.mark.requirement("ST-4"),
    Status.RUNNING: pytest.mark.requirement("ST-5"),
    Status.WAITING_INPUT: pytest.mark.requirement("ST-6"),
    Status.WAITING_PERMISSION: pytest.mark.requirement("ST-7"),
    Status.WAITING_RESOURCE: pytest.mark.requirement("ST-8"),
    Status.BLOCKED: pytest.mark.requirement("ST-9"),
    Status.PAUSED: pytest.mark.requirement("ST-10"),
    Status.RETRYING: pytest.mark.requirement("ST-11"),
    Status.CANCELLING: pytest.mark.requirement("ST-12"),
    Status.CANCELLED: pytest.mark.requirement("ST-13"),
    Status.TIMED_OUT: pytest.mark.requirement("ST-14"),
    Status.FAILED: pytest.mark.requirement("ST-15"),
    Status.LOST: pytest.mark.requirement("ST-16"),
    Status.COMPLETED: pytest.mark.requirement("ST-17"),
    Status.STALE: pytest.mark.requirement("ST-19"),
    Status.UNKNOWN: pytest.mark.requirement("ST-20"),
}
CASES: Final = [
    *(
        pytest.param(status, told, id=status, marks=ROWS[status])
        for status, told in STORIES.items()
    ),
    *(pytest.param(status, told, id=name) for name, (status, told) in BESIDES.items()),
]


def test_no_status_and_no_task_event_is_without_a_story() -> None:
    stories = [*STORIES.values(), *(story for _, story in BESIDES.values())]
    reached = {*STORIES, *(event for story in stories for event in story.tells)}
    assert reached | READ == {*Status, *EVENTS}
    assert not reached & READ


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "story"), CASES)
async def test_status_is_reached_and_its_events_name_their_task_and_run(
    control: ControlClient, status: Status, story: Story
) -> None:
    task_id = await story.run(control)

    async def read() -> bool:
        return (await control.do("get_task_summary", taskId=task_id))["status"] == status

    await wait_until(read, 15, f"readers see that the task is {status}")
    events = [event for event in await control.events(task_id) if event.type in EVENTS]
    assert story.tells <= {event.type for event in events}
    runs = {attempt.run_id for attempt in (await control.record(task_id)).attempts}
    assert {event.fact.scope.run_id for event in events if event.type in OF_A_RUN} == runs
