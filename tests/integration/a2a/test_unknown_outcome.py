"""The outcome of a send is unknown: every caller gets a Task that reports this, and the same one again."""

from __future__ import annotations

from typing import cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.wire.json import JsonObject
from tests.integration.a2a.rig import Rig
from tests.integration.a2a.speakers import Speaker
from tests.integration.a2a.test_bindings_agree import speakers
from tests.support.scripted_peer import ScriptedResponse
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

__all__ = ["speakers"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AP-3")]


async def vanish(turn: Turn) -> None:
    await turn.drop()


@pytest.fixture
async def deaf(rig: Rig) -> Rig:
    """An agent without ListTasks: whether it received a message cannot be looked up."""
    rig.peer.lists = False
    return rig


def read_unknown(task: JsonObject) -> JsonObject:
    status = cast("JsonObject", task["status"])
    assert status["state"] == "TASK_STATE_FAILED"
    assert cast("JsonObject", task["metadata"])["urn:passerelle:status"] == {
        "reason": "unknown_outcome",
        "peer": "echo",
    }
    said = str(status["message"])
    assert "it is unknown whether agent 'echo' received the message" in said
    assert "it has no list of tasks to look in" in said
    assert "another idempotency key" in said
    return task


@pytest.mark.parametrize("method", [Method.SEND_MESSAGE, Method.SEND_STREAMING_MESSAGE])
async def test_every_binding_answers_with_the_task(
    deaf: Rig, speakers: dict[str, Speaker], method: Method
) -> None:
    for name, speaker in speakers.items():
        deaf.peer.next(vanish)
        answer = await speaker.call(method, deaf.message("go"))
        assert isinstance(answer, list), (name, answer)
        task = read_unknown(cast("JsonObject", answer[0]["task"]))
        assert len(answer) == 1, name
        (got,) = cast("list[JsonObject]", await speaker.call(Method.GET_TASK, {"id": task["id"]}))
        assert read_unknown(got)["id"] == task["id"]
    assert deaf.counted() == len(speakers), "nothing was sent twice"


async def test_same_key_gets_the_same_task_and_a_new_key_sends_it(deaf: Rig) -> None:
    deaf.peer.next(vanish)
    params = deaf.message("go")
    first = await deaf.post("SendMessage", params, **{"Idempotency-Key": "k-1"})
    assert first.status_code == 200
    assert "Retry-After" not in first.headers
    again = await deaf.post("SendMessage", params, **{"Idempotency-Key": "k-1"})
    assert again.json() == first.json()
    assert deaf.counted() == 1
    task = read_unknown(first.json()["result"]["task"])
    listed = (await deaf.call("ListTasks", {}))["tasks"]
    assert [one["id"] for one in listed] == [task["id"]]
    deliberate = await deaf.post("SendMessage", params, **{"Idempotency-Key": "k-2"})
    assert deliberate.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert deaf.counted() == 2


async def test_task_that_was_shown_before_reports_it_as_well(deaf: Rig) -> None:
    # Longer than the time after which a waiting caller gets the task.
    deaf.peer.answer_next(ScriptedResponse(429, headers={"Retry-After": "4"}))
    deaf.peer.next(vanish)
    shown = (await deaf.call("SendMessage", deaf.message("go")))["task"]
    assert shown["status"]["state"] == "TASK_STATE_WORKING"

    async def has_failed() -> bool:
        task = await deaf.call("GetTask", {"id": shown["id"]})
        return bool(task["status"]["state"] == "TASK_STATE_FAILED")

    await wait_until(has_failed, 20, "the task has failed")
    read_unknown(cast("JsonObject", await deaf.call("GetTask", {"id": shown["id"]})))
    assert deaf.counted() == 2
