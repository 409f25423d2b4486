"""Tasks that wait for a quota, over whole gateways: two instances, a reload, jobs, and callers of A2A 0.3."""

from __future__ import annotations

from typing import Any

import pytest

from passerelle.core.principal import Principal
from passerelle.gateway.reload import apply_settings
from passerelle.gateway.settings.model import Settings
from tests.integration.callers.rig import Instance, Rig
from tests.integration.callers.test_agent_queue import act, await_status, start
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def client(calls: int, over: str | None = "wait", name: str = "ada") -> dict[str, object]:
    quota: dict[str, object] = {"calls": calls, "per": "month"}
    if over is not None:
        quota["over"] = over
    scopes = ["a2a:call", "tasks:read", "tasks:write"]
    return {"name": name, "scopes": scopes, "quotas": [quota]}


async def enlarge(one: Instance, calls: int) -> None:
    """Reloads the instance's settings with a larger quota for its client."""
    old = one.settings
    (caller,) = old.clients
    (quota,) = caller.quotas
    more = caller.model_copy(update={"quotas": (quota.model_copy(update={"calls": calls}),)})
    new: Settings = old.model_copy(update={"clients": (more,)})
    await apply_settings(one.gateway, one.access, old, new)
    one.settings = new


def read_state(answer: Any) -> str:  # noqa: ANN401  an answer over HTTP
    return str(answer.json()["result"]["task"]["status"]["state"])


@pytest.mark.requirement("ST-8", "CF-7")
async def test_larger_quota_resumes_waiting_tasks_at_two_instances_once_each(rig: Rig) -> None:
    ends = [await rig.start(clients=[client(2)]) for _ in range(2)]
    for one in ends:
        assert read_state(await one.send("ada-key", "covered")) == "TASK_STATE_COMPLETED"
    waiting: list[str] = []
    for number in range(6):
        answer = await ends[number % 2].send("ada-key", f"over {number}")
        assert read_state(answer) == "TASK_STATE_WORKING"
        waiting.append(str(answer.json()["result"]["task"]["id"]))
    assert await ends[0].gateway.store.queues.count([f"quota:{Principal('ada').key}"]) == [6]
    for task in waiting:
        shown = await act(ends[0], "GET", f"/v1/tasks/{task}")
        assert shown["status"] == "waiting_resource"
        assert "the quota of 2 calls a month is used up" in shown["statusReason"]
    assert rig.counted() == 2
    for one in ends:
        await enlarge(one, 7)
    for task in waiting[:4]:
        await await_status(ends[1], task, "completed")

    async def are_left() -> bool:
        shown = [(await act(ends[0], "GET", f"/v1/tasks/{one}"))["status"] for one in waiting]
        return shown == ["completed"] * 5 + ["waiting_resource"]

    await wait_until(are_left, 40, "what the quota covers has gone on, in order")
    texts = sorted(rig.peer.texts)
    assert texts == sorted(["covered", "covered", *(f"over {number}" for number in range(5))])


async def test_quota_without_an_overflow_setting_refuses(rig: Rig) -> None:
    for over in (None, "refuse"):
        one = await rig.start(clients=[client(0, over)])
        assert (await one.send("ada-key")).status_code == 429
    assert rig.counted() == 0


@pytest.mark.requirement("TEV-7")
async def test_items_of_a_job_and_started_tasks_wait_for_the_quota_of_their_owner(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[client(1)])
    task = await start(one, "covered")
    await await_status(one, task, "completed")
    later = await start(one, "over")
    assert (await act(one, "GET", f"/v1/tasks/{later}"))["status"] == "waiting_resource"
    job = (
        await act(
            one, "POST", "/v1/jobs", title="batch", agents=["echo"], inputs=["echo 1", "echo 2"]
        )
    )["job"]["jobId"]

    async def are_queued() -> bool:
        return await one.gateway.store.queues.count([f"quota:{Principal('ada').key}"]) == [3]

    await wait_until(are_queued, 20, "the items wait as well")
    await enlarge(one, 4)
    await await_status(one, later, "completed")

    async def is_over() -> bool:
        return bool((await act(one, "GET", f"/v1/jobs/{job}"))["status"] == "completed")

    await wait_until(is_over, 30, "the job has ended")
    assert sorted(rig.peer.texts) == ["covered", "echo 1", "echo 2", "over"]


@pytest.mark.requirement("CMD-24")
@pytest.mark.parametrize("over", ["wait", "refuse"])
async def test_job_says_what_its_items_wait_for(rig: Rig, over: str) -> None:
    one = await rig.start(clients=[client(1, over)])
    inputs = ["echo 1", "echo 2", "echo 3"]
    submitted = await act(
        one, "POST", "/v1/jobs", title="batch", agents=["echo"], inputs=inputs, concurrency=2
    )
    job = str(submitted["job"]["jobId"])

    async def read_waits() -> list[dict[str, Any]]:
        shown = await act(one, "GET", f"/v1/jobs/{job}")
        return list(shown["waits"]) if shown["counts"]["completed"] == 1 else []

    (wait,) = await wait_until(read_waits, 20, "one item has completed, and the others wait")
    assert wait["until"].endswith("-01T00:00:00.000Z")
    assert wait == {
        "kind": "quota",
        "items": 2,
        "reason": "the quota of 1 call a month is used up",
        "until": wait["until"],
    }
    await enlarge(one, 3)

    async def is_over() -> bool:
        shown = await act(one, "GET", f"/v1/jobs/{job}")
        return bool(shown["status"] == "completed" and shown["waits"] == [])

    await wait_until(is_over, 30, "the job has ended")


@pytest.mark.requirement("CMD-24")
async def test_schedule_says_which_quota_its_runs_wait_for(rig: Rig) -> None:
    one = await rig.start(clients=[client(1, "refuse")])
    assert read_state(await one.send("ada-key", "covered")) == "TASK_STATE_COMPLETED"
    message = {"parts": [{"text": "echo late"}]}
    created = await act(
        one, "POST", "/v1/schedules", title="late", agent="echo", message=message, everyS=3600
    )
    path = f"/v1/schedules/{created['schedule']['scheduleId']}"
    assert "waitsFor" not in await act(one, "GET", path)
    await act(one, "POST", f"{path}/run")

    async def read_wait() -> str:
        return str((await act(one, "GET", path)).get("waitsFor", ""))

    waits = await wait_until(read_wait, 20, "the run waits")
    assert waits.startswith("the quota of 1 call a month is used up, until 2")
    await enlarge(one, 2)

    async def has_run() -> bool:
        shown = await act(one, "GET", path)
        return bool(shown["recent"]) and "waitsFor" not in shown

    await wait_until(has_run, 30, "the run has begun")


async def test_blocking_v03_caller_gets_the_waiting_task_at_once(rig: Rig) -> None:
    one = await rig.start(clients=[client(1)])
    await one.send("ada-key", "covered")
    message = {
        "kind": "message",
        "messageId": "m-old",
        "role": "user",
        "parts": [{"kind": "text", "text": "over"}],
    }
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {"message": message, "configuration": {"blocking": True}},
    }
    headers = {"Authorization": "Bearer ada-key", "A2A-Version": "0.3"}
    answer = await one.http.post("/agents/echo", json=body, headers=headers)
    task = answer.json()["result"]
    assert (task["kind"], task["status"]["state"]) == ("task", "working")
    assert "is used up" in str(task["status"]["message"])
    assert rig.counted() == 1
