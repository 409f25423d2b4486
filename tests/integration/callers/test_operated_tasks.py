"""An operator pauses, resumes and retries tasks of other owners, in its own name, and sees nothing more of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
import pytest
from starlette.applications import Starlette

from passerelle.core.event_type import EventType
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemIds
from tests.integration.callers.test_oversight import CLIENTS, OUT, UNKNOWN, FixedAuthenticator, get
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
OPERATORS: Final[list[dict[str, object]]] = [
    {"name": "ops", "scopes": ["tasks:operate"]},
    {"name": "off", "scopes": ["tasks:operate"], "may_call": ["another"]},
]
VERBS: Final = ("pause", "resume", "retry")


async def act(
    one: Instance, who: str, task: str, verb: str, key: str | None = None, **body: str
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {who}-key"} | ({"Idempotency-Key": key} if key else {})
    return await one.http.post(f"/v1/tasks/{task}/{verb}", json=body, headers=headers)


async def create(one: Instance, text: str) -> tuple[str, str]:
    """Creates a task of Ada's without starting it; returns the task and its session."""
    headers = {"Authorization": "Bearer ada-key"}
    body = {"agent": "echo", "objective": text, "title": "of Ada's"}
    made = (await one.http.post("/v1/tasks", json=body, headers=headers)).json()["task"]
    return str(made["taskId"]), str(made["sessionId"])


async def until(one: Instance, task: str, status: str) -> None:
    async def has_status() -> bool:
        return str((await get(one, "ada", f"/v1/tasks/{task}")).json()["status"]) == status

    await wait_until(has_status, 20, f"the task is {status}")


async def list_facts(one: Instance, session: str, kind: EventType) -> list[Answer]:
    return [event for event in await one.read_session(session) if event["type"] == kind]


async def test_operator_pauses_and_resumes_a_task_of_another_owner(rig: Rig) -> None:
    one = await rig.start(clients=[*CLIENTS, *OPERATORS])
    task, session = await create(one, "echo the boats")
    paused = await act(one, "ops", task, "pause", "p-1", reason="night")
    assert paused.json()["task"] == {"taskId": task, "status": "paused"}, paused.text
    assert "Ada" not in paused.text
    again = await act(one, "ops", task, "pause", "p-1", reason="night")
    assert again.json() == {**paused.json(), "repeated": True}
    [fact] = await list_facts(one, session, EventType.TASK_PAUSED)
    assert (fact["payload"]["actor"], fact["payload"]["reason"]) == ("ops", "night")
    assert (await get(one, "ada", f"/v1/tasks/{task}")).json()["status"] == "paused"
    resumed = await act(one, "ops", task, "resume")
    assert resumed.json()["task"] == {"taskId": task, "status": "accepted"}, resumed.text
    [fact] = await list_facts(one, session, EventType.TASK_RESUMED)
    assert "ops" in fact["payload"]["reason"]
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


@pytest.mark.parametrize(
    "rules", [[], [{"name": "again", "effect": "allow", "when": "true", "about": ["commands"]}]]
)
async def test_operator_retries_a_task_of_another_owner(
    rig: Rig, rules: list[dict[str, object]]
) -> None:
    policy = {"policy": {"rules": rules}} if rules else {}
    one = await rig.start(clients=[*CLIENTS, *OPERATORS], **policy)
    task, session = await create(one, "fail")
    await act(one, "ada", task, "start")
    await until(one, task, "failed")
    sent = rig.counted()
    elsewhere = await act(one, "ops", task, "retry", agent="echo", reason="elsewhere")
    assert elsewhere.status_code == httpx.codes.NOT_FOUND, "to choose an agent takes a2a:call"
    tried = await act(one, "ops", task, "retry", "r-1", reason="it was the network")
    assert tried.status_code == httpx.codes.ACCEPTED, tried.text
    assert tried.json()["task"].keys() == {"taskId", "status"}
    assert (await act(one, "ops", task, "retry", "r-1", reason="it was the network")).json()[
        "repeated"
    ]
    await wait_until(lambda: rig.counted() > sent, 20, "the agent is asked again")
    retries = await list_facts(one, session, EventType.TASK_RETRYING)
    assert [retry["payload"]["actor"] for retry in retries if retry["payload"].get("actor")] == [
        "ops"
    ]
    await until(one, str(tried.json()["task"]["taskId"]), "failed")
    assert rig.counted() == sent + 1
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


@pytest.mark.parametrize("verb", VERBS)
async def test_task_that_may_not_be_operated_equals_an_unknown_one_in_each_byte(
    rig: Rig, verb: str
) -> None:
    one = await rig.start(clients=[*CLIENTS, *OPERATORS])
    task, session = await create(one, "fail")
    await act(one, "ada", task, "start")
    await until(one, task, "failed")
    before = await one.read_session(session)
    for who in ("off", "bob"):
        refused, unknown = [
            await act(one, who, name, verb, reason="why") for name in (task, UNKNOWN[0])
        ]
        assert refused.status_code == unknown.status_code == httpx.codes.NOT_FOUND, who
        assert refused.text.replace(task, UNKNOWN[0]) == unknown.text
    assert (await act(one, "eve", task, verb, reason="why")).status_code == httpx.codes.FORBIDDEN
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        paths = (f"/v1/tasks/{name}/{verb}" for name in (task, UNKNOWN[0]))
        refusal, missed = [(await http.post(path, json={"reason": "why"})).text for path in paths]
    assert refusal.replace(task, UNKNOWN[0]) == missed
    assert await one.read_session(session) == before, "nothing was written"


@pytest.mark.parametrize("verb", ["start", "complete", "fail", "progress", "give", "link"])
async def test_operator_may_do_nothing_else_to_a_task(rig: Rig, verb: str) -> None:
    one = await rig.start(clients=[*CLIENTS, *OPERATORS])
    task, _ = await create(one, "echo one")
    assert (await act(one, "ops", task, verb)).status_code == httpx.codes.FORBIDDEN
