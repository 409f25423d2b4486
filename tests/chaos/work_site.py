"""Two gateways over one store, and the agent in this process; killed gateways restart by themselves."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import yaml

from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.chaos.revivals import Revivals
from tests.chaos.store_view import StoreView
from tests.chaos.work_agent import AGENT, NARROW, WorkAgent
from tests.support.engine import redis_on_path, run_server
from tests.support.fork_server import run_fork_server
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

GATEWAYS: Final = 2
KEY: Final = "psr_chaos_work"
WITHIN_S: Final = 60.0
_ANSWER_S: Final = 8.0
_PAUSE_S: Final = 0.1
_SCOPES: Final = ("a2a:call", "tasks:read", "tasks:write", "runtime:operate")
_TRY_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
Answer = dict[str, Any]


class Refused(Exception):
    """A gateway has refused the call, and no repeat changes that."""


@dataclass(slots=True)
class WorkSite:
    """All processes. ``deaths`` counts killed gateways."""

    folder: Path
    store: StoreView
    http: httpx.AsyncClient
    agent: WorkAgent = field(default_factory=WorkAgent)
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    deaths: int = 0
    faults: list[str] = field(default_factory=list[str])
    _up: list[asyncio.Event] = field(
        default_factory=lambda: [asyncio.Event() for _ in range(GATEWAYS)]
    )
    _revivals: Revivals = field(init=False)

    def __post_init__(self) -> None:
        self._revivals = Revivals(self.start_gateway, self.faults)

    async def start_gateway(self, number: int) -> None:
        """Starts a gateway."""
        await self.gateways[number].start()
        self._up[number].set()

    def strike(self, number: int) -> None:
        """Kills a gateway with SIGKILL, or the other one if it is down; the killed one restarts by itself."""
        if not self._up[number].is_set():
            number = 1 - number
        if not self._up[number].is_set():
            return
        self._up[number].clear()
        self.gateways[number].kill()
        self.deaths += 1
        self._revivals.begin(number)

    async def settle(self) -> None:
        """Waits until all processes are back."""
        await self._revivals.settle()

    async def call(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        key: str = "",
        first: int = 0,
    ) -> Answer:
        """The answer of whichever gateway replies, ``first`` preferred; repeated under its key until then.

        Raises:
            Refused: a gateway has refused it.
        """
        headers = {"Idempotency-Key": key} if key else {}
        async with asyncio.timeout(WITHIN_S):
            for number in itertools.cycle((first, 1 - first)):
                if self._up[number].is_set():
                    url = f"{self.gateways[number].url}{path}"
                    try:
                        answer = await self.http.request(method, url, json=body, headers=headers)
                    except httpx.TransportError:
                        pass  # it was killed meanwhile
                    else:
                        if answer.is_success:
                            return cast("Answer", answer.json() if answer.content else {})
                        if answer.status_code not in _TRY_AGAIN:
                            raise Refused(f"{method} {path}: {answer.text}")
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError

    async def read_record(self, task_id: str) -> Answer:
        """The local record of a task."""
        return await self.call("GET", f"/v1/tasks/{task_id}")

    async def await_status(self, task_id: str, *wanted: str) -> str:
        """The status of a task once it is one of these."""

        async def look() -> str:
            status = str((await self.read_record(task_id))["status"])
            return status if status in wanted else ""

        return await wait_until(look, WITHIN_S, f"{task_id} is {' or '.join(wanted)}")


@asynccontextmanager
async def run_work_site(folder: Path) -> AsyncGenerator[WorkSite]:
    """Starts everything, and stops it at the end."""
    async with AsyncExitStack() as stack:
        fork_server = await stack.enter_async_context(run_fork_server())
        server = stack.enter_context(run_server(redis_on_path() or find_engine(None)))
        view = StoreView(server.url)
        stack.callback(view.close)
        limits = httpx.Limits(max_connections=None)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                headers={"Authorization": f"Bearer {KEY}"},
                trust_env=False,
                limits=limits,
                timeout=_ANSWER_S,
            )
        )
        site = WorkSite(folder, view, http)
        await stack.enter_async_context(site.agent.peer)
        text = write_config(site, server.url)
        for number in range(GATEWAYS):
            home = folder / f"gateway-{number}"
            home.mkdir()
            config = home / "passerelle.yaml"
            config.write_text(text, encoding="utf-8")
            environ = {"PASSERELLE_LOG_FORMAT": "json"}
            site.gateways.append(
                GatewayProcess(
                    home, config, environ=environ, begin=fork_server.start, port=find_free_port()
                )
            )
            stack.push_async_callback(site.gateways[-1].stop)
        await asyncio.gather(*(site.start_gateway(number) for number in range(GATEWAYS)))
        yield site
        await site.settle()


def write_config(site: WorkSite, store_url: str) -> str:
    """The configuration of both gateways."""
    url = site.agent.peer.url
    timeout = {"query": "3s", "arrival": "3s"}
    return yaml.safe_dump(
        {
            "redis_url": store_url,
            "blobs": str(site.folder / "blobs"),
            "agents": [
                {"name": AGENT, "url": url, "timeout": timeout},
                {"name": NARROW, "url": url, "timeout": timeout, "limits": {"concurrency": 1}},
            ],
            "clients": [
                {
                    "name": "ada",
                    "key_hash": hashlib.sha256(KEY.encode()).hexdigest(),
                    "may_call": ["*"],
                    "kind": "person",
                    "scopes": list(_SCOPES),
                }
            ],
        }
    )
