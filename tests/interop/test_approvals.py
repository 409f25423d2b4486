"""Agents of real packages request approval, people decide, and the agents follow the decision: no network, no model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, cast

import httpx
import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.interop.environments import ADK, PYTHON_0_3, require
from tests.interop.scripted_clients import run_agent
from tests.support.loops import SHARED, Backend
from tests.support.processes import Answer, Caller, open_caller, run_gateway
from tests.support.waiting import wait_until

WAITING: Final = "TASK_STATE_INPUT_REQUIRED"
SDKS: Final = ("sdk_1_0", "sdk_0_3")

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Town:
    """A caller of the gateway in front of the agents, and the URL of the google-adk agent."""

    caller: Caller
    adk: str

    def of(self, agent: str) -> Caller:
        """The same caller, for one agent."""
        return Caller(self.caller.http, agent)

    async def read_ran(self) -> list[JsonObject]:
        """The calls of the google-adk agent's tool so far."""
        async with httpx.AsyncClient(trust_env=False) as http:
            return cast("list[JsonObject]", (await http.get(f"{self.adk}/ran")).json())


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def started(
    anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[tuple[GatewayProcess, str]]:
    """The gateway in front of all agents, and the google-adk agent, started once."""
    require(PYTHON_0_3, ADK)
    async with AsyncExitStack() as stack:
        adk = await stack.enter_async_context(run_agent("adk", "JSONRPC"))
        agents = {
            "adk": adk,
            "sdk_0_3": await stack.enter_async_context(run_agent("python_0_3", "JSONRPC")),
            "sdk_1_0": await stack.enter_async_context(run_agent("python_1_0", "JSONRPC")),
        }
        gateway = await stack.enter_async_context(
            run_gateway(tmp_path_factory.mktemp("gateway"), agents)
        )
        yield gateway, adk


@pytest.fixture
async def town(started: tuple[GatewayProcess, str]) -> AsyncGenerator[Town]:
    """A caller for one test."""
    gateway, adk = started
    async with open_caller(gateway, "adk") as caller:
        yield Town(caller, adk)


async def find_questions(caller: Caller, task: Answer) -> list[Answer]:
    """The open approvals of a task, once they are in the inbox."""
    record = await caller.read_record(task["id"])
    wanted = list(record["openActions"])
    return [await caller.read(f"/v1/approvals/{action}") for action in wanted]


async def decide(caller: Caller, view: Answer, option: str) -> None:
    """Answers like a person's device."""
    answer: JsonObject = {
        "rev": view["rev"],
        "digest": view["digest"],
        "decisionId": f"dec_{view['actionId']}",
        "optionId": option,
    }
    path = f"/v1/approvals/{view['actionId']}/decision"
    headers = {"Idempotency-Key": f"key-{view['actionId']}"}
    decided = await caller.http.post(path, json=answer, headers=headers)
    assert decided.json().get("outcome") == "won", decided.text


@pytest.mark.parametrize(("option", "runs"), [("approve", 1), ("reject", 0)])
async def test_tool_of_google_adk_runs_once_if_a_person_approves(
    town: Town, option: str, runs: int
) -> None:
    caller, before = town.of("adk"), await town.read_ran()
    task = await caller.send("delete the old rows")
    assert task["status"]["state"] == WAITING
    [view] = await find_questions(caller, task)
    assert view["kind"] == "permission"
    assert "delete_rows" in str(view["subject"])
    words = await caller.send("yes, approved", taskId=task["id"])
    assert words["status"]["state"] == WAITING
    assert await town.read_ran() == before
    await decide(caller, view, option)
    done = await caller.await_end(task["id"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(await town.read_ran()) - len(before) == runs


async def test_two_calls_of_google_adk_are_decided_one_by_one(town: Town) -> None:
    caller, before = town.of("adk"), await town.read_ran()
    task = await caller.send("delete both")
    views = await find_questions(caller, task)
    assert len({view["groupId"] for view in views}) == 1
    assert len(views) == 2
    for view in views:
        is_first = "table-0" in str(view["subject"])
        await decide(caller, view, "approve" if is_first else "reject")
    await caller.await_end(task["id"])
    ran = (await town.read_ran())[len(before) :]
    assert [one["table"] for one in ran] == ["table-0"]


@pytest.mark.parametrize("option", ["pay", "leave"])
@pytest.mark.parametrize("agent", SDKS)
async def test_agent_of_either_sdk_is_answered_in_the_gateways_form(
    town: Town, agent: str, option: str
) -> None:
    caller = town.of(agent)
    task = await caller.send("pay the baker")
    [view] = await find_questions(caller, task)
    assert [one["optionId"] for one in view["options"]] == ["pay", "leave"]
    words = await caller.send("yes, pay", taskId=task["id"])
    assert words["status"]["state"] == WAITING
    await decide(caller, view, option)
    done = await caller.await_end(task["id"])
    assert done["artifacts"][0]["parts"] == [{"text": f"decided: {option}"}]


async def test_approvals_enter_and_leave_the_inbox(town: Town) -> None:
    caller = town.of("sdk_1_0")
    task = await caller.send("pay the baker")
    [view] = await find_questions(caller, task)

    async def lists() -> bool:
        page = await caller.read("/v1/approvals?limit=100")
        return any(one["actionId"] == view["actionId"] for one in page["pending"])

    await wait_until(lists, 15, "the question is in the inbox")
    await decide(caller, view, "leave")
    await caller.await_end(task["id"])

    async def lists_not() -> bool:
        return not await lists()

    await wait_until(lists_not, 15, "it is not there any more")
