"""An agent with bounded slots: further tasks are queued, fair between callers and across instances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.integration.callers.rig import Instance, Rig
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ONE = {"limits": {"concurrency": 1}}


def client(name: str) -> dict[str, object]:
    return {"name": name, "scopes": ["a2a:call", "tasks:read", "tasks:write"]}


async def act(one: Instance, method: str, path: str, key: str = "ada-key", **body: object) -> Any:  # noqa: ANN401  JSON
    headers = {"Authorization": f"Bearer {key}"}
    answer = await one.http.request(method, path, headers=headers, json=body or None)
    assert answer.is_success, answer.text
    return answer.json()


async def start(one: Instance, objective: str, priority: int = 0, key: str = "ada-key") -> str:
    """Creates and starts a task; returns its id."""
    made = await act(
        one, "POST", "/v1/tasks", key, agent="echo", objective=objective, priority=priority
    )
    name = str(made["task"]["taskId"])
    await act(one, "POST", f"/v1/tasks/{name}/start", key)
    return name


async def await_status(one: Instance, task: str, *statuses: str, key: str = "ada-key") -> Any:  # noqa: ANN401  JSON
    async def look() -> Any:  # noqa: ANN401  JSON
        shown = await act(one, "GET", f"/v1/tasks/{task}", key)
        return shown if shown["status"] in statuses else None

    return await wait_until(look, 30, f"{task} is {statuses}")


@asynccontextmanager
async def busy(rig: Rig, one: Instance) -> AsyncGenerator[None]:
    """The agent works on one message while the block runs."""
    before = rig.counted()
    rig.peer.hold()
    working = asyncio.create_task(one.send("ada-key", "first"))
    await wait_until(lambda: rig.counted() == before + 1, 15, "the agent is at work")
    yield
    rig.peer.release_all()
    assert (await working).is_success


@pytest.mark.requirement("EVC-4", "ST-3", "TEV-3", "OBJ-11")
async def test_tasks_for_an_agent_without_a_free_slot_are_queued_with_their_positions(
    rig: Rig,
) -> None:
    one = await rig.start(clients=[client("ada")], agent=ONE)
    async with busy(rig, one):
        waiting = [await start(one, f"number {number}") for number in range(2)]
        for position, task in enumerate(waiting, 1):
            shown = await act(one, "GET", f"/v1/tasks/{task}")
            assert shown["status"] == "queued"
            assert "agent 'echo' has as much work as its limits allow" in shown["statusReason"]
            stored = await one.read_session(shown["sessionId"])
            (queued,) = [event["payload"] for event in stored if event["type"] == "task.queued"]
            assert (queued["queue"], queued["position"]) == ("agent:echo", position)
            assert (queued["cause"], queued["attempt"]["ordinal"]) == ("capacity", 1)
            explained = await act(one, "GET", f"/v1/tasks/{task}/explain")
            assert queued["reason"] in explained["waiting"][0]["text"]
        assert rig.counted() == 1
    for task in waiting:
        await await_status(one, task, "completed")
    assert rig.peer.texts == ["first", "number 0", "number 1"]


async def test_task_cancelled_in_the_queue_uses_no_turn_of_its_caller(rig: Rig) -> None:
    one = await rig.start(clients=[client("ada"), client("bob")], agent=ONE)
    async with busy(rig, one):
        cancelled = [await start(one, f"cancelled {number}") for number in range(3)]
        await start(one, "ada's")
        for number in range(2):
            await start(one, f"bob's {number}", key="bob-key")
        for task in cancelled:
            await act(one, "POST", f"/v1/tasks/{task}/cancel")
    await wait_until(lambda: len(rig.peer.texts) == 4, 15, "all of them have come in")
    assert rig.peer.texts == ["first", "ada's", "bob's 0", "bob's 1"]


@pytest.mark.requirement("TR-8")
async def test_higher_priority_starts_first_once_there_is_a_slot(rig: Rig) -> None:
    one = await rig.start(clients=[client("ada")], agent=ONE)
    async with busy(rig, one):
        low = await start(one, "low", -10)
        high = await start(one, "high", 10)
    await await_status(one, low, "completed")
    await await_status(one, high, "completed")
    assert rig.peer.texts == ["first", "high", "low"]


@pytest.mark.requirement("MK-6")
async def test_task_queued_three_times_is_sent_once(rig: Rig) -> None:
    one = await rig.start(clients=[client("ada")], agent=ONE)
    queues, dispatch = one.gateway.parts.queues, one.gateway.parts.dispatch
    async with busy(rig, one):
        task = await start(one, "once")
        record = await dispatch.read_task(task)
        assert record is not None
        for _ in range(3):
            await queues.enter(record)
        assert await one.gateway.store.queues.count(["echo"]) == [1]
        assert rig.counted() == 1, "the limit is not passed"
    await await_status(one, task, "completed")
    # The task runs or has ended: a further enqueue leaves the queue empty.
    await queues.enter(record)

    async def is_empty() -> bool:
        return await one.gateway.store.queues.count(["echo"]) == [0]

    await wait_until(is_empty, 10, "the queue is empty again")
    assert rig.peer.texts == ["first", "once"]


async def test_callers_of_a_busy_agent_wait_as_for_slow_work(rig: Rig) -> None:
    """A message that has no Task yet gets its response, whichever instance starts it."""
    one = await rig.start(clients=[client("ada")], agent=ONE)
    async with busy(rig, one):
        waiting = [asyncio.create_task(one.send("ada-key", f"n {n}")) for n in range(5)]

        async def are_all_queued() -> bool:
            return await one.gateway.store.queues.count(["echo"]) == [5]

        await wait_until(are_all_queued, 15, "they are queued")
        at_once = await one.send("ada-key", "later", returnImmediately=True)
        submitted = at_once.json()["result"]["task"]
        assert submitted["status"]["state"] == "TASK_STATE_SUBMITTED"
        assert submitted["metadata"]["urn:passerelle:status"]["reason"] == "agent_capacity"
        assert "5 wait before it" in str(submitted["status"])
        assert rig.counted() == 1
    for answer in await asyncio.gather(*waiting):
        state = answer.json()["result"]["task"]["status"]["state"]
        assert state == "TASK_STATE_COMPLETED"
    await await_status(one, submitted["id"], "completed")
    assert rig.peer.texts[0] == "first"
    assert rig.peer.texts[-1] == "later"


async def test_slots_are_never_exceeded_and_callers_share_them_over_two_instances(rig: Rig) -> None:
    """A burst of one caller that arrives first does not starve the others."""
    names = ("flood", "bob", "cleo", "dan")
    clients = [client(name) for name in names]
    agent = {"limits": {"concurrency": 3}}
    ends = [await rig.start(clients=[*clients], agent=agent) for _ in range(2)]
    rig.peer.hold()
    order = ["flood"] * 40 + [name for _ in range(10) for name in names[1:]]
    tasks = {
        await start(ends[number % 2], name, key=f"{name}-key"): f"{name}-key"
        for number, name in enumerate(order)
    }
    assert rig.counted() == 3
    rig.peer.release_all()
    for task, key in tasks.items():
        await await_status(ends[0], task, "completed", key=key)
    assert len(rig.peer.texts) == len(tasks) == 70
    # First the tasks that the burst started before the others arrived, then round robin.
    served = Counter(rig.peer.texts[3:39])
    assert max(served.values()) - min(served.values()) <= 2, served
    assert rig.peer.most_sends == 3


async def test_client_without_the_scope_cannot_pause_an_agent(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "ada", "scopes": ["a2a:call", "tasks:write"]}])
    headers = {"Authorization": "Bearer ada-key"}
    refused = await one.http.post("/v1/agents/echo/pause", headers=headers, json={})
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert (await one.send("ada-key")).json()["result"]["task"]
