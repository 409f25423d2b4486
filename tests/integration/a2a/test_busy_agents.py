"""A busy agent: every binding reports the wait before the caller times out, and the task can be cancelled."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.oversight_requests import DrainAgent
from passerelle.core.principal import OWNER
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.integration.a2a.speakers import Speaker
from tests.integration.a2a.test_bindings_agree import speakers
from tests.support.scripted_peer import ScriptedResponse
from tests.support.waiting import wait_until

__all__ = ["speakers"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("I9")]


def be_busy(rig: Rig, status: int = 429) -> None:
    rig.peer.answer_next(ScriptedResponse(status, headers={"Retry-After": "60"}))


def read_wait(task: JsonObject) -> JsonObject:
    status = cast("JsonObject", task["status"])
    assert status["state"] == "TASK_STATE_WORKING"
    assert "takes no more work for now" in str(status["message"])
    note = cast("JsonObject", task["metadata"])["urn:passerelle:status"]
    assert note == {"reason": "agent_busy", "peer": "echo"}
    return task


async def test_every_binding_answers_with_the_waiting_task_and_cancels_it(
    rig: Rig, speakers: dict[str, Speaker]
) -> None:
    for name, speaker in speakers.items():
        be_busy(rig)
        sent = await speaker.call(Method.SEND_MESSAGE, rig.message("hello"))
        assert isinstance(sent, list), (name, sent)
        task_id = read_wait(cast("JsonObject", sent[0]["task"]))["id"]
        (stopped,) = cast(
            "list[JsonObject]", await speaker.call(Method.CANCEL_TASK, {"id": task_id})
        )
        assert cast("JsonObject", stopped["status"])["state"] == "TASK_STATE_CANCELED", name
    assert rig.counted() == len(speakers), "what was cancelled is not sent"


async def test_streaming_caller_that_disconnected_can_cancel_the_waiting_task(rig: Rig) -> None:
    be_busy(rig, 503)
    async with rig.stream("SendStreamingMessage", rig.message("hello")) as events:
        first = await anext(events)
    task = read_wait(first.result["task"])

    async def is_stopped() -> bool:
        state = (await rig.call("GetTask", {"id": task["id"]}))["status"]["state"]
        return bool(state == "TASK_STATE_CANCELED")

    await rig.call("CancelTask", {"id": task["id"]})
    assert await wait_until(is_stopped, 15, "the task is cancelled")
    assert rig.counted() == 1


@pytest.mark.parametrize(("status", "answered"), [(429, 429), (503, 503)])
async def test_busy_agent_set_to_refuse_is_answered_with_retry_after(
    rig: Rig, status: int, answered: int
) -> None:
    rig.terms["echo"] = PeerTerms(replace(PATIENCE, refuses=True))
    be_busy(rig, status)
    response = await rig.post("SendMessage", rig.message("hello"))
    assert (response.status_code, response.headers["Retry-After"]) == (answered, "60")
    said = "takes no more work for now" if status == 429 else "is not available"
    assert response.json()["error"]["message"] == f"agent 'echo' {said}"
    assert response.json()["error"]["code"] == -32603
    assert rig.counted() == 1


async def test_draining_agent_is_refused_as_draining_without_the_reason(rig: Rig) -> None:
    await rig.service.execute(OWNER, DrainAgent("echo", "it moves"), None)
    response = await rig.post("SendMessage", rig.message("hello"))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "60")
    error = response.json()["error"]
    assert error["message"] == "agent 'echo' takes no new work: it is being drained"
    assert "it moves" not in response.text
    assert error["data"][0]["metadata"] == {"agent": "echo", "state": "draining"}
    assert rig.counted() == 0
