"""One task through everything that can happen to it: its id stays, nothing of it is overwritten, its story is whole."""

from __future__ import annotations

import pytest

from passerelle.core import machine
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import TurnAccepted
from passerelle.core.events import decode_event
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import shard_of
from passerelle.core.task.status import ENDED, Status
from tests.support.control_client import ControlClient
from tests.support.harness import Harness, task_of
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

_PAUSE_MS = 60_000


async def fail(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("FAILED", f"no luck with {turn.message['messageId']}")


async def ask(turn: Turn) -> None:
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", "Which one?")


async def replay(harness: Harness, accepted: TurnAccepted) -> dict[EntityRef, machine.Record]:
    entries = await harness.entries(accepted.session_id)
    return machine.replay([decode_event(one.data, one.frame, one.facade) for one in entries])


@pytest.mark.requirement("OBJ-1", "TR-1", "OBJ-2")
async def test_task_keeps_its_id_through_turns_attempts_pauses_restarts_and_the_archive(
    control: ControlClient,
) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=2, backoff_ms=1_000, backoff_max_ms=1_000)
    harness.peer.next(fail, ask)
    accepted = await harness.send("go", wait="stream")
    seen = [accepted.task_id]
    await harness.until(accepted, Status.RETRYING)
    await harness.restart()
    await harness.run_due("retry", accepted.task_id, after_ms=_PAUSE_MS)
    await harness.until(accepted, Status.WAITING_INPUT)
    await harness.restart()
    await harness.adopt(accepted)
    await control.do("pause_task", taskId=accepted.task_id)
    await control.do("resume_task", taskId=accepted.task_id)
    await harness.until(accepted, Status.WAITING_INPUT)
    further = await harness.send("this one", task=accepted.facade)
    seen.append(further.task_id)
    record = await harness.until(accepted, Status.COMPLETED)
    seen += [record.task_id, record.root_task_id]

    async def leaves() -> bool:
        """What follows from the end may still be on its way."""
        shard = shard_of(record.session_id)
        left = await harness.store.archiver.archive(shard, [record.session_id])
        return left.sessions == [record.session_id]

    await wait_until(leaves, 10, "its session leaves for the archive")
    archived = await harness.record(accepted)
    assert archived.status is Status.COMPLETED
    seen.append(archived.task_id)
    assert set(seen) == {accepted.task_id}
    assert further.turn_id != accepted.turn_id
    assert len({one.run_id for one in record.attempts}) == 2
    scopes = [event.fact.scope for event in await harness.events(accepted)]
    assert {one.task_id for one in scopes if one.task_id} == {accepted.task_id}


@pytest.mark.requirement("AP-2", "ATT-1")
async def test_ten_failures_of_a_task_can_all_be_read_afterwards(control: ControlClient) -> None:
    harness = control.harness
    harness.policy = RetryPolicy(attempts=10, backoff_ms=1_000, backoff_max_ms=1_000)
    harness.peer.next(*[fail] * 10)
    task_id = await control.start()
    for _ in range(9):
        await control.until(task_id, Status.RETRYING)
        await harness.run_due("retry", task_id, after_ms=_PAUSE_MS)
    record = await control.until(task_id, Status.FAILED)
    errors = [one.last_error.message for one in record.attempts if one.last_error is not None]
    assert len(set(errors)) == len(record.attempts) == 10
    model = await control.do("get_attempts", taskId=task_id)
    assert all(error in str(model) for error in errors)


@pytest.mark.requirement("OBJ-2")
async def test_what_is_tried_again_after_a_failure_or_elsewhere_is_a_run_of_its_own(
    control: ControlClient,
) -> None:
    """Whoever takes up a run of a dead instance goes on with it; one that was forgotten is followed by another."""
    harness = control.harness
    harness.policy = RetryPolicy(
        attempts=2, backoff_ms=1_000, backoff_max_ms=1_000, idempotent=True, fallback=("other",)
    )
    harness.peer.next(fail)
    task_id = await control.start("silent")
    await control.until(task_id, Status.RETRYING)
    await harness.run_due("retry", task_id, after_ms=_PAUSE_MS)
    await control.until(task_id, Status.QUEUED)
    await harness.restart()
    harness.peer.tasks.clear()
    await harness.parts.dispatch.adopt(EntityRef(EntityKind.TASK, task_id))
    await control.until(task_id, Status.LOST)
    await harness.run_due("timeout", task_id, after_ms=3_600_000)

    async def went_on() -> bool:
        record = await control.record(task_id)
        return record.status is Status.RETRYING or len(record.attempts) > 2

    await wait_until(went_on, 15, "another run is owed")
    await harness.run_due("retry", task_id, after_ms=_PAUSE_MS)

    async def has_three() -> bool:
        return len((await control.record(task_id)).attempts) == 3

    await wait_until(has_three, 15, "the third run")
    record = await control.record(task_id)
    assert len({one.run_id for one in record.attempts}) == 3
    assert [one.worker.peer for one in record.attempts] == ["echo", "echo", "other"]
    assert [one.status for one in record.attempts[:2]] == [Status.FAILED, Status.TIMED_OUT]


@pytest.mark.requirement("TR-21")
async def test_story_of_a_task_over_three_turns_is_told_by_the_log_alone(
    control: ControlClient,
) -> None:
    harness = control.harness

    async def begin(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("half of it", artifact_id="report", last=False)
        await turn.status("INPUT_REQUIRED", "Which half?")

    harness.peer.next(begin, ask)
    accepted = await harness.send("go", wait="stream")
    await harness.until(accepted, Status.WAITING_INPUT)
    child = await control.create("look it up", parentTaskId=accepted.task_id)
    harness.peer.cut()
    second = await harness.send("the first", task=accepted.facade)
    await harness.until(accepted, Status.WAITING_INPUT)
    await harness.restart()
    await harness.adopt(accepted)
    third = await harness.send("really", task=accepted.facade)
    record = await harness.until(accepted, Status.COMPLETED)

    told = (await replay(harness, accepted))[task_of(accepted)]
    assert told == record
    assert record.status in ENDED
    kinds = await control.types(accepted.task_id)
    turns = {accepted.turn_id, second.turn_id, third.turn_id}
    scopes = [event.fact.scope for event in await harness.events(accepted)]
    assert {one.turn_id for one in scopes if one.turn_id} == turns
    assert kinds.count("task.waiting") == 2
    assert {"task.created", "task.delegated", "artifact.changed", "task.completed"} <= set(kinds)
    assert {edge.target for edge in record.relationships if edge.kind == "child"} == {child}
    assert "report" in {one.name_at_peer for one in record.artifacts}
    assert len(record.inputs) == len(turns)


@pytest.mark.requirement("EVC-3")
@pytest.mark.parametrize(("text", "end"), [("go", "turn.completed"), ("refuse", "turn.failed")])
async def test_turn_is_submitted_started_and_ends_one_way_or_the_other(
    control: ControlClient, text: str, end: str
) -> None:
    accepted = await control.harness.send(text, wait="stream")
    await control.harness.until(accepted, Status.COMPLETED if text == "go" else Status.FAILED)
    events = await control.harness.events(accepted)
    told = [event for event in events if event.type.startswith("turn.")]
    assert [event.type for event in told] == ["turn.submitted", "turn.started", end]
    assert {event.fact.scope.turn_id for event in told} == {accepted.turn_id}
