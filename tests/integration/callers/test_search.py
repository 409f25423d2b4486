"""A task is found by any of its ids or its title; a task of another owner equals an unknown one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemIds
from tests.integration.callers.test_operated_tasks import act, until
from tests.integration.callers.test_oversight import CLIENTS, OUT, UNKNOWN, FixedAuthenticator, get
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
TITLE: Final = "Größe of the Boats"


async def make(one: Instance, title: str = TITLE) -> Answer:
    """Starts a task of Ada's that waits for input; returns its record."""
    headers = {"Authorization": "Bearer ada-key"}
    body = {"agent": "echo", "objective": "ask which boat", "title": title}
    made = (await one.http.post("/v1/tasks", json=body, headers=headers)).json()["task"]
    await act(one, "ada", str(made["taskId"]), "start")
    await until(one, str(made["taskId"]), "waiting_input")
    return dict((await get(one, "ada", f"/v1/tasks/{made['taskId']}")).json())


async def find(one: Instance, who: str, q: str, more: str = "") -> list[str]:
    answer = await get(one, who, f"/v1/tasks?q={quote(q)}{more}")
    assert answer.status_code == httpx.codes.OK, answer.text
    return [str(task["taskId"]) for task in answer.json()["tasks"]]


async def test_each_id_and_a_part_of_the_title_find_it(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    record, other = await make(one), await make(one, "tides")
    task = str(record["taskId"])
    attempts = (await get(one, "ada", f"/v1/tasks/{task}/attempts")).json()["attempts"]
    ids = [record["sessionId"], record["threadId"], record["scope"]["contextId"]]
    ids += [attempts[0][name] for name in ("runId", "messageId", "remoteTaskId")]
    for q in (task, *map(str, ids), "the boats", "GRÖSSE", TITLE):
        assert await find(one, "ada", q) == [task], q
        assert await find(one, "bob", q) == [], q
    assert await find(one, "ada", str(other["taskId"])) == [other["taskId"]]
    assert await find(one, "ada", "no such thing") == await find(one, "ada", UNKNOWN[0]) == []
    assert await find(one, "ada", task, "&status=completed") == []
    assert await find(one, "ada", task, "&agent=other") == []


async def test_overseer_finds_tasks_of_other_owners(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    record = await make(one)
    task = str(record["taskId"])
    for q in (task, str(record["sessionId"]), "boats"):

        async def is_found(q: str = q) -> bool:
            return await find(one, "eve", q, "&owners=all") == [task]

        await wait_until(is_found, 20, f"{q} is found")
        assert await find(one, "far", q, "&owners=all") == [], q
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for owners in ("mine", "all"):
            path = f"/v1/tasks?owners={owners}&q="
            assert (await http.get(path + task)).text == (await http.get(path + UNKNOWN[0])).text
    for wrong in ("", "x" * 257):
        refused = await get(one, "ada", f"/v1/tasks?q={wrong}")
        assert (refused.status_code, refused.json()["field"]) == (httpx.codes.BAD_REQUEST, "q")


async def test_the_id_of_an_earlier_attempt_finds_the_task_in_its_current_state(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    headers = {"Authorization": "Bearer ada-key"}
    body = {"agent": "echo", "objective": "fail", "title": "again"}
    made = (await one.http.post("/v1/tasks", json=body, headers=headers)).json()["task"]
    task = str(made["taskId"])
    await act(one, "ada", task, "start")
    await until(one, task, "failed")
    tried = await act(one, "ada", task, "retry", reason="once more")
    assert tried.is_success, tried.text
    again = str((await find(one, "ada", task))[0])
    assert await find(one, "ada", again) == [again]
