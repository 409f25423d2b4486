"""Completing a task by command while a fact is missing: refused by its name, and done once it is there (CMD-11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.task.status import Status
from passerelle.gateway.settings.section import OutputSettings, read_output_terms
from tests.support.control_client import ControlClient
from tests.support.file_server import File, FileServer
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shelf(control: ControlClient) -> AsyncGenerator[FileServer]:
    """Where the agent puts its files, which the house fetches."""
    async with FileServer() as server:
        terms = {"fetch": True, "allow": [server.url]}
        control.harness.outputs.reload(read_output_terms(OutputSettings.model_validate(terms)))
        yield server
        await control.harness.outputs.close()


@pytest.mark.requirement("CMD-11", "CMD-30", "I5")
async def test_task_is_completed_by_command_once_its_file_is_here(
    control: ControlClient, shelf: FileServer
) -> None:
    async def bring(turn: Turn) -> None:
        task = await turn.open()
        task.artifact([{"url": f"{shelf.url}/r.pdf", "mediaType": "application/pdf"}])
        await turn.status("COMPLETED")

    shelf.files["/r.pdf"] = File(status=503)
    control.harness.peer.next(bring)
    task_id = await control.start()
    record = await control.until(task_id, Status.WAITING_RESOURCE)
    (artifact,) = record.artifacts
    with pytest.raises(UnsupportedOperation) as refused:
        await control.do("complete_task", "c", taskId=task_id)
    assert refused.value.details["missing"] == f"artifact {artifact.artifact_id} is not stored"
    assert (await control.record(task_id)).status is Status.WAITING_RESOURCE
    shelf.files["/r.pdf"] = File(b"%PDF-1.7")
    first = await control.do("complete_task", "c", taskId=task_id)
    again = await control.do("complete_task", "c", taskId=task_id)
    assert (first["repeated"], again["repeated"]) == (False, True)
    record = await control.record(task_id)
    assert (record.status, record.artifacts[0].stored) == (Status.COMPLETED, True)
    assert (await control.types(task_id)).count("task.completed") == 1
    assert control.harness.peer.count("CancelTask") == 0
