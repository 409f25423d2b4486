"""Conditions that a task gets by command, beside those that the configuration has for its agent (TR-13)."""

from __future__ import annotations

import pytest

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json, JsonObject
from tests.support.control_client import ControlClient
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

REPORT: JsonObject = {"artifact": {"name": "report"}}
PDF: JsonObject = {"artifact": {"mediaType": "application/pdf"}}
REVIEW: JsonObject = {"review": "Is it the report that was wanted?"}


async def bring_report(turn: Turn) -> None:
    task = await turn.open()
    task.artifact([{"text": "all is well"}], name="report")
    await turn.status("COMPLETED")


@pytest.mark.requirement("TR-13", "CMD-4")
async def test_a_created_task_is_held_to_its_own_conditions_and_to_those_of_its_agent(
    control: ControlClient,
) -> None:
    control.harness.acceptance = (REPORT,)
    control.harness.peer.next(bring_report)
    task_id = await control.start(acceptance=[PDF, REPORT])
    record = await control.until(task_id, Status.FAILED)
    assert record.acceptance == (REPORT, PDF)
    assert record.coverage is not None
    assert record.coverage.unmet == ("an artifact of type application/pdf",)


@pytest.mark.requirement("TR-13", "CMD-5")
async def test_new_conditions_do_not_take_away_what_the_configuration_wants(
    control: ControlClient,
) -> None:
    control.harness.acceptance = (REPORT,)
    control.harness.peer.next(bring_report)
    task_id = await control.create(acceptance=[PDF])
    await control.do("update_task", taskId=task_id, acceptance=[])
    assert (await control.record(task_id)).acceptance == (REPORT,)
    await control.do("start_task", "s", taskId=task_id)
    await control.until(task_id, Status.COMPLETED)


@pytest.mark.parametrize("wanted", [[{"artefact": {}}], [{"schema": {"type": "none"}}]])
async def test_conditions_that_are_none_are_refused_by_name(
    control: ControlClient, wanted: Json
) -> None:
    with pytest.raises(InvalidInput, match=r"acceptance\[0\]"):
        await control.create(acceptance=wanted)
    task_id = await control.create()
    with pytest.raises(InvalidInput, match=r"acceptance\[0\]"):
        await control.do("update_task", taskId=task_id, acceptance=wanted)


@pytest.mark.requirement("CMD-8", "CMD-11")
async def test_a_reviewed_task_that_is_paused_completes_only_when_it_goes_on(
    control: ControlClient,
) -> None:
    control.harness.peer.next(bring_report)
    task_id = await control.start(acceptance=[REVIEW])
    record = await control.until(task_id, Status.WAITING_PERMISSION)
    await control.do("pause_task", taskId=task_id)
    with pytest.raises(UnsupportedOperation):
        await control.do("complete_task", taskId=task_id)
    (action,) = record.open_actions
    view = await control.do("get_action", actionId=action)
    await control.harness.respond(view, option_id="accept")
    assert (await control.record(task_id)).status is Status.PAUSED
    await control.do("resume_task", taskId=task_id)
    record = await control.until(task_id, Status.COMPLETED)
    assert record.coverage is not None
    assert (record.coverage.met, record.coverage.state) == (1, "met")
