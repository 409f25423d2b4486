"""Two replicas of the guide's agent over one server: the SDK's own handler on the product's task store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import httpx
import orjson
import pytest

from passerelle.client.tasks import RedisVersionedTaskStore
from passerelle.demo.processes import Child, start
from passerelle.store.engine_binary import find_engine
from tests.support.client_package import write_client
from tests.support.engine import run_server
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "share-tasks-between-replicas.md"
AGENT: Final = next(
    block
    for block in re.findall(
        r"^```python[^\n]*\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    if "class Counter" in block
)
TERMINAL: Final = {"TASK_STATE_COMPLETED", "TASK_STATE_CANCELED", "TASK_STATE_FAILED"}
Answer = dict[str, Any]

pytestmark = pytest.mark.anyio


@dataclass
class Replica:
    """One running replica."""

    name: str
    folder: Path
    redis_url: str
    http: httpx.AsyncClient
    port: int
    child: Child | None = field(default=None, init=False)

    async def start(self) -> None:
        """Starts it, and returns when it answers."""
        arguments = ("agent", str(self.port), self.redis_url)
        self.child = start(self.name, arguments, self.folder)
        await wait_until(self.answers, 20, f"{self.name} answers")

    async def answers(self) -> bool:
        assert self.child is not None
        if self.child.has_ended():
            raise self.child.explain("ended")
        try:
            return (await self.http.get("/.well-known/agent-card.json")).is_success
        except httpx.HTTPError:
            return False

    async def ask(self, method: str, params: Answer) -> Answer:
        """The whole answer of a call."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return cast("Answer", (await self.http.post("/", json=body)).json())

    async def call(self, method: str, params: Answer) -> Answer:
        """The result of a call that must succeed."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return cast("Answer", answer["result"])

    async def send(self, text: str, *, at_once: bool = False, task_id: str = "") -> Answer:
        """The task of a message."""
        result = await self.call("SendMessage", write(text, at_once=at_once, task_id=task_id))
        return cast("Answer", result["task"])

    async def get(self, task_id: str) -> Answer:
        return await self.call("GetTask", {"id": task_id})

    async def await_end(self, task_id: str) -> Answer:
        async def look() -> Answer | None:
            task = await self.get(task_id)
            return task if task["status"]["state"] in TERMINAL else None

        task = await wait_until(look, 10, f"{task_id} ends")
        assert task is not None
        return task

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        """The events of a task, as they arrive."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
        async with self.http.stream("POST", "/", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield orjson.loads(line.removeprefix("data:"))["result"]


def write(text: str, *, at_once: bool = False, task_id: str = "") -> Answer:
    """The params of a SendMessage."""
    message: Answer = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    if task_id:
        message["taskId"] = task_id
    return {"message": message, "configuration": {"returnImmediately": at_once}}


def read_numbers(task: Answer) -> str:
    """The numbers counted so far."""
    return "".join(part["text"] for part in task["artifacts"][0]["parts"])


@asynccontextmanager
async def run_replicas(folder: Path, *names: str) -> AsyncGenerator[list[Replica]]:
    """Replicas of the guide's agent over one server."""
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    write_client(folder)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        replicas: list[Replica] = []
        for name in names:
            port = find_free_port()
            http = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}",
                    headers={"A2A-Version": "1.0"},
                    timeout=20,
                    # A connection kept for the next test would be a new one after five seconds.
                    limits=httpx.Limits(max_keepalive_connections=0),
                )
            )
            replicas.append(Replica(name, folder, server.url, http, port))
        try:
            await asyncio.gather(*(replica.start() for replica in replicas))
            yield replicas
        finally:
            for replica in replicas:
                if replica.child is not None:
                    replica.child.kill()


@pytest.fixture(scope="module")
async def replicas(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[list[Replica]]:
    async with run_replicas(tmp_path_factory.mktemp("replicas"), "one", "two") as running:
        yield running


async def test_task_of_one_replica_is_read_listed_and_followed_on_the_other(
    replicas: list[Replica],
) -> None:
    one, two = replicas
    begun = await one.send("6", at_once=True)
    events = [event async for event in two.subscribe(begun["id"])]
    assert "task" in events[0]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    followed = "".join(
        part["text"]
        for event in events
        if "artifactUpdate" in event
        for part in event["artifactUpdate"]["artifact"]["parts"]
    )
    before = read_numbers(events[0]["task"]) if events[0]["task"].get("artifacts") else ""
    assert before + followed == "1 2 3 4 5 6 "
    assert followed
    assert await two.get(begun["id"]) == await one.get(begun["id"])
    listed = (await two.call("ListTasks", {}))["tasks"]
    assert begun["id"] in [task["id"] for task in listed]


async def test_task_of_one_replica_is_cancelled_on_the_other_and_stops(
    replicas: list[Replica],
) -> None:
    one, two = replicas
    begun = await one.send("50", at_once=True)
    cancelled = await two.call("CancelTask", {"id": begun["id"]})
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
    seen = await one.get(begun["id"])
    assert seen["status"]["state"] == "TASK_STATE_CANCELED"
    again = await two.ask("CancelTask", {"id": begun["id"]})
    assert again["error"]["code"] == -32002
    # The working replica notices the cancel at its next write, and does not overwrite the end: by the time that it
    # would have counted to three, that write has happened.
    assert read_numbers(await one.send("3")) == "1 2 3 "
    assert await one.get(begun["id"]) == seen


async def test_task_that_waits_on_one_replica_continues_on_the_other(
    replicas: list[Replica],
) -> None:
    one, two = replicas
    asked = await one.send("hello")
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    done = await two.send("3", task_id=asked["id"])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (done["id"], read_numbers(done)) == (asked["id"], "1 2 3 ")
    assert await one.get(asked["id"]) == await two.get(asked["id"])
    refused = await one.ask("SendMessage", write("3", task_id=asked["id"]))
    assert "error" in refused


async def test_two_answers_at_once_leave_one_history(replicas: list[Replica]) -> None:
    one, two = replicas
    asked = await one.send("hello")
    await asyncio.gather(
        *(replica.ask("SendMessage", write("3", task_id=asked["id"])) for replica in replicas)
    )
    task = await one.await_end(asked["id"])
    assert task == await two.get(asked["id"])
    async with RedisVersionedTaskStore(one.redis_url, name="counter") as tasks:
        page = await (await tasks.open()).tasks.read_events(asked["id"], 0)
    versions = [version for version, _ in page.events]
    assert versions == sorted(set(versions))
    assert page.version >= versions[-1]


async def test_task_of_a_killed_replica_continues_on_the_other(tmp_path: Path) -> None:
    async with run_replicas(tmp_path, "one", "two") as (one, two):
        asked = await one.send("hello")
        assert one.child is not None
        one.child.kill()
        done = await two.send("2", task_id=asked["id"])
        assert read_numbers(done) == "1 2 "
        await one.start()
        assert await one.get(asked["id"]) == await two.get(asked["id"])
