"""A task completes only if it meets its acceptance conditions, whatever the agent reports (TR-13, CF-17, CF-18)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.a2a_mapping.extensions import ACCEPTANCE
from passerelle.core.errors import InvalidInput, PeerUnavailable, UnsupportedOperation
from passerelle.core.payloads.task import TaskCompleted
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.house import House
from tests.support.scripted_tasks import Script, Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PDF: JsonObject = {"artifact": {"mediaType": "application/pdf"}}
REPORT: JsonObject = {"artifact": {"name": "report"}}
ORDER: JsonObject = {
    "schema": {"type": "object", "required": ["total"], "properties": {"total": {"minimum": 1}}}
}
REVIEW: JsonObject = {"review": "Is it the picture that was wanted?"}
DAY_MS = 24 * 3600 * 1000


def send_artifacts(*parts: Json) -> Script:
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
    house: House, wait: str
) -> None:
    house.acceptance = (PDF,)
    house.peer.next(send_artifacts({"text": "no pdf, sorry"}))
    accepted = await house.send("a pdf, please", wait="stream" if wait == "stream" else "unary")
    frames = await house.watch(accepted)
    record = await house.record(accepted)
    assert record.status is Status.FAILED
    assert record.last_error is not None
    assert (record.last_error.code, record.last_error.retryable) == ("acceptance", True)
    assert record.attempts[-1].native_status == "TASK_STATE_COMPLETED"
    assert "TASK_STATE_COMPLETED" not in str(frames)
    task = await house.read(accepted)
    assert state_of(task) == "TASK_STATE_FAILED"
    assert "an artifact of type application/pdf" in str(task["status"])
    assert "no pdf, sorry" in str(task["artifacts"])
    assert "task.completed" not in await house.types(accepted)


@pytest.mark.requirement("TR-13", "CF-18", "TEV-16")
async def test_task_that_meets_its_conditions_completes_and_records_its_coverage(
    house: House,
) -> None:
    house.acceptance = (PDF, ORDER)
    pdf: Json = {"raw": "JVBERg==", "mediaType": "application/pdf"}
    house.peer.next(send_artifacts(pdf, {"data": {"total": 12}}))
    accepted, answer = await house.talk("an order, please")
    assert state_of(cast("JsonObject", answer["task"])) == "TASK_STATE_COMPLETED"
    (completed,) = [
        event.fact.payload
        for event in await house.events(accepted)
        if isinstance(event.fact.payload, TaskCompleted)
    ]
    assert completed.coverage is not None
    assert (completed.coverage.met, completed.coverage.of) == (2, 2)
    assert (completed.delivery, completed.artifact_count) == ("delivered", 2)
    assert completed.native_status == "TASK_STATE_COMPLETED"


async def test_data_that_violates_the_schema_fails_the_task(house: House) -> None:
    house.acceptance = (ORDER,)
    house.peer.next(send_artifacts({"data": {"total": 0}}))
    accepted, _ = await house.talk("an order, please")
    assert (await house.record(accepted)).status is Status.FAILED


@pytest.mark.requirement("PO-7")
async def test_coverage_grows_with_each_artifact(house: House) -> None:
    house.acceptance = ({"artifact": {"name": "file 0"}}, {"artifact": {"name": "file 1"}})
    house.peer.hold()

    async def work(turn: Turn) -> None:
        task = await turn.open()
        for number in range(2):
            await turn.wait_for_release()
            task.artifact([{"text": "x"}], artifact_id=f"a-{number}", name=f"file {number}")
        await turn.status("COMPLETED")

    house.peer.next(work)
    accepted = await house.send("go", wait="stream")
    house.peer.release(2)
    record = await wait_until(lambda: covered(house, accepted, 1), 10, "one of two is met")
    assert record is not None
    assert record.coverage is not None
    assert (record.coverage.of, record.coverage.state) == (2, "pending")
    assert record.coverage.unmet == ("an artifact 'file 1'",)
    house.peer.release(1)
    record = await wait_until(lambda: covered(house, accepted, 2), 10, "both are met")
    assert record is not None
    assert record.status is not Status.COMPLETED
    house.peer.release_all()
    record = await house.until(accepted, Status.COMPLETED)
    assert record.coverage is not None
    assert (record.coverage.met, record.coverage.state) == (2, "met")


async def covered(house: House, accepted: object, met: int) -> TaskRecord | None:
    record = await house.record(accepted)  # type: ignore[arg-type]  # a turn
    return record if record.coverage and record.coverage.met == met else None


@pytest.mark.requirement("TR-13", "ST-17")
async def test_reviewed_task_waits_for_the_person_and_then_completes(house: House) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, answer = await house.talk("a picture, please")
    task = cast("JsonObject", answer["task"])
    assert state_of(task) == "TASK_STATE_INPUT_REQUIRED"
    assert "Is it the picture that was wanted?" in str(task["status"])
    assert "a picture" in str(task["artifacts"])
    record = await house.record(accepted)
    assert (record.status, record.withheld is not None) == (Status.WAITING_PERMISSION, True)
    assert record.coverage is not None
    assert (record.coverage.met, record.coverage.state) == (0, "pending")
    watching = asyncio.create_task(house.watch(accepted.facade))
    view = await house.question(accepted)
    assert (view["askedBy"], view["direction"]) == ("gateway", "local")
    await house.respond(view, option_id="accept")
    record = await house.until(accepted, Status.COMPLETED)
    assert record.coverage is not None
    assert (record.coverage.met, record.withheld) == (1, None)
    assert "TASK_STATE_COMPLETED" in str((await watching)[-1])
    assert "here you are" in str((await house.read(accepted))["status"])
    assert house.peer.texts == ["a picture, please"], "the review decision is not sent to the agent"


async def test_rejected_review_fails_the_task(house: House) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await house.talk("a picture, please")
    await house.respond(await house.question(accepted), option_id="refuse")
    record = await house.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "acceptance"
    assert "task.completed" not in await house.types(accepted)


async def test_expired_review_fails_the_task(house: House) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await house.talk("a picture, please")
    (action,) = (await house.record(accepted)).open_actions
    await house.come_due("expire", action, after_ms=DAY_MS + 1)
    record = await house.until(accepted, Status.FAILED)
    assert record.coverage is not None
    assert record.coverage.state == "unmet"


@pytest.mark.requirement("A2A-11", "CF-18")
async def test_review_survives_the_instance_and_the_agent(house: House) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await house.talk("a picture, please")
    view = await house.question(accepted)
    await house.restart()
    (remote,) = house.peer.tasks.values()
    remote.forgotten = True
    await house.respond(view, option_id="accept")
    await house.adopt(accepted)
    await house.until(accepted, Status.COMPLETED)
    task = await house.read(accepted)
    assert "a picture" in str(task["artifacts"])
    assert state_of(task) == "TASK_STATE_COMPLETED"


async def test_missing_artifact_fails_the_task_without_a_review(house: House) -> None:
    house.acceptance = (PDF, REVIEW)
    house.peer.next(send_artifacts({"text": "no pdf"}))
    accepted, _ = await house.talk("a pdf, please")
    assert (await house.record(accepted)).status is Status.FAILED
    assert "action.required" not in await house.types(accepted)


async def test_task_under_review_can_be_cancelled(house: House) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await house.talk("a picture, please")
    await house.cancel(accepted)
    record = await house.until(accepted, Status.CANCELLED)
    assert (record.open_actions, record.withheld) == ((), None)
    assert state_of(await house.read(accepted)) == "TASK_STATE_CANCELED"


async def test_message_to_a_task_under_review_is_refused(
    house: House,
) -> None:
    house.acceptance = (REVIEW,)
    house.peer.next(send_artifacts({"text": "a picture"}))
    accepted, _ = await house.talk("a picture, please")
    with pytest.raises(UnsupportedOperation):
        await house.send("make it blue", task=accepted.facade)
    assert house.peer.texts == ["a picture, please"]


async def test_bare_message_meets_no_artifact_condition(house: House) -> None:
    house.acceptance = (REPORT,)

    async def answer(turn: Turn) -> None:
        await turn.answer("the report says all is well")

    house.peer.next(answer)
    accepted = await house.send("a report, please")
    with pytest.raises(PeerUnavailable, match="artifact 'report'"):
        await house.hear(accepted)
    assert (await house.record(accepted)).status is Status.FAILED


@pytest.mark.requirement("TR-13")
async def test_caller_may_add_conditions_to_those_configured(house: House) -> None:
    house.acceptance = (REPORT,)
    message = house.message("a report")
    message["metadata"] = {ACCEPTANCE: [PDF]}
    accepted = await house.send("", message=message)
    await house.hear(accepted)
    record = await house.record(accepted)
    assert record.acceptance == (REPORT, PDF)
    assert record.status is Status.FAILED


@pytest.mark.parametrize(
    "wanted",
    ["a report", [{"artifact": 1}], [{"schema": {"type": "nonsense"}}], [REVIEW, REVIEW], [{}]],
)
async def test_invalid_conditions_are_refused_before_the_agent_is_called(
    house: House, wanted: Json
) -> None:
    message = house.message("a report")
    message["metadata"] = {ACCEPTANCE: wanted}
    with pytest.raises(InvalidInput, match="acceptance"):
        await house.send("", message=message)
    assert house.peer.texts == []


async def test_task_without_conditions_has_no_coverage(house: House) -> None:
    accepted, _ = await house.talk("chunks 1")
    record = await house.record(accepted)
    assert (record.acceptance, record.coverage, record.withheld) == ((), None, None)
