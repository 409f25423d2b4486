"""One gateway in front of every foreign agent, and every foreign caller, per module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, cast

import pytest
from aiohttp import web

from passerelle.core.agent_name import ROUTER
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.interop.environments import JAVASCRIPT, PYTHON_0_3, require
from tests.interop.scripted_clients import ScriptedClient, open_client, run_agent
from tests.support.loops import SHARED, Backend
from tests.support.processes import run_gateway

SIDES: Final = (
    ("javascript", "JSONRPC"),
    ("javascript", "HTTP+JSON"),
    ("python_0_3", "JSONRPC"),
    ("python_0_3", "HTTP+JSON"),
)
_WITHIN_S: Final = 20.0


def name_of(side: tuple[str, str]) -> str:
    """The name of an agent: its library and binding."""
    library, binding = side
    return f"{library}_{binding}".lower().replace("+", "_")


@dataclass
class Webhook:
    """A receiver on loopback; ``bodies`` are the received bodies, each with its token."""

    url: str = ""
    bodies: list[tuple[str | None, JsonObject]] = field(
        default_factory=list["tuple[str | None, JsonObject]"]
    )

    async def take(self, request: web.Request) -> web.Response:
        token = request.headers.get("X-A2A-Notification-Token")
        self.bodies.append((token, cast("JsonObject", await request.json())))
        answer = web.Response(status=202)
        # The gateway outlives the test, and a kept connection would look like a leak.
        answer.force_close()
        return answer


@dataclass
class World:
    """The gateway, and the callers opened so far, by side and agent."""

    gateway: GatewayProcess
    stack: AsyncExitStack
    webhook: Webhook
    _callers: dict[tuple[str, str, str], ScriptedClient] = field(
        default_factory=dict["tuple[str, str, str]", ScriptedClient]
    )

    async def call(self, side: tuple[str, str], agent: str) -> ScriptedClient:
        """The caller of a side, calling an agent."""
        known = self._callers.get((*side, agent))
        if known is None:
            library, binding = side
            place = self.gateway.url + ("" if agent == ROUTER else f"/agents/{agent}")
            card = f"{place}/.well-known/agent-card.json"
            opening = open_client(library, card, self.gateway.token, binding)
            known = await self.stack.enter_async_context(opening)
            self._callers[*side, agent] = known
        return known


@pytest.fixture(scope="module")
def anyio_backend() -> Backend:
    return SHARED


@pytest.fixture(scope="module")
async def world(
    anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[World, None]:
    """All processes, started once."""
    require(JAVASCRIPT, PYTHON_0_3)
    webhook = Webhook()
    async with AsyncExitStack() as stack:
        app = web.Application()
        app.router.add_post("/hook", webhook.take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = cast("tuple[str, int]", runner.addresses[0])[1]
        webhook.url = f"http://127.0.0.1:{port}/hook"
        starting = [stack.enter_async_context(run_agent(*side)) for side in SIDES]
        urls = [await one for one in starting]
        agents = {name_of(side): url for side, url in zip(SIDES, urls, strict=True)}
        gateway = await stack.enter_async_context(
            run_gateway(
                tmp_path_factory.mktemp("gateway"),
                agents,
                webhooks={"allow": ["http://127.0.0.1:*"]},
            )
        )
        async with AsyncExitStack() as callers:
            yield World(gateway, callers, webhook)


@pytest.fixture(params=SIDES, ids=name_of)
def side(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The calling side."""
    return cast("tuple[str, str]", request.param)


@pytest.fixture(params=[*(name_of(side) for side in SIDES), ROUTER])
def agent(request: pytest.FixtureRequest) -> str:
    """The called agent; the gateway's own agent is one of them, and routes to another."""
    return cast("str", request.param)


@pytest.fixture
async def caller(world: World, side: tuple[str, str], agent: str) -> ScriptedClient:
    """The caller, calling the agent."""
    return await asyncio.wait_for(world.call(side, agent), _WITHIN_S)
