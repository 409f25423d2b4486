"""Whole gateways in process over one engine, and a stock a2a-sdk agent that dials into one of them.

The agent has no port. ``Agent`` is its application and its executed messages; ``link`` opens one link to a gateway,
which a test cuts and reopens as needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import orjson
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from starlette.applications import Starlette

from passerelle.client.agent import ReverseAgent
from passerelle.client.asgi_app import App
from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance
from tests.integration.callers.rig import Rig as Callers
from tests.integration.callers.rig import run_rig as run_callers
from tests.support.sdk_agent import SdkExecutor, build_card, make_app
from tests.support.waiting import wait_until

Answer = dict[str, Any]
NAME: Final = "builder"
CLIENTS: Final = [
    {
        "name": NAME,
        "serves": [NAME],
        "may_call": [],
        "scopes": ["channels:connect", "agents:serve"],
    },
    {
        "name": "stranger",
        "serves": [],
        "may_call": ["*"],
        "scopes": ["channels:connect", "agents:serve", "a2a:call"],
    },
    {"name": "ada", "scopes": ["a2a:call", "tasks:read", "tasks:write", "channels:connect"]},
]
KEY: Final = "ada-key"
ASKER: Final = "asker"
"""An agent that calls the other one."""


@dataclass
class CountingExecutor(SdkExecutor):
    """Counts its executions by message id."""

    executed: Counter[str] = field(default_factory=Counter[str])

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is not None:
            self.executed[context.message.message_id] += 1
        await super().execute(context, event_queue)


class Agent:
    """The application of a stock agent; its tasks are in memory."""

    def __init__(self) -> None:
        self.executor = CountingExecutor()
        self.tasks = InMemoryTaskStore()
        self.app = self.make()

    def make(self) -> Starlette:
        card = build_card("http://10.0.0.7:9000/", ("JSONRPC/1.0",))
        return make_app(DefaultRequestHandler(self.executor, self.tasks, card), card)

    def forget(self) -> None:
        """Loses every task, like a killed process with its tasks in memory."""
        self.tasks = InMemoryTaskStore()
        self.app = self.make()


@dataclass
class Rig:
    """The parts of a test: callers' rig and agent."""

    callers: Callers
    agent: Agent = field(default_factory=Agent)

    async def start(
        self,
        *,
        outputs: JsonObject | None = None,
        channels: JsonObject | None = None,
        **agent: object,
    ) -> Instance:
        """Starts a gateway; several are instances over one engine."""
        agents = [{"name": NAME, "transport": "channel", **agent}]
        clients = [dict(one) for one in CLIENTS]
        return await self.callers.start(
            agents=agents, clients=clients, outputs=outputs or {}, channels=channels or {}
        )

    async def start_with_asker(
        self,
        *,
        scopes: Sequence[str] = ("a2a:call", "tasks:read", "tasks:write"),
        limits: JsonObject | None = None,
        people: Sequence[dict[str, object]] = (),
        **settings: object,
    ) -> Instance:
        """Starts a gateway with a second agent that dials in and may call the first one but not a third."""
        asker = {
            "name": ASKER,
            "serves": [ASKER],
            "may_call": [NAME],
            "scopes": ["channels:connect", "agents:serve", *scopes],
            "limits": limits or {},
        }
        agents = [{"name": name, "transport": "channel"} for name in (NAME, ASKER, "vault")]
        clients = [*(dict(one) for one in CLIENTS), asker, *people]
        return await self.callers.start(agents=agents, clients=clients, **settings)

    @asynccontextmanager
    async def link_asker(
        self, instance: Instance, *, url: str | None = None, handler: App | None = None
    ) -> AsyncGenerator[ReverseAgent]:
        """Links the second agent; ``url`` may be that of a proxy."""
        asker = ReverseAgent(
            url or find_url(instance),
            token=f"{ASKER}-key",
            name=ASKER,
            handler=handler or Agent().app,
            jitter=lambda: 0.05,
        )
        async with asker:
            await asker.wait_served()
            yield asker

    @asynccontextmanager
    async def link(
        self, instance: Instance, who: str = NAME, *, most: int = 8
    ) -> AsyncGenerator[ReverseAgent]:
        """Opens one link of the agent and waits until it is served."""
        dialling = ReverseAgent(
            find_url(instance),
            token=f"{who}-key",
            name=NAME,
            handler=self.agent.app,
            most=most,
            jitter=lambda: 0.05,
        )
        async with dialling:
            await dialling.wait_served()
            yield dialling


def find_url(instance: Instance) -> str:
    """Returns a gateway's channel URL."""
    return f"{instance.http.base_url}".replace("http", "ws", 1).rstrip("/") + "/v1/channel"


class Caller:
    """A caller of the agent at one gateway, over A2A 1.0 JSON-RPC."""

    def __init__(self, instance: Instance, prefix: str = "m") -> None:
        self.instance = instance
        self._prefix = prefix
        self._sent = 0

    def write(self, text: str, **members: object) -> JsonObject:
        self._sent += 1
        message: JsonObject = {
            "messageId": f"{self._prefix}-{self._sent}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **cast("JsonObject", members),
        }
        return {"message": message}

    async def ask(self, method: str, params: JsonObject) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.instance.http.post(f"/agents/{NAME}", json=body, headers=_headers())
        return cast("Answer", answer.json())

    async def call(self, method: str, params: JsonObject) -> Answer:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return cast("Answer", answer["result"])

    async def send(self, text: str, **members: object) -> Answer:
        """Sends a message and waits; returns its Task."""
        return cast("Answer", (await self.call("SendMessage", self.write(text, **members)))["task"])

    async def begin(self, text: str) -> Answer:
        """Sends a message; returns its Task as soon as it exists."""
        params = {**self.write(text), "configuration": {"returnImmediately": True}}
        return cast("Answer", (await self.call("SendMessage", cast("JsonObject", params)))["task"])

    async def read(self, task: Answer) -> Answer:
        return await self.call("GetTask", {"id": task["id"]})

    async def read_record(self, task_id: str) -> Answer:
        """Returns the local record of a task."""
        answer = await self.instance.http.get(f"/v1/tasks/{task_id}", headers=_headers())
        return cast("Answer", answer.json())

    async def until(self, task: Answer, state: str) -> Answer:
        """Waits for a state; returns the Task."""

        async def look() -> Answer | None:
            found = await self.read(task)
            return found if found["status"]["state"] == f"TASK_STATE_{state}" else None

        found = await wait_until(look, 10, f"the task is {state}")
        assert found is not None
        return found

    async def follow(self, method: str, params: JsonObject) -> AsyncGenerator[Answer]:
        """Yields the frames of a stream as they arrive."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.instance.http.stream(
            "POST", f"/agents/{NAME}", json=body, headers=_headers()
        ) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield orjson.loads(line.removeprefix("data:"))["result"]

    async def collect(self, method: str, params: JsonObject) -> list[Answer]:
        async with aclosing(self.follow(method, params)) as frames:
            return [frame async for frame in frames]


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}


def read_texts(task: Answer) -> list[str]:
    """Returns the texts of a task's artifacts."""
    return [
        part["text"]
        for artifact in task.get("artifacts", [])
        for part in artifact["parts"]
        if "text" in part
    ]


@asynccontextmanager
async def run_rig(url: str, folder: Path) -> AsyncGenerator[Rig]:
    """Starts with an empty engine and an agent without a link."""
    async with run_callers(url, folder) as callers:
        rig = Rig(callers)
        yield rig
        rig.agent.executor.silence.set()
