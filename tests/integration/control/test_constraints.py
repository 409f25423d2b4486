"""Constraints of a task: what may not begin is refused, what goes beyond them is stopped, and both say which it was."""

from __future__ import annotations

import pytest

from passerelle.core.errors import Forbidden, InvalidInput
from passerelle.core.facts import RetryPolicy
from passerelle.core.payloads.task import TaskCancelled
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.integration.control.stories import ask_leave, is_known
from tests.support.control_client import ControlClient
from tests.support.scripted_behaviours import silent
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("TR-11", "CMD-5")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agents", "echo"),
        ("hosts", []),
        ("maxSeconds", 0),
        ("maxCostMicros", "1"),
        ("maxOutputBytes", True),
        ("mediaTypes", ["text/plain", 1]),
        ("permission", "always"),
    ],
)
async def test_a_constraint_of_another_form_is_refused_by_name(
    control: ControlClient, name: str, value: Json
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await control.create(constraints={name: value})
    assert f"constraints.{name}" in str(refused.value)
    task_id = await control.create(constraints={"of the host": value})
    with pytest.raises(InvalidInput):
        await control.do("update_task", taskId=task_id, constraints={name: value})


@pytest.mark.requirement("TR-11")
@pytest.mark.parametrize(
    ("name", "value"), [("agents", ["other"]), ("hosts", ["agents.example.com"])]
)
async def test_an_agent_that_may_not_work_on_a_task_is_sent_nothing(
    control: ControlClient, name: str, value: Json
) -> None:
    task_id = await control.create(constraints={name: value})
    with pytest.raises(Forbidden, match=f"constraint {name}"):
        await control.do("start_task", taskId=task_id)
    record = await control.record(task_id)
    assert (record.status, record.attempts) == (Status.ACCEPTED, ())
    assert control.harness.peer.messages == []


@pytest.mark.requirement("TR-11")
async def test_no_further_attempt_begins_at_an_agent_that_may_not_work_on_the_task(
    control: ControlClient,
) -> None:
    control.harness.policy = RetryPolicy(fallback=("other",))
    task_id = await control.start("fail badly", constraints={"agents": ["echo"]})
    await control.until(task_id, Status.RETRYING)
    await control.harness.run_due("retry", task_id, after_ms=0)
    record = await control.until(task_id, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.message.startswith("constraint agents: 'other'")
    assert control.harness.peers["other"].messages == []


@pytest.mark.requirement("TR-11", "TEV-13")
async def test_an_attempt_lasts_no_longer_than_the_task_lets_it(control: ControlClient) -> None:
    task_id = await control.start("silent", constraints={"maxSeconds": 30})
    await is_known(control, task_id)
    assert (await control.record(task_id)).attempts[-1].retry_policy.total_timeout_ms == 30_000
    await control.harness.run_due("timeout", task_id, after_ms=30_000)
    record = await control.until(task_id, Status.TIMED_OUT)
    error = record.attempts[-1].last_error
    assert error is not None
    assert error.message.startswith("constraint maxSeconds")


async def expect_stopped(control: ControlClient, task_id: str, name: str) -> TaskRecord:
    """The gateway itself has stopped a task, and says why."""
    record = await control.until(task_id, Status.CANCELLED)
    assert (record.cancel_source, record.cancel_requested_by) == ("runtime", "gateway")
    events = await control.events(task_id)
    (wish,) = [event for event in events if event.type == "task.cancel_requested"]
    assert f"constraint {name}" in str(wish.fact.payload)
    (said,) = [
        event.fact.payload for event in events if isinstance(event.fact.payload, TaskCancelled)
    ]
    assert (said.source, said.actor) == ("runtime", "gateway")
    return record


@pytest.mark.requirement("TR-11", "ST-13", "CF-15", "TEV-12")
@pytest.mark.parametrize(
    ("constraint", "type_"),
    [({"maxOutputBytes": 1_000}, "text/plain"), ({"mediaTypes": ["text/plain"]}, "text/html")],
    ids=["maxOutputBytes", "mediaTypes"],
)
async def test_a_task_that_brings_what_it_may_not_is_stopped_at_the_agent(
    control: ControlClient, constraint: JsonObject, type_: str
) -> None:
    async def write(turn: Turn) -> None:
        task = await turn.open()
        text = "x" * (2_000 if "maxOutputBytes" in constraint else 2)
        part: JsonObject = {"text": text, "mediaType": type_}
        task.artifact([part], artifact_id="a", append=False, last=True)
        await turn.status("WORKING", "there is more")
        await silent(turn)

    control.harness.peer.next(write)
    task_id = await control.start(constraints=constraint)
    await control.until(task_id, Status.CANCELLING)
    await control.harness.run_due("cancel", task_id, after_ms=0)
    record = await expect_stopped(control, task_id, next(iter(constraint)))
    assert control.harness.peer.count("CancelTask") == 1
    assert len(record.artifacts) == 1, "what it brought stays recorded"
    thread = await control.do("get_thread", threadId=str(record.thread_id))
    assert thread["lastOutcome"] == "cancelled"


@pytest.mark.requirement("TR-11", "ST-13")
async def test_a_task_that_is_done_with_more_than_it_may_bring_does_not_complete(
    control: ControlClient,
) -> None:
    task_id = await control.start("big", constraints={"maxOutputBytes": 1_000})
    record = await expect_stopped(control, task_id, "maxOutputBytes")
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("TR-11", "ST-13")
async def test_a_task_that_may_ask_nobody_is_stopped_when_its_agent_asks(
    control: ControlClient,
) -> None:
    control.harness.peer.next(ask_leave)
    task_id = await control.start(constraints={"permission": "never"})
    await control.until(task_id, Status.CANCELLING)
    await control.harness.run_due("cancel", task_id, after_ms=0)
    record = await expect_stopped(control, task_id, "permission")
    assert record.open_actions == ()


@pytest.mark.requirement("TR-11")
async def test_a_task_within_its_constraints_completes(control: ControlClient) -> None:
    task_id = await control.start(
        "chunks 3",
        constraints={
            "agents": ["echo"],
            "hosts": ["127.0.0.1"],
            "maxSeconds": 60,
            "maxCostMicros": 1,
            "maxOutputBytes": 100_000,
            "mediaTypes": ["text/plain"],
            "permission": "never",
        },
    )
    await control.until(task_id, Status.COMPLETED)
