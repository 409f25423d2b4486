"""No attempt of a task starts while a blocker is open, whatever its status was when the blocker was linked."""

from __future__ import annotations

import pytest

from passerelle.control.task_changes import read_task
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.decision import Decision
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import Shard
from passerelle.core.oversight_requests import PauseAgent, ResumeAgent
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.ports.due import DueRow
from passerelle.core.principal import OWNER
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask
from passerelle.core.task.status import Status
from passerelle.runtime.records.writes import AppendOptions
from tests.support.control_client import ControlClient
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def make_blocked(control: ControlClient, task_id: str) -> str:
    blocker = await control.create("first")
    await control.do("link_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    return blocker


async def refuse(control: ControlClient, method: str, task_id: str, blocker: str) -> None:
    """The command is refused and the error names the blocker."""
    words = {"reason": "now"} if method == "retry_task" else {}
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do(method, taskId=task_id, **words)
    assert refused.value.details["blocker"] == blocker


async def schedule_retry(control: ControlClient, text: str) -> str:
    """Starts a task whose first attempt has failed and whose second attempt is due in a minute."""
    control.harness.policy = RetryPolicy(attempts=3, backoff_ms=60_000, backoff_max_ms=60_000)
    failed: list[str] = []

    async def shake(turn: Turn) -> None:
        await turn.status("WORKING")
        failed.append(turn.text)
        await turn.status("FAILED" if len(failed) == 1 else "COMPLETED", "so it is")

    control.harness.peer.on("shaky", shake)
    task_id = await control.start(f"shaky {text}")
    await control.until(task_id, Status.RETRYING)
    return task_id


@pytest.mark.requirement("GR-2", "ST-9", "CMD-8")
async def test_task_paused_when_it_was_linked_is_blocked_after_its_resume(
    control: ControlClient,
) -> None:
    task_id = await control.create("second")
    await control.do("pause_task", taskId=task_id)
    blocker = await make_blocked(control, task_id)
    assert (await control.record(task_id)).status is Status.PAUSED
    await control.do("resume_task", taskId=task_id)
    record = await control.record(task_id)
    assert record.status is Status.BLOCKED
    assert blocker in str(record.status_reason)
    await refuse(control, "resume_task", task_id, blocker)
    with pytest.raises(UnsupportedOperation):
        await control.do("start_task", taskId=task_id)
    await control.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    assert (await control.record(task_id)).status is Status.ACCEPTED


@pytest.mark.requirement("GR-2", "ST-9", "CMD-8")
async def test_paused_blocked_task_resumes_to_blocked_or_accepted(control: ControlClient) -> None:
    for unlinks_first in (False, True):
        task_id = await control.create("second")
        blocker = await make_blocked(control, task_id)
        await control.do("pause_task", taskId=task_id)
        if unlinks_first:
            await control.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
            assert (await control.record(task_id)).status is Status.PAUSED
        await control.do("resume_task", taskId=task_id)
        expected = Status.ACCEPTED if unlinks_first else Status.BLOCKED
        assert (await control.record(task_id)).status is expected


@pytest.mark.requirement("GR-2")
async def test_draft_with_an_open_blocker_cannot_be_started(control: ControlClient) -> None:
    task_id = await control.create("second", draft=True)
    blocker = await make_blocked(control, task_id)
    await refuse(control, "start_task", task_id, blocker)
    assert control.harness.peer.messages == []


@pytest.mark.requirement("GR-2", "ST-9")
async def test_due_attempt_waits_for_a_blocker_and_starts_once_it_is_unlinked(
    control: ControlClient,
) -> None:
    task_id = await schedule_retry(control, "work")
    blocker = await make_blocked(control, task_id)
    assert (await control.record(task_id)).status is Status.BLOCKED
    await control.harness.run_due("retry", task_id, after_ms=61_000)
    assert len((await control.record(task_id)).attempts) == 1
    await control.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    assert (await control.record(task_id)).status is Status.RETRYING
    await control.harness.run_due("retry", task_id, after_ms=1_000)
    record = await control.until(task_id, Status.COMPLETED)
    assert len(record.attempts) == 2


@pytest.mark.requirement("CMD-8", "ST-10")
async def test_due_attempt_does_not_start_while_its_task_is_paused(control: ControlClient) -> None:
    task_id = await schedule_retry(control, "pause")
    await control.do("pause_task", taskId=task_id)
    await control.harness.run_due("retry", task_id, after_ms=61_000)
    record = await control.record(task_id)
    assert (record.status, len(record.attempts)) == (Status.PAUSED, 1)
    await control.do("resume_task", taskId=task_id)
    await control.harness.run_due("retry", task_id, after_ms=1_000)
    await control.until(task_id, Status.COMPLETED)


@pytest.mark.requirement("GR-2", "CMD-10")
async def test_failed_task_is_not_retried_before_its_blocker_completes(
    control: ControlClient,
) -> None:
    task_id = await control.start("fail at it")
    await control.until(task_id, Status.FAILED)
    blocker = await make_blocked(control, task_id)
    await refuse(control, "retry_task", task_id, blocker)
    await control.do("unlink_tasks", taskId=task_id, kind="blocked_by", target=blocker)
    await control.do("retry_task", taskId=task_id, reason="now")


@pytest.mark.requirement("GR-2", "ST-9")
async def test_due_attempt_is_held_by_a_blocker_that_an_older_version_stored(
    control: ControlClient,
) -> None:
    task_id = await schedule_retry(control, "old")
    blocker = await control.create("first")
    ref = EntityRef(EntityKind.TASK, task_id)
    edge = TaskDependencyUpdated(f"blocked_by:{blocker}", "blocked_by", blocker, "open")

    def link(decision: Decision) -> AppendOptions:
        decision.add(tasks.decide(read_task(decision, ref, None), LinkTask(edge)))
        return AppendOptions()

    session_id = (await control.record(task_id)).session_id
    await control.harness.parts.writes.decide(session_id, [ref], link)
    assert (await control.record(task_id)).status is Status.RETRYING
    await control.harness.run_due("retry", task_id, after_ms=61_000)
    record = await control.record(task_id)
    assert (record.status, len(record.attempts)) == (Status.BLOCKED, 1)
    assert blocker in str(record.status_reason)
    assert f"retry:{task_id}" not in await control.harness.due(task_id)


@pytest.mark.requirement("GR-2", "ST-9")
@pytest.mark.parametrize("way", ["completed", "unlinked"])
async def test_queued_task_that_was_blocked_starts_once_it_is_unblocked(
    control: ControlClient, way: str
) -> None:
    """Its queue turn passes while it is blocked. No other task is queued for the agent, so its queue is then empty."""
    harness = control.harness
    await harness.service.execute(OWNER, PauseAgent("echo"), None)
    task_id = await control.start("second")
    await control.until(task_id, Status.QUEUED)
    blocker = await make_blocked(control, task_id)
    assert (await control.record(task_id)).status is Status.BLOCKED
    await harness.service.execute(OWNER, ResumeAgent("echo"), None)

    async def is_queue_empty() -> bool:
        return await harness.store.queues.count(["echo"]) == [0]

    await wait_until(is_queue_empty, 10, "its turn has come")
    await harness.run_due("queued", task_id, after_ms=0)
    later_ms = await read_due_ms(control, task_id)
    assert later_ms > harness.clock.now_ms(), "while it is blocked it is looked at now and then"
    if way == "completed":
        await control.do("start_task", taskId=blocker)
        await control.until(blocker, Status.COMPLETED)
        member = f"unblock:{blocker}"
        row = DueRow(member, (await harness.due(blocker))[member])
        await harness.parts.tasks.linking.unblock(row, _keep)
    else:
        await control.do("unlink_tasks", taskId=blocker, kind="blocks", target=task_id)
    assert (await control.record(task_id)).status is Status.QUEUED
    owed_ms = await read_due_ms(control, task_id)
    assert owed_ms <= harness.clock.now_ms()
    assert owed_ms < later_ms, "it is looked at now"
    await harness.run_due("queued", task_id, after_ms=0)
    await control.until(task_id, Status.COMPLETED)


async def read_due_ms(control: ControlClient, task_id: str) -> float:
    """Returns the due time of the queued task, in milliseconds."""
    return float((await control.harness.due(task_id))[f"queued:{task_id}"])


async def _keep(_shard: Shard, _row: DueRow) -> bool:
    return False
