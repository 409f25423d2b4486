"""No attempt of a task starts while a blocker is open, whatever its status was when the blocker was linked."""

from __future__ import annotations

import pytest

from passerelle.control.task_changes import read_task
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.decision import Decision
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import Shard
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.ports.due import DueRow
from passerelle.core.principal import OWNER
from passerelle.core.session.agent_requests import PauseAgent, ResumeAgent
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask
from passerelle.core.task.status import Status
from passerelle.runtime.records.writes import AppendOptions
from tests.support.desk import Desk
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def make_blocked(desk: Desk, task_id: str) -> str:
    blocker = await desk.create("first")
    await desk.do("link_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    return blocker


async def refuse(desk: Desk, method: str, task_id: str, blocker: str) -> None:
    """The command is refused and the error names the blocker."""
    words = {"reason": "now"} if method == "retry_task" else {}
    with pytest.raises(UnsupportedOperation) as refused:
        await desk.do(method, taskId=task_id, **words)
    assert refused.value.details["blocker"] == blocker


async def schedule_retry(desk: Desk, text: str) -> str:
    """Starts a task whose first attempt has failed and whose second attempt is due in a minute."""
    desk.house.policy = RetryPolicy(attempts=3, backoff_ms=60_000, backoff_max_ms=60_000)
    failed: list[str] = []

    async def shake(turn: Turn) -> None:
        await turn.status("WORKING")
        failed.append(turn.text)
        await turn.status("FAILED" if len(failed) == 1 else "COMPLETED", "so it is")

    desk.house.peer.on("shaky", shake)
    task_id = await desk.start(f"shaky {text}")
    await desk.until(task_id, Status.RETRYING)
    return task_id


@pytest.mark.requirement("GR-2", "ST-9", "CMD-8")
async def test_task_paused_when_it_was_linked_is_blocked_after_its_resume(
    desk: Desk,
) -> None:
    task_id = await desk.create("second")
    await desk.do("pause_task", taskId=task_id)
    blocker = await make_blocked(desk, task_id)
    assert (await desk.record(task_id)).status is Status.PAUSED
    await desk.do("resume_task", taskId=task_id)
    record = await desk.record(task_id)
    assert record.status is Status.BLOCKED
    assert blocker in str(record.status_reason)
    await refuse(desk, "resume_task", task_id, blocker)
    with pytest.raises(UnsupportedOperation):
        await desk.do("start_task", taskId=task_id)
    await desk.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    assert (await desk.record(task_id)).status is Status.ACCEPTED


@pytest.mark.requirement("GR-2", "ST-9", "CMD-8")
async def test_paused_blocked_task_resumes_to_blocked_or_accepted(desk: Desk) -> None:
    for unlinks_first in (False, True):
        task_id = await desk.create("second")
        blocker = await make_blocked(desk, task_id)
        await desk.do("pause_task", taskId=task_id)
        if unlinks_first:
            await desk.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
            assert (await desk.record(task_id)).status is Status.PAUSED
        await desk.do("resume_task", taskId=task_id)
        expected = Status.ACCEPTED if unlinks_first else Status.BLOCKED
        assert (await desk.record(task_id)).status is expected


@pytest.mark.requirement("GR-2")
async def test_draft_with_an_open_blocker_cannot_be_started(desk: Desk) -> None:
    task_id = await desk.create("second", draft=True)
    blocker = await make_blocked(desk, task_id)
    await refuse(desk, "start_task", task_id, blocker)
    assert desk.house.peer.messages == []


@pytest.mark.requirement("GR-2", "ST-9")
async def test_due_attempt_waits_for_a_blocker_and_starts_once_it_is_unlinked(desk: Desk) -> None:
    task_id = await schedule_retry(desk, "work")
    blocker = await make_blocked(desk, task_id)
    assert (await desk.record(task_id)).status is Status.BLOCKED
    await desk.house.come_due("retry", task_id, after_ms=61_000)
    assert len((await desk.record(task_id)).attempts) == 1
    await desk.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    assert (await desk.record(task_id)).status is Status.RETRYING
    await desk.house.come_due("retry", task_id, after_ms=1_000)
    record = await desk.until(task_id, Status.COMPLETED)
    assert len(record.attempts) == 2


@pytest.mark.requirement("CMD-8", "ST-10")
async def test_due_attempt_does_not_start_while_its_task_is_paused(desk: Desk) -> None:
    task_id = await schedule_retry(desk, "pause")
    await desk.do("pause_task", taskId=task_id)
    await desk.house.come_due("retry", task_id, after_ms=61_000)
    record = await desk.record(task_id)
    assert (record.status, len(record.attempts)) == (Status.PAUSED, 1)
    await desk.do("resume_task", taskId=task_id)
    await desk.house.come_due("retry", task_id, after_ms=1_000)
    await desk.until(task_id, Status.COMPLETED)


@pytest.mark.requirement("GR-2", "CMD-10")
async def test_failed_task_is_not_retried_before_its_blocker_completes(desk: Desk) -> None:
    task_id = await desk.start("fail at it")
    await desk.until(task_id, Status.FAILED)
    blocker = await make_blocked(desk, task_id)
    await refuse(desk, "retry_task", task_id, blocker)
    await desk.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    await desk.do("retry_task", taskId=task_id, reason="now")


@pytest.mark.requirement("GR-2", "ST-9")
async def test_due_attempt_is_held_by_a_blocker_that_an_older_version_stored(
    desk: Desk,
) -> None:
    task_id = await schedule_retry(desk, "old")
    blocker = await desk.create("first")
    ref = EntityRef(EntityKind.TASK, task_id)
    edge = TaskDependencyUpdated(f"blocked_by:{blocker}", "blocked_by", blocker, "open")

    def link(decision: Decision) -> AppendOptions:
        decision.add(tasks.decide(read_task(decision, ref, None), LinkTask(edge)))
        return AppendOptions()

    session_id = (await desk.record(task_id)).session_id
    await desk.house.parts.writes.decide(session_id, [ref], link)
    assert (await desk.record(task_id)).status is Status.RETRYING
    await desk.house.come_due("retry", task_id, after_ms=61_000)
    record = await desk.record(task_id)
    assert (record.status, len(record.attempts)) == (Status.BLOCKED, 1)
    assert blocker in str(record.status_reason)
    assert f"retry:{task_id}" not in await desk.house.due(task_id)


@pytest.mark.requirement("GR-2", "ST-9")
@pytest.mark.parametrize("way", ["completed", "unlinked"])
async def test_queued_task_that_was_blocked_starts_once_it_is_unblocked(
    desk: Desk, way: str
) -> None:
    """Its queue turn passes while it is blocked. No other task is queued for the agent, so its queue is then empty."""
    house = desk.house
    await house.service.execute(OWNER, PauseAgent("echo"), None)
    task_id = await desk.start("second")
    await desk.until(task_id, Status.QUEUED)
    blocker = await make_blocked(desk, task_id)
    assert (await desk.record(task_id)).status is Status.BLOCKED
    await house.service.execute(OWNER, ResumeAgent("echo"), None)

    async def is_queue_empty() -> bool:
        return await house.store.queues.count(["echo"]) == [0]

    await wait_until(is_queue_empty, 10, "its turn has come")
    await house.come_due("queued", task_id, after_ms=0)
    later_ms = await read_due_ms(desk, task_id)
    assert later_ms > house.clock.now_ms(), "while it is blocked it is looked at now and then"
    if way == "completed":
        await desk.do("start_task", taskId=blocker)
        await desk.until(blocker, Status.COMPLETED)
        member = f"unblock:{blocker}"
        row = DueRow(member, (await house.due(blocker))[member])
        await house.parts.tasks.linking.unblock(row, _keep)
    else:
        await desk.do("unlink_tasks", taskId=blocker, kind="blocks", target=task_id)
    assert (await desk.record(task_id)).status is Status.QUEUED
    owed_ms = await read_due_ms(desk, task_id)
    assert owed_ms <= house.clock.now_ms()
    assert owed_ms < later_ms, "it is looked at now"
    await house.come_due("queued", task_id, after_ms=0)
    await desk.until(task_id, Status.COMPLETED)


async def read_due_ms(desk: Desk, task_id: str) -> float:
    """Returns the due time of the queued task, in milliseconds."""
    return float((await desk.house.due(task_id))[f"queued:{task_id}"])


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False
