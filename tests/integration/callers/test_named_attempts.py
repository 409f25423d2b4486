"""A further attempt at the same task knows the resolved name (LT-19)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.a2a_mapping.extensions import NAMED
from tests.integration.callers.test_list_streams import ask, post
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": ["a2a:call", "tasks:read", "tasks:write"]}
]


async def send(one: Instance, name: str, text: str, **members: object) -> Answer:
    params = cast("Answer", one.message(text))
    params["message"] |= {"messageId": name, **members}
    task: Answer = (await one.call("ada-key", "SendMessage", params)).json()["result"]["task"]
    return task


@pytest.mark.requirement("LT-19")
async def test_a_further_attempt_knows_the_answer(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    rig.peer.hold()
    drawing = [
        asyncio.create_task(send(one, f"m-{what}", f"report {what}", contextId="c"))
        for what in ("boat", "ship")
    ]
    await wait_until(lambda: rig.counted() == len(drawing), 20, "both are at the agent")
    rig.peer.release_all()
    drawn = [(await each)["id"] for each in drawing]
    asked = await send(one, "m-1", "fail red", contextId="c", metadata={NAMED: ["result"]})
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    failed = await send(one, "m-2", max(drawn), taskId=asked["id"])
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    await post(one, "ada", f"/v1/tasks/{asked['id']}/retry", {"reason": "again"})

    def list_sent() -> list[Answer]:
        return [cast("Answer", each) for each in rig.peer.messages if "red" in str(each)]

    await wait_until(lambda: len(list_sent()) == 2, 20, "it is sent again")
    first, second = list_sent()
    assert first["referenceTaskIds"] == second["referenceTaskIds"]
    assert first["parts"] == second["parts"]
    assert NAMED not in str(second)
    record = (await ask(one, "ada", f"/v1/tasks/{asked['id']}")).json()
    edges = [edge["target"] for edge in record["relationships"] if edge["kind"] == "source_task"]
    assert edges.count(max(drawn)) == 1
    assert len(record["attempts"]) == 2
