"""A task that is queued for its agent or its context cannot be started by command."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.oversight_requests import PauseAgent, ResumeAgent
from passerelle.core.principal import OWNER
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import CreateTask, StartTask, TaskChanged
from passerelle.core.task.status import Status
from passerelle.delegation.runs.agent_queues import AgentQueues
from tests.integration.delegation.test_turn_queue import begin, follow, list_queue
from tests.support.harness import ADA, Harness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def read(harness: Harness, task_id: str) -> TaskRecord:
    record = await harness.parts.dispatch.read_task(task_id)
    assert record is not None
    return record


async def queue_for_agent(harness: Harness) -> str:
    """A task that was started while its agent is paused; returns its id."""
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    created = await harness.service.execute(ADA, CreateTask("echo", "dig a hole"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])
    await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    return task_id


async def finish(harness: Harness, task_id: str) -> None:
    await harness.service.execute(OWNER, ResumeAgent("echo"), None)

    async def is_done() -> bool:
        return (await read(harness, task_id)).status is Status.COMPLETED

    await wait_until(is_done, 10, "it is done")
    assert harness.peer.texts == ["dig a hole"]


async def test_task_queued_for_its_agent_is_not_started_again(harness: Harness) -> None:
    task_id = await queue_for_agent(harness)
    before = await read(harness, task_id)
    with pytest.raises(UnsupportedOperation, match="queued"):
        await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    assert await read(harness, task_id) == before
    await finish(harness, task_id)
    types = [one.type for one in await harness.entries(before.session_id)]
    assert types.count("turn.submitted") == 1


async def test_task_queued_for_its_agent_is_not_started_without_a_cached_card(
    harness: Harness,
) -> None:
    task_id = await queue_for_agent(harness)
    config = harness.registry.find("echo").config
    harness.registry.replace([])
    harness.registry.replace([config])
    assert harness.registry.peek("echo") is None
    with pytest.raises(UnsupportedOperation, match="queued"):
        await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    assert (await read(harness, task_id)).status is Status.QUEUED
    await finish(harness, task_id)


async def test_turn_queued_for_its_context_is_not_started(harness: Harness) -> None:
    first = await begin(harness)
    turn = await follow(harness, first, "later")
    with pytest.raises(UnsupportedOperation, match="queued"):
        await harness.service.execute(ADA, StartTask(turn.task_id, "http"), None)
    assert await list_queue(harness, first) == [turn.turn_id]
    harness.peer.release_all()
    await harness.until(turn, Status.COMPLETED)
    assert harness.peer.texts == ["first", "later"]


async def test_of_two_concurrent_starts_one_queues_the_task(harness: Harness) -> None:
    """The losing start has read the task before the other wrote it, and decides again."""
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    created = await harness.service.execute(ADA, CreateTask("echo", "dig a hole"), None)
    task_id = str(cast("TaskChanged", created).task["taskId"])

    async def start_first(_batch: object) -> None:
        harness.log.before_append = None
        await harness.service.execute(ADA, StartTask(task_id, "http"), None)

    harness.log.before_append = start_first
    with pytest.raises(UnsupportedOperation, match="queued"):
        await harness.service.execute(ADA, StartTask(task_id, "http"), None)
    await finish(harness, task_id)


@pytest.mark.requirement("ST-3", "MK-6")
async def test_start_that_is_repeated_under_its_key_is_in_the_queue(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instance may die between the append and the queue; its due row comes only seconds later."""
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    made = cast("TaskChanged", await harness.service.execute(ADA, CreateTask("echo", "go"), None))
    task_id = str(made.task["taskId"])

    async def die(_queues: AgentQueues, _record: TaskRecord) -> None:
        """Adds nothing, as an instance that was killed."""

    with monkeypatch.context() as killed:
        killed.setattr(AgentQueues, "enter", die)
        await harness.service.execute(ADA, StartTask(task_id, "http"), "key")
    assert await harness.parts.queues.store.list_waiting("echo") == []
    for _ in range(2):
        again = await harness.service.execute(ADA, StartTask(task_id, "http"), "key")
        assert cast("TaskChanged", again).repeated
        assert await harness.parts.queues.store.list_waiting("echo") == [task_id]
