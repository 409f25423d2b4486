"""Completing a task by command while a fact is missing: refused by name, and done once the fact is there (CMD-11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.task.status import Status
from passerelle.gateway.settings.section import OutputSettings, read_output_terms
from tests.support.desk import Desk
from tests.support.file_server import File, FileServer
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio


@pytest.fixture
async def agent_files(desk: Desk) -> AsyncGenerator[FileServer]:
    """Serves the files that the agent names and the house fetches."""
    async with FileServer() as server:
        terms = {"fetch": True, "allow": [server.url]}
        desk.house.outputs.reload(read_output_terms(OutputSettings.model_validate(terms)))
        yield server
        await desk.house.outputs.close()


@pytest.mark.requirement("CMD-11", "CMD-30", "I5")
async def test_task_is_completed_by_command_once_its_file_is_stored(
    desk: Desk, agent_files: FileServer
) -> None:
    async def bring(turn: Turn) -> None:
        task = await turn.open()
        task.artifact([{"url": f"{agent_files.url}/r.pdf", "mediaType": "application/pdf"}])
        await turn.status("COMPLETED")

    agent_files.files["/r.pdf"] = File(status=503)
    desk.house.peer.next(bring)
    task_id = await desk.start()
    record = await desk.until(task_id, Status.WAITING_RESOURCE)
    (artifact,) = record.artifacts
    with pytest.raises(UnsupportedOperation) as refused:
        await desk.do("complete_task", "c", taskId=task_id)
    assert refused.value.details["missing"] == f"artifact {artifact.artifact_id} is not stored"
    assert (await desk.record(task_id)).status is Status.WAITING_RESOURCE
    agent_files.files["/r.pdf"] = File(b"%PDF-1.7")
    first = await desk.do("complete_task", "c", taskId=task_id)
    again = await desk.do("complete_task", "c", taskId=task_id)
    assert (first["repeated"], again["repeated"]) == (False, True)
    record = await desk.record(task_id)
    assert (record.status, record.artifacts[0].stored) == (Status.COMPLETED, True)
    assert (await desk.types(task_id)).count("task.completed") == 1
    assert desk.house.peer.count("CancelTask") == 0
