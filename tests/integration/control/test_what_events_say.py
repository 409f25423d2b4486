"""What the events of a task say: each payload is read, and held against the record and against what the agent saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import orjson
import pytest

from passerelle.core.commands import GetThread
from passerelle.core.event_type import EventType
from passerelle.core.payloads.task import (
    TaskAccepted,
    TaskAttemptFailed,
    TaskAttemptStarted,
    TaskBlocked,
    TaskCancelRequested,
    TaskCompleted,
    TaskDelegated,
    TaskDependencyUpdated,
    TaskFailed,
    TaskLost,
    TaskProgress,
    TaskStarted,
    TaskTimedOut,
    TaskWaiting,
)
from passerelle.core.task.status import Status
from passerelle.core.wire.times import parse_ms
from tests.integration.control.stories import STORIES
from tests.support.harness import ADA
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.batch import Batch
    from passerelle.core.payloads import Payload
    from tests.support.control_client import ControlClient

pytestmark = pytest.mark.anyio
P = TypeVar("P", bound="Payload")
MINUTE_MS = 60_000


async def reach(control: ControlClient, status: Status) -> str:
    """The task of the story of a status, once readers see that status."""
    task_id = await STORIES[status].run(control)

    async def read() -> bool:
        return (await control.do("get_task_summary", taskId=task_id))["status"] == status

    await wait_until(read, 15, f"readers see that the task is {status}")
    return task_id


async def read_all(control: ControlClient, task_id: str, kind: type[P]) -> list[P]:
    """The payloads of one class, in order."""
    payloads = [event.fact.payload for event in await control.events(task_id)]
    return [payload for payload in payloads if isinstance(payload, kind)]


async def read_one(control: ControlClient, task_id: str, kind: type[P]) -> P:
    [found] = await read_all(control, task_id, kind)
    return found


@pytest.mark.requirement("TEV-4", "ST-5", "CF-4")
async def test_first_run_is_told_once_however_many_runs_follow(control: ControlClient) -> None:
    task_id = await control.start("fail at it")
    await control.until(task_id, Status.FAILED)
    await control.do("retry_task", "again", taskId=task_id, reason="it may work now")
    await control.harness.run_due("retry", task_id, after_ms=0)

    async def has_failed_again() -> bool:
        record = await control.record(task_id)
        return record.status is Status.FAILED and len(record.attempts) == 2

    await wait_until(has_failed_again, 15, "the second run has ended")
    types = await control.types(task_id)
    assert types.count(EventType.TASK_ATTEMPT_STARTED) == 2
    assert len(await read_all(control, task_id, TaskStarted)) == 1
    assert types.index(EventType.TASK_STARTED) < types.index(EventType.TASK_ATTEMPT_FAILED)


@pytest.mark.requirement("TEV-8", "ST-9", "CF-8")
async def test_blocked_task_names_its_blocker_and_the_kind_of_it(control: ControlClient) -> None:
    blocker, blocked = await control.create("first"), await control.create("second")
    await control.do(
        "link_tasks", taskId=blocked, kind="blocked_by", target=blocker, reason="order"
    )
    said = await read_one(control, blocked, TaskBlocked)
    assert (said.blocker, said.blocker_kind) == (blocker, "dependency")
    assert blocker in said.reason or "order" in said.reason


@pytest.mark.requirement("TEV-11", "CMD-9", "ST-12")
async def test_wish_to_cancel_is_stored_with_its_actor_before_the_agent_hears_of_it(
    control: ControlClient,
) -> None:
    control.harness.peer.on_cancel = "ignored"
    task_id = await control.start("silent")
    await wait_until(lambda: control.harness.peer.tasks, 10, "the agent has the task")
    await control.until(task_id, Status.QUEUED)
    log, seen = control.harness.log, list[tuple[bool, int]]()

    async def look(batch: Batch) -> None:
        wishes = any(event.type == EventType.TASK_CANCEL_REQUESTED for event in batch.events)
        seen.append((wishes, control.harness.peer.count("CancelTask")))

    log.after_append = look
    await control.do("cancel_task", taskId=task_id, reason="not needed", propagation="subtree")
    await wait_until(lambda: control.harness.peer.count("CancelTask"), 10, "the agent is told")
    said = await read_one(control, task_id, TaskCancelRequested)
    assert (said.actor, said.source, said.propagation, said.reason) == (
        ADA.id,
        "user",
        "subtree",
        "not needed",
    )
    assert (True, 0) in seen, "the wish is stored while the agent knows nothing of it"


@pytest.mark.requirement("TEV-13", "ST-14")
async def test_time_limit_says_which_one_it_was_and_how_long(control: ControlClient) -> None:
    task_id = await reach(control, Status.TIMED_OUT)
    said = await read_one(control, task_id, TaskTimedOut)
    assert (said.limit, said.limit_ms) == ("total", MINUTE_MS)


@pytest.mark.requirement("TEV-14", "ST-15", "CF-14")
async def test_failed_task_has_one_error_in_event_record_and_thread(control: ControlClient) -> None:
    task_id = await reach(control, Status.FAILED)
    record = await control.record(task_id)
    said = await read_one(control, task_id, TaskFailed)
    assert said.error.message
    assert (said.error, said.rejected) == (record.last_error, False)
    assert (await read_thread(control, task_id))["lastOutcome"] == "failed"


@pytest.mark.requirement("TEV-15", "ST-16", "CF-11")
async def test_lost_task_names_the_last_proof_of_life(control: ControlClient) -> None:
    task_id = await reach(control, Status.LOST)
    record = await control.record(task_id)
    said = await read_one(control, task_id, TaskLost)
    assert record.started_at is not None
    assert parse_ms(record.started_at) <= parse_ms(said.last_proof) <= parse_ms(record.status_at)
    assert said.reason
    assert (await read_thread(control, task_id))["activity"] == "lost"


@pytest.mark.requirement("TEV-16", "ST-17", "CF-13")
async def test_completed_task_names_every_fact_that_was_reconciled(control: ControlClient) -> None:
    task_id = await control.start("echo the sales")
    record = await control.until(task_id, Status.COMPLETED)
    said = await read_one(control, task_id, TaskCompleted)
    assert said.native_status == "TASK_STATE_COMPLETED"
    assert said.artifacts == tuple(one.artifact_id for one in record.artifacts)
    assert len(said.artifacts) == said.artifact_count == 1
    assert said.evidence == record.evidence_refs
    assert said.delivery
    assert (await read_thread(control, task_id))["lastOutcome"] == "completed"


@pytest.mark.requirement("TEV-6", "CF-4")
async def test_progress_of_a_run_says_the_phase_and_the_agents_own_word(
    control: ControlClient,
) -> None:
    task_id = await reach(control, Status.RUNNING)

    async def find() -> TaskProgress | None:
        said = await read_all(control, task_id, TaskProgress)
        return next((one for one in said if one.native_status == "TASK_STATE_WORKING"), None)

    told = await wait_until(find, 10, "the agent's own word is stored")
    assert told is not None
    assert (told.status, told.phase) == (Status.RUNNING, "working")
    assert (await read_thread(control, task_id))["activity"] == "running"


@pytest.mark.requirement("CF-1", "ST-2", "TEV-2")
async def test_accepted_task_is_stored_before_anybody_is_called(control: ControlClient) -> None:
    task_id = await control.create()
    assert await read_one(control, task_id, TaskAccepted) == TaskAccepted()
    assert (await control.record(task_id)).status is Status.ACCEPTED
    assert (control.harness.peer.requests, control.harness.peer.card_reads) == ([], [])


@pytest.mark.requirement("TEV-7", "ST-6", "ST-7", "ST-8", "CF-5", "CF-6", "CF-7")
@pytest.mark.parametrize(
    ("status", "waits_for"),
    [
        (Status.WAITING_INPUT, "input"),
        (Status.WAITING_PERMISSION, "permission"),
        (Status.WAITING_RESOURCE, "resource"),
    ],
)
async def test_waiting_task_says_what_for_and_names_its_open_questions(
    control: ControlClient, status: Status, waits_for: str
) -> None:
    task_id = await reach(control, status)
    said = (await read_all(control, task_id, TaskWaiting))[-1]
    record = await control.record(task_id)
    assert (said.waiting_for, said.status) == (waits_for, status)
    assert said.action_ids == record.open_actions
    assert bool(said.action_ids) == (status is not Status.WAITING_RESOURCE)
    assert said.reason == record.status_reason
    assert said.reason
    assert (await read_thread(control, task_id))["activity"] == status


@pytest.mark.requirement("TEV-18", "TEV-19", "EXT-6", "EVC-4")
async def test_child_and_dependency_are_told_with_both_ends(control: ControlClient) -> None:
    parent = await control.create("the whole")
    child = await control.create("a part", parentTaskId=parent)
    delegated = await read_one(control, parent, TaskDelegated)
    assert (delegated.target_kind, delegated.target) == ("child_task", child)
    await control.do(
        "link_tasks", taskId=child, kind="blocked_by", target=await control.create("first")
    )
    edges = (await control.record(child)).relationships
    told = (await read_all(control, child, TaskDependencyUpdated))[-1]
    assert told.target in {edge.target for edge in edges}


@pytest.mark.requirement("TEV-20", "TEV-21", "EXT-6", "EVC-4")
async def test_task_events_carry_their_task_and_attempts_their_run(control: ControlClient) -> None:
    task_id = await reach(control, Status.FAILED)
    record = await control.record(task_id)
    entries = await control.harness.entries(record.session_id)
    told = [orjson.loads(entry.data) for entry in entries]
    of_task = [one for one in told if str(one["type"]).startswith("task.")]
    assert {one["taskId"] for one in of_task} == {task_id}
    runs = [one for one in of_task if str(one["type"]).startswith("task.attempt.")]
    assert {one["runId"] for one in runs} == {record.attempts[0].run_id}
    started = await read_one(control, task_id, TaskAttemptStarted)
    failed = await read_one(control, task_id, TaskAttemptFailed)
    assert started.worker.peer == record.attempts[0].worker.peer == "echo"
    assert (failed.status, failed.error) == (Status.FAILED, record.last_error)


async def read_thread(control: ControlClient, task_id: str) -> dict[str, object]:
    """The thread of a task as readers see it."""
    record = await control.record(task_id)
    assert record.thread_id is not None
    found = await control.harness.service.read(ADA, GetThread(record.thread_id))
    return {**found}
