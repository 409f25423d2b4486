"""Versions between caller, gateway and agent (A2A 1.0 section 3.6)."""

from __future__ import annotations

import pytest

from tests.conformance.callers import Caller, make_params
from tests.conformance.site import Site, write

pytestmark = pytest.mark.anyio


@pytest.mark.kit("VER-CLIENT-001")
async def test_every_call_to_the_agent_names_its_version(caller: Caller, site: Site) -> None:
    message = write("tck-input-required")
    task = await caller.make_task(message)
    await caller.make_task(write("tck-complete-task", taskId=task["id"]))
    await caller.collect(write("tck-stream-001"))
    cancelled = await caller.make_task(write("tck-input-required"))
    await caller.call("CancelTask", {"id": cancelled["id"]})
    assert await site.agent.list_versions() == ["1.0"]


@pytest.mark.kit("VER-CLIENT-002")
@pytest.mark.parametrize("version", ["1.0.0", "1.0.7"])
async def test_patch_version_makes_no_difference(caller: Caller, version: str) -> None:
    params = make_params(write("tck-complete-task"))
    assert "task" in (await caller.call("SendMessage", params, A2A_Version=version)).said


@pytest.mark.kit("VER-CLIENT-002")
async def test_card_names_versions_without_patch(site: Site) -> None:
    card = (await site.read_card()).json()
    assert {one["protocolVersion"] for one in card["supportedInterfaces"]} <= {"1.0", "0.3"}


@pytest.mark.kit("VER-SERVER-001")
async def test_call_is_answered_in_the_form_of_its_version(caller: Caller) -> None:
    task = await caller.make_task(write("tck-complete-task"))
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "kind" not in task


@pytest.mark.kit("VER-SERVER-001")
@pytest.mark.parametrize("version", ["0.3", ""])
async def test_call_of_version_0_3_is_answered_as_version_0_3(site: Site, version: str) -> None:
    message = {
        "kind": "message",
        "messageId": write("tck-complete-task")["messageId"],
        "role": "user",
        "parts": [{"kind": "text", "text": "hello"}],
    }
    async with site.open_caller() as caller:
        task = (await caller.call("message/send", {"message": message}, A2A_Version=version)).said
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
