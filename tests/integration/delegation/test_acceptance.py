"""A task completes only if it meets its acceptance conditions, whatever the agent reports (TR-13, CF-17, CF-18)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import ACCEPTANCE
from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.payloads.task import TaskCompleted
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn, TurnScript
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PDF: JsonObject = {"artifact": {"mediaType": "application/pdf"}}
REPORT: JsonObject = {"artifact": {"name": "report"}}
ORDER: JsonObject = {
    "schema": {"type": "object", "required": ["total"], "properties": {"total": {"minimum": 1}}}
}
REVIEW: JsonObject = {"review": "Is it the picture that was wanted?"}
DAY_MS = 24 * 3600 * 1000


def send_artifacts(*parts: Json) -> TurnScript:
    """An agent that sends each part as an artifact and completes."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        for number, part in enumerate(parts):
            task.artifact([part], artifact_id=f"a-{number}", name=f"file {number}")
        await turn.status("COMPLETED", "here you are")

    return work


def state_of(task: JsonObject) -> Json:
    return cast("JsonObject", task["status"])["state"]


@pytest.mark.requirement("TR-13", "CF-17", "A2A-11")
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_task_without_the_required_artifact_fails_and_is_never_completed(
    harness: Harness, wait: str
) -> None:
    harness.acceptance = (PDF,)
    harness.peer.next(send_artifacts({"text": "no pdf, sorry"}))
    accepted = await harness.send("a pdf, please", wait="stream" if wait == "stream" else "unary")
    frames = await harness.watch(accepted)
    record = await harness.record(accepted)
    assert record.status is Status.FAILED
    assert record.last_error is not None
    assert (record.last_error.code, record.last_error.retryable) == ("acceptance", True)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert "TASK_STATE_COMPLETED" not in str(frames)
    task = await harness.read(accepted)
    assert state_of(task) == "TASK_STATE_FAILED"
    assert "an artifact of type application/pdf" in str(task["status"])
    assert "no pdf, sorry" in str(task["artifacts"])
    assert "task.completed" not in await harness.types(accepted)


@pytest.mark.requirement("TR-13", "CF-18", "TEV-16")
async def test_task_that_meets_its_conditions_completes_and_records_its_coverage(
    harness: Harness,
) -> None:
    harness.acceptance = (PDF, ORDER)
    pdf: Json = {"raw": "JVBERg==", "mediaType": "application/pdf"}
    harness.peer.next(send_artifacts(pdf, {"data": {"total": 12}}))
    accepted, answer = await harness.talk("an order, please")
    assert state_of(cast("JsonObject", answer["task"])) == "TASK_STATE_COMPLETED"
    (completed,) = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, TaskCompleted)
    ]
    assert completed.coverage is not None
    assert (completed.coverage.met, completed.coverage.of) == (2, 2)
    assert (completed.delivery, completed.artifact_count) == ("delivered", 2)
    assert completed.native_status == "TASK_STATE_COMPLETED"


async def test_data_that_violates_the_schema_fails_the_task(harness: Harness) -> None:
    harness.acceptance = (ORDER,)
    harness.peer.next(send_artifacts({"data": {"total": 0}}))
    accepted, _ = await harness.talk("an order, please")
    assert (await harness.record(accepted)).status is Status.FAILED


@pytest.mark.requirement("PO-7")
async def test_coverage_grows_with_each_artifact(harness: Harness) -> None:
    harness.acceptance = ({"artifact": {"name": "file 0"}}, {"artifact": {"name": "file 1"}})
    harness.peer.hold()

    async def work(turn: Turn) -> None:
        task = await turn.open()
        for number in range(2):
            await turn.wait_for_release()
            task.artifact([{"text": "x"}], artifact_id=f"a-{number}", name=f"file {number}")
        await turn.status("COMPLETED")

    harness.peer.next(work)
    accepted = await harness.send("go", wait="stream")
    harness.peer.release(2)
    record = await wait_until(lambda: covered(harness, accepted, 1), 10, "one of two is met")
    assert record is not None
    assert record.coverage is not None
    assert (record.coverage.of, record.coverage.state) == (2, "pending")
    assert record.coverage.unmet == ("an artifact 'file 1'",)
    harness.peer.release(1)
    record = await wait_until(lambda: covered(harness, accepted, 2), 10, "both are met")
    assert record is not None
    assert record.status is not Status.COMPLETED
    harness.peer.release_all()
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.coverage is not None
    assert (record.coverage.met, record.coverage.state) == (2, "met")


async def covered(harness: Harness, accepted: object, met: int) -> TaskRecord | None:
    record = await harness.record(accepted)  # type: ignore[arg-type]  # a turn
    return record if record.coverage and record.coverage.met == met else None


@pytest.mark.requirement("TR-13", "ST-17")
async def test_reviewed_task_waits_for_the_person_and_then_completes(harness: Harness) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, answer = await harness.talk("a picture, please")
    task = cast("JsonObject", answer["task"])
    assert state_of(task) == "TASK_STATE_INPUT_REQUIRED"
    assert "Is it the picture that was wanted?" in str(task["status"])
    assert "a picture" in str(task["artifacts"])
    record = await harness.record(accepted)
    assert (record.status, record.withheld is not None) == (Status.WAITING_PERMISSION, True)
    assert record.coverage is not None
    assert (record.coverage.met, record.coverage.state) == (0, "pending")
    watching = asyncio.create_task(harness.watch(accepted.facade))
    view = await harness.question(accepted)
    assert (view["askedBy"], view["direction"]) == ("gateway", "local")
    await harness.respond(view, option_id="accept")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.coverage is not None
    assert (record.coverage.met, record.withheld) == (1, None)
    assert "TASK_STATE_COMPLETED" in str((await watching)[-1])
    assert "here you are" in str((await harness.read(accepted))["status"])
    assert harness.peer.texts == ["a picture, please"], (
        "the review decision is not sent to the agent"
    )


async def test_rejected_review_fails_the_task(harness: Harness) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await harness.talk("a picture, please")
    await harness.respond(await harness.question(accepted), option_id="refuse")
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "acceptance"
    assert "task.completed" not in await harness.types(accepted)


async def test_expired_review_fails_the_task(harness: Harness) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await harness.talk("a picture, please")
    (action,) = (await harness.record(accepted)).open_actions
    await harness.run_due("expire", action, after_ms=DAY_MS + 1)
    record = await harness.until(accepted, Status.FAILED)
    assert record.coverage is not None
    assert record.coverage.state == "unmet"


@pytest.mark.requirement("A2A-11", "CF-18")
async def test_review_survives_the_instance_and_the_agent(harness: Harness) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await harness.talk("a picture, please")
    view = await harness.question(accepted)
    await harness.restart()
    (remote,) = harness.peer.tasks.values()
    remote.forgotten = True
    await harness.respond(view, option_id="accept")
    await harness.adopt(accepted)
    await harness.until(accepted, Status.COMPLETED)
    task = await harness.read(accepted)
    assert "a picture" in str(task["artifacts"])
    assert state_of(task) == "TASK_STATE_COMPLETED"


async def test_missing_artifact_fails_the_task_without_a_review(harness: Harness) -> None:
    harness.acceptance = (PDF, REVIEW)
    harness.peer.next(send_artifacts({"text": "no pdf"}))
    accepted, _ = await harness.talk("a pdf, please")
    assert (await harness.record(accepted)).status is Status.FAILED
    assert "action.required" not in await harness.types(accepted)


async def test_task_under_review_can_be_cancelled(harness: Harness) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await harness.talk("a picture, please")
    await harness.cancel(accepted)
    record = await harness.until(accepted, Status.CANCELLED)
    assert (record.open_actions, record.withheld) == ((), None)
    assert state_of(await harness.read(accepted)) == "TASK_STATE_CANCELED"


async def test_message_to_a_task_under_review_is_refused(
    harness: Harness,
) -> None:
    harness.acceptance = (REVIEW,)
    harness.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await harness.talk("a picture, please")
    with pytest.raises(UnsupportedOperation):
        await harness.send("make it blue", task=accepted.facade)
    assert harness.peer.texts == ["a picture, please"]


async def test_bare_message_meets_no_artifact_condition(harness: Harness) -> None:
    harness.acceptance = (REPORT,)

    async def answer(turn: Turn) -> None:
        await turn.answer("the report says all is well")

    harness.peer.next(answer)
    accepted, answered = await harness.talk("a report, please")
    task = cast("JsonObject", answered["task"])
    assert state_of(task) == "TASK_STATE_FAILED"
    assert "artifact 'report'" in str(task["status"])
    assert (await harness.record(accepted)).status is Status.FAILED


@pytest.mark.requirement("TR-13")
async def test_caller_may_add_conditions_to_those_configured(harness: Harness) -> None:
    harness.acceptance = (REPORT,)
    message = harness.message("a report")
    message["metadata"] = {ACCEPTANCE: [PDF]}
    accepted = await harness.send("", message=message)
    await harness.await_answer(accepted)
    record = await harness.record(accepted)
    assert record.acceptance == (REPORT, PDF)
    assert record.status is Status.FAILED


@pytest.mark.parametrize(
    "wanted",
    ["a report", [{"artifact": 1}], [{"schema": {"type": "nonsense"}}], [REVIEW, REVIEW], [{}]],
)
async def test_invalid_conditions_are_refused_before_the_agent_is_called(
    harness: Harness, wanted: Json
) -> None:
    message = harness.message("a report")
    message["metadata"] = {ACCEPTANCE: wanted}
    with pytest.raises(InvalidInput, match="acceptance"):
        await harness.send("", message=message)
    assert harness.peer.texts == []


async def test_task_without_conditions_has_no_coverage(harness: Harness) -> None:
    accepted, _ = await harness.talk("chunks 1")
    record = await harness.record(accepted)
    assert (record.acceptance, record.coverage, record.withheld) == ((), None, None)
