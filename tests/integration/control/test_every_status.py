"""Every status of a task and every task event: reached through the whole system, or named with the row that waits.

What is missing stands in ``LATER`` with the row of the ledger that says why. A row that is closed has nothing to wait
for, so its status or event then needs a story.
"""

from __future__ import annotations

from typing import Final, get_args

import pytest

from passerelle.core.event_type import EventType
from passerelle.core.payloads.task import TaskPayload
from passerelle.core.task.status import Status
from tests.integration.control.stories import BESIDES, STORIES, Story
from tests.support.desk import Desk
from tests.support.ledger import LEDGER, load
from tests.support.waiting import wait_until

LATER: Final[dict[Status | EventType, str]] = {
    Status.ARCHIVED: "ST-18",
    EventType.TASK_ARCHIVED: "TEV-17",
}
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


def test_no_status_and_no_task_event_is_without_a_story_or_the_row_that_it_waits_for() -> None:
    stories = [*STORIES.values(), *(story for _, story in BESIDES.values())]
    reached = {*STORIES, *(event for story in stories for event in story.tells)}
    assert reached | LATER.keys() == {*Status, *EVENTS}
    assert not reached & LATER.keys(), "what is reached waits for nothing"
    waiting = {row.id for row in load(LEDGER) if row.missing}
    assert waiting >= set(LATER.values())


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "story"), CASES)
async def test_status_is_reached_and_its_events_name_their_task_and_run(
    desk: Desk, status: Status, story: Story
) -> None:
    task_id = await story.run(desk)

    async def read() -> bool:
        return (await desk.do("get_task_summary", taskId=task_id))["status"] == status

    await wait_until(read, 15, f"readers see that the task is {status}")
    events = [event for event in await desk.events(task_id) if event.type in EVENTS]
    assert story.tells <= {event.type for event in events}
    runs = {attempt.run_id for attempt in (await desk.record(task_id)).attempts}
    assert {event.fact.scope.run_id for event in events if event.type in OF_A_RUN} == runs
