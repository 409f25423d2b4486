"""What a thread says of the work in it."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.errors import InvalidInput
from passerelle.core.status import Status
from tests.support.desk import Desk

pytestmark = pytest.mark.anyio


async def read_thread(desk: Desk, task_id: str) -> Any:  # noqa: ANN401  a JSON object, read by its members
    record = await desk.record(task_id)
    return await desk.do("get_thread", threadId=str(record.thread_id))


@pytest.mark.requirement("CF-5", "ST-6")
async def test_question_stands_in_its_thread_until_it_has_an_answer(desk: Desk) -> None:
    task_id = await desk.start("ask which")
    record = await desk.until(task_id, Status.WAITING_INPUT)
    (action,) = record.open_actions
    (pending,) = (await read_thread(desk, task_id))["pending"]
    assert (pending["taskId"], action in str(pending)) == (task_id, True)
    view = await desk.do("get_action", actionId=action)
    with pytest.raises(InvalidInput):
        await desk.house.respond(view, option_id="reply", content={"text": ""})
    assert [one["taskId"] for one in (await read_thread(desk, task_id))["pending"]] == [task_id]
    assert (await desk.record(task_id)).status is Status.WAITING_INPUT
    await desk.house.send("this one", task=task_id)
    await desk.until(task_id, Status.COMPLETED)
    thread = await read_thread(desk, task_id)
    assert (thread["pending"], thread["lastOutcome"]) == ([], "completed")
    kinds = await desk.types(task_id)
    assert kinds.index("task.waiting") < kinds.index("task.resumed")
