"""The clients of ``/v1`` against a gateway: tasks and approvals, asynchronous and synchronous."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from passerelle.client.api import (
    ApiClient,
    ApiError,
    ApiTask,
    Lost,
    Replayed,
    SyncApiClient,
    WaitTimeout,
    Won,
)
from passerelle.demo.processes import GatewayProcess, run_peers
from tests.support.ports import find_free_port
from tests.support.processes import run_gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
ASKED = frozenset({"waiting_permission", "waiting_input"})


@contextlib.asynccontextmanager
async def open_harness(folder: Path) -> AsyncGenerator[GatewayProcess]:
    async with run_peers(("echo", "payments", "report"), folder) as peers:
        agents = {name: peer.url for name, peer in peers.items()}
        async with run_gateway(folder, agents) as gateway:
            yield gateway


async def test_tasks_and_approvals_asynchronously(tmp_path: Path) -> None:
    async with (
        open_harness(tmp_path) as harness,
        ApiClient(harness.url, token=harness.token) as client,
    ):
        turn = await client.send("payments", "40 EUR to the baker", key="order-1")
        again = await client.send("payments", "40 EUR to the baker", key="order-1")
        assert (again.task_id, turn.repeated, again.repeated) == (turn.task_id, False, True)
        waiting = await client.wait_for_task(turn.task_id, until=ASKED)
        assert (waiting.status in ASKED, waiting.agent) == (True, "payments")
        (approval,) = (await client.list_approvals(task_id=turn.task_id)).items
        assert (approval.state, approval.delivery, approval.agent) == (
            "pending",
            "none",
            "payments",
        )
        assert approval == await client.get_approval(approval.action_id)
        won = await client.decide(approval, "allow", comment="as agreed", decision_id="d-1")
        assert isinstance(won, Won)
        assert (won.decision["outcome"], won.decision["comment"]) == ("allowed", "as agreed")
        assert isinstance(
            await client.decide(approval, "allow", decision_id="d-1", comment="as agreed"), Replayed
        )
        late = await client.decide(approval, "deny")
        assert isinstance(late, Lost)
        assert late.winner["outcome"] == "allowed"
        done = await client.wait_for_task(turn.task_id, timeout_s=20)
        assert (done.status, done.is_ended) == ("completed", True)

        async def list_closed() -> list[str]:
            return [one.action_id for one in (await client.list_approvals(state="closed")).items]

        # The relay updates the list of ended tasks, soon after the end.
        closed = await wait_until(list_closed, 20, "the approval is among those that ended")
        assert closed == [approval.action_id]

        created = await client.create_task("report", "chunks=900 every=1", title="A long one")
        assert (created.status, created.title) == ("accepted", "A long one")
        started = await client.start_task(created.task_id)
        assert started.task_id == created.task_id
        with pytest.raises(WaitTimeout) as caught:
            await client.wait_for_task(created.task_id, timeout_s=0.2)
        assert caught.value.task.task_id == created.task_id
        assert await client.cancel_task(created.task_id, reason="enough") == "requested"
        assert (await client.wait_for_task(created.task_id, timeout_s=20)).status == "cancelled"
        assert await client.cancel_task(created.task_id) == "already_cancelled"
        first = await client.list_tasks(page_size=1)
        assert (len(first.items), bool(first.next_page_token)) == (1, True)
        found = [task.task_id async for task in client.iterate_tasks()]
        assert {turn.task_id, created.task_id} == set(found)
        with pytest.raises(ApiError) as refused:
            await client.get_task("task_nope")
        assert (refused.value.status, refused.value.code) == (404, "not_found")


async def test_tasks_and_approvals_synchronously(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await asyncio.to_thread(play_synchronously, harness)


def play_synchronously(harness: GatewayProcess) -> None:
    with SyncApiClient(harness.url, token=harness.token) as client:
        turn = client.send("payments", "17 EUR")
        client.wait_for_task(turn.task_id, until=ASKED)
        (approval,) = client.list_approvals(risk="low").items
        assert isinstance(client.decide(approval, "deny"), Won)
        ended: ApiTask = client.wait_for_task(turn.task_id, timeout_s=20)
        assert ended.is_ended
        sent = client.send("echo", "hello")
        assert client.wait_for_task(sent.task_id, timeout_s=20).status == "completed"
        assert [one.task_id for one in client.iterate_tasks(agent="echo")] == [sent.task_id]
        with pytest.raises(ApiError) as refused:
            client.send("nobody", "hello")
        assert refused.value.code == "not_found"


async def test_wrong_token_and_unreachable_gateway_are_errors(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        async with ApiClient(harness.url, token="psr_wrong") as client:
            with pytest.raises(ApiError) as refused:
                await client.list_tasks()
        assert refused.value.status == 401
    url = f"http://127.0.0.1:{find_free_port()}"
    with SyncApiClient(url, token="t", tries=2) as client, pytest.raises(httpx.ConnectError):
        client.list_tasks()


def test_both_have_the_same_methods() -> None:
    def list_methods(kind: type[object]) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert list_methods(ApiClient) == list_methods(SyncApiClient)
