"""The gateway as ``passerelle serve`` puts it together, in this process, and what a test does with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import httpx

from passerelle.core.ids import ALL_SHARDS
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import AccessScope
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.assembly import Gateway, open_gateway
from passerelle.gateway.auth.access import Access
from passerelle.gateway.auth.owner import load_owner_token
from passerelle.gateway.edges import make_edges
from passerelle.gateway.server import Server, bind
from passerelle.gateway.settings.agents import AgentSettings
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.section import WebhookSettings
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.secret import Secret
from passerelle.store import keys
from passerelle.store.targets import Target
from tests.support.clients import make_client
from tests.support.engine import ask
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

Answer = dict[str, Any]
ALLOW: Final = ("http://127.0.0.1:*",)
KEY: Final = Secret("00" * 32)
OTHER: Final = make_client(
    "other",
    "other-key",
    "*",
    scopes=(AccessScope.CALL, AccessScope.READ_TASKS, AccessScope.WRITE_TASKS),
)
WITHIN_S: Final = 10.0


@dataclass
class Rig:
    """What a test has in its hands; ``restart`` gives it another gateway over the same store."""

    settings: Settings
    peer: ScriptedPeer
    receiver: WebhookReceiver
    stack: AsyncExitStack
    token: str
    gateway: Gateway = field(init=False)
    http: httpx.AsyncClient = field(init=False)
    _instance: AsyncExitStack = field(default_factory=AsyncExitStack)
    _sent: int = 0

    async def start(self) -> None:
        """A gateway that serves."""
        stack = self._instance = AsyncExitStack()
        self.gateway = await stack.enter_async_context(open_gateway(self.settings))
        access = Access(self.settings, (Secret(self.token),), SystemClock())
        edges = make_edges(self.gateway, self.settings, access)
        listener, stop = bind("127.0.0.1", 0), asyncio.Event()
        serving = asyncio.create_task(Server(edges.site, listener, edges.drain).serve(stop))

        async def end() -> None:
            stop.set()
            await serving

        stack.push_async_callback(end)
        headers = {"Authorization": f"Bearer {self.token}", "A2A-Version": "1.0"}
        self.http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=listener.url, headers=headers, timeout=20)
        )

    async def stop(self) -> None:
        """Ends the gateway in good order."""
        await self._instance.aclose()

    async def restart(self, **changes: object) -> None:
        """Another gateway, with other settings where ``changes`` say so."""
        await self.stop()
        self.settings = self.settings.model_copy(update=changes)
        await self.start()

    # ------------------------------------------------------------ what callers do

    async def call(self, method: str, params: JsonObject, **headers: str) -> Answer:
        """The answer of a JSON-RPC call."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        response = await self.http.post("/agents/echo", json=body, headers=headers)
        return cast("Answer", response.json())

    async def do(self, method: str, params: JsonObject, **headers: str) -> Answer:
        """The result of a call that succeeds."""
        answer = await self.call(method, params, **headers)
        assert "error" not in answer, answer
        return cast("Answer", answer["result"])

    async def refuse(self, method: str, params: JsonObject, **headers: str) -> Answer:
        """The error of a call that fails."""
        answer = await self.call(method, params, **headers)
        assert "result" not in answer, answer
        return cast("Answer", answer["error"])

    def message(
        self, text: str, *, push: Mapping[str, Json] | None = None, **members: Json
    ) -> JsonObject:
        """SendMessage params that return at once; ``push`` is a config that comes with them."""
        self._sent += 1
        message: JsonObject = {
            "messageId": f"m-{self._sent}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **members,
        }
        configuration: JsonObject = {"returnImmediately": True}
        if push is not None:
            configuration["taskPushNotificationConfig"] = {**push}
        return {"message": message, "configuration": configuration}

    async def begin(self, text: str, *, push: Mapping[str, Json] | None = None) -> str:
        """A task that has been shown; its id."""
        return str((await self.do("SendMessage", self.message(text, push=push)))["task"]["id"])

    async def hook(self, task: str, path: str = "/hook", **members: Json) -> Answer:
        """A push config of a task that leads to a path of the receiver."""
        params: JsonObject = {"taskId": task, "url": self.receiver.url + path, **members}
        return await self.do("CreateTaskPushNotificationConfig", params)

    async def held_task(self) -> str:
        """A task whose peer says nothing more before it is released."""
        self.peer.hold()
        self.peer.release(1)
        return await self.begin("chunks 3")

    # ------------------------------------------------------------ what is stored

    async def session_of(self, task: str) -> StreamRef:
        """The stream that a task stands in."""
        response = await self.http.get(f"/v1/tasks/{task}")
        return StreamRef(StreamKind.SESSION, str(response.json()["sessionId"]))

    async def target(self, task: str, config: str) -> Target | None:
        """The target of a config."""
        stream = await self.session_of(task)
        return await self.gateway.store.targets.find(stream, f"push:{task}:{config}")

    async def until_state(self, task: str, config: str, state: str) -> Target | None:
        """The target, once it is in a state; ``gone`` when there is none."""

        async def look() -> bool:
            found = await self.target(task, config)
            return (found.state if found else "gone") == state

        await wait_until(look, WITHIN_S, f"the target of {config} is {state}")
        return await self.target(task, config)

    async def deliveries(self, **headers: str) -> list[Answer]:
        """What fails, as ``/v1`` lists it."""
        response = await self.http.get("/v1/deliveries", headers=headers)
        assert response.status_code == 200, response.text
        return cast("list[Answer]", response.json()["deliveries"])

    async def types(self, task: str) -> list[str]:
        """Classes of the events in the stream of a task."""
        page = await self.gateway.store.log.read_page(await self.session_of(task), 0)
        return [entry.type for entry in page]

    @property
    def engine_url(self) -> str:
        """Where its engine is."""
        assert self.settings.redis_url is not None
        return self.settings.redis_url.get_secret_value()

    def run_due(self) -> None:
        """Ends the claims that a gateway has left behind, as if their time had passed."""
        url = self.engine_url
        for shard in ALL_SHARDS:
            for member in cast("list[bytes]", ask(url, "ZRANGE", keys.due(shard), 0, -1)):
                if member.startswith(b"target:"):
                    ask(url, "ZADD", keys.due(shard), "XX", 0, member.decode())

    def counted(self, outcome: str) -> float:
        """A counter of deliveries."""
        sample = self.gateway.metrics.registry.get_sample_value
        return sample("passerelle_deliveries_total", {"kind": "push", "outcome": outcome}) or 0.0


@asynccontextmanager
async def run_rig(url: str, folder: Path, **changes: object) -> AsyncGenerator[Rig]:
    """A rig over an engine; ``changes`` are settings."""
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(ScriptedPeer("echo"))
        receiver = await stack.enter_async_context(WebhookReceiver())
        settings = Settings(
            redis_url=Secret(url),
            data_dir=folder,
            secret_key=KEY,
            agents=(AgentSettings(name="echo", url=peer.url),),
            clients=(OTHER,),
            webhooks=WebhookSettings(allow=ALLOW),
        ).model_copy(update=changes)
        token = load_owner_token(folder, SystemIds()).secret.get_secret_value()
        rig = Rig(settings, peer, receiver, stack, token)
        await rig.start()
        try:
            yield rig
        finally:
            peer.release_all()
            receiver.release()
            await rig.stop()
