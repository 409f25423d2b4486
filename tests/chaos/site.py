"""Two gateways over one store, three agents, and a proxy on every connection between them, all as real processes.

A killed process is restarted at once, on the same port; a gateway gets a new instance id, and an agent continues from
its journal. The runs of a dead gateway are read from the store before another one can take them over.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, cast

import httpx
import yaml

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.demo.checks import CheckFailed
from passerelle.demo.processes import Child, GatewayProcess, ProcessHandle, start
from passerelle.store.engine_binary import find_engine
from tests.chaos.plan import GATEWAYS, LASTING, SDK
from tests.chaos.revivals import Revivals
from tests.chaos.store_view import StoreView
from tests.chaos.traps import Hands, Trap, Traps
from tests.chaos.wire import AgentTap, StoreTap
from tests.support.engine import redis_on_path, run_server
from tests.support.fork_server import run_fork_server
from tests.support.ports import find_free_port
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
KEY: Final = "psr_chaos"
_TOKEN: Final = "CHAOS_GATEWAY"
_KEEP: Final = "3s"
_TIMEOUT: Final = {"query": "3s", "arrival": "8s"}
_BACK_S: Final = 90.0
_FROZEN_S: Final = 120.0
_HERE: Final = {"PYTHONPATH": str(ROOT), "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}


@dataclass(frozen=True, slots=True)
class Death:
    """A gateway that was killed or frozen: the time, and its runs with the end of their lease.

    ``at_s`` is monotonic time of this process, ``at_ms`` the same moment in wall-clock time, as on facts.
    """

    gateway: int
    why: str
    at_s: float
    at_ms: int
    tasks: dict[str, int]


@dataclass(slots=True, eq=False)
class AgentProcess:
    """An agent over several lives, behind one proxy at ``url``."""

    name: str
    folder: Path
    port: int
    url: str = ""
    child: Child | None = None

    async def start(self) -> None:
        """Starts the process.

        Raises:
            CheckFailed: it ended by itself. If it was killed while starting, the next process runs already.
        """
        options = (self.name, str(self.folder / f"{self.name}.journal"))
        module = ("tests.chaos.sdk_agent",) if self.name == SDK else ("tests.chaos.agent", *options)
        child = start(self.name, (*module, str(self.port), self.url), self.folder, _HERE)
        self.child = child
        try:
            await child.read_line("{")
        except CheckFailed:
            if self.child is child:
                raise

    def kill(self) -> bool:
        """Kills it with SIGKILL; returns whether it was running."""
        child, self.child = self.child, None
        if child is not None:
            child.kill()
        return child is not None

    async def read_truth(self) -> JsonObject:
        """The messages that it received and its tasks; for the SDK's agent, only the messages."""
        path = "stats" if self.name == SDK else "truth"
        async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}/{path}")
        return cast("JsonObject", answer.json())

    async def list_tasks(self) -> list[JsonObject]:
        """Every task, as an A2A caller sees it."""
        found: list[JsonObject] = []
        token = ""
        async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
            while True:
                params = {"includeArtifacts": True, "historyLength": 10, "pageToken": token}
                body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": params}
                headers = {"A2A-Version": "1.0"}
                url = f"http://127.0.0.1:{self.port}/"
                answer = await http.post(url, json=body, headers=headers)
                page = object_at(cast("JsonObject", answer.json()), "result")
                found += objects_at(page, "tasks")
                token = text_at(page, "nextPageToken")
                if not token:
                    return found


@dataclass(slots=True)
class Site:
    """All processes. ``deaths`` are of gateways, in order; ``ended`` are the labels whose caller is done."""

    folder: Path
    store: StoreView
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    agents: dict[str, AgentProcess] = field(default_factory=dict[str, AgentProcess])
    traps: Traps = field(init=False)
    deaths: list[Death] = field(default_factory=list[Death])
    agent_deaths: int = 0
    faults: list[str] = field(default_factory=list[str])
    ended: set[str] = field(default_factory=set[str])
    _instances: dict[str, int] = field(default_factory=dict[str, int])
    _up: list[asyncio.Event] = field(default_factory=lambda: [asyncio.Event() for _ in GATEWAYS])
    _restarts: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])
    _revivals: Revivals = field(init=False)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _begun: int = 0
    """The gateway that was started last: new instance ids are its own."""

    def __post_init__(self) -> None:
        self.traps = Traps(Hands(self.kill_gateway, self.kill_agent, self.freeze))
        self._revivals = Revivals(self._restart, self.faults)

    @property
    def environ(self) -> dict[str, str]:
        """Environment with the secrets of the configuration, for commands of the product."""
        return {**os.environ, _TOKEN: GATEWAYS[0]}

    async def await_up(self, gateway: int) -> None:
        """Waits until a gateway is ready."""
        async with asyncio.timeout(_BACK_S):
            await self._up[gateway].wait()

    def is_up(self, gateway: int) -> bool:
        """Whether a gateway is ready, as far as this process knows."""
        return self._up[gateway].is_set()

    async def start_gateway(self, gateway: int) -> None:
        """Starts a gateway and reads its instance id. Gateways start one at a time, so that a new id belongs to it."""
        async with self._starting:
            self._begun = gateway
            await self.gateways[gateway].start()
            self._learn_instances()
        self._up[gateway].set()

    def kill_gateway(self, gateway: int) -> None:
        """Kills a gateway with SIGKILL and restarts it."""
        self._find_process(gateway).kill()
        self._record_death(gateway, "killed")
        self._revivals.begin(gateway)

    def kill_agent(self, name: str) -> None:
        """The same for an agent."""
        agent = self.agents[name]
        if agent.kill():
            self.agent_deaths += 1
            self._detach(agent.start())

    async def freeze(self, gateway: int, trap: Trap) -> None:
        """SIGSTOP during a send, until the other gateway has decided without it; then both continue."""
        pid, label = self._find_process(gateway).pid, trap.errand.label
        os.kill(pid, signal.SIGSTOP)
        self._record_death(gateway, "frozen")
        try:
            await wait_until(
                lambda: label in self.ended or self.traps.count_sends(label) > 1,
                _FROZEN_S,
                f"{label}: the other gateway decides",
            )
        except AssertionError as error:
            self.faults.append(str(error))
        finally:
            os.kill(pid, signal.SIGCONT)
            self._up[gateway].set()

    async def settle(self) -> None:
        """Waits until all processes are back."""
        while self._restarts:
            await asyncio.wait(self._restarts)
        await self._revivals.settle()

    def _find_process(self, gateway: int) -> ProcessHandle:
        child = self.gateways[gateway].child
        assert child is not None
        return child.process

    def _learn_instances(self) -> None:
        for name in self.store.list_instances():
            self._instances.setdefault(name, self._begun)

    async def _restart(self, gateway: int) -> None:
        await asyncio.to_thread(self._find_process(gateway).wait, 5)
        await self.start_gateway(gateway)

    def _record_death(self, gateway: int, why: str) -> None:
        self._up[gateway].clear()
        self._learn_instances()  # a gateway that dies while it starts has its id already
        at_s, at_ms = time.monotonic(), int(time.time() * 1000)
        lives = [name for name, owner in self._instances.items() if owner == gateway]
        driven = self.store.list_driven(lives[-1:])
        self.deaths.append(Death(gateway, why, at_s, at_ms, driven))

    def _detach(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._restarts.add(task)
        task.add_done_callback(self._note_restart)

    def _note_restart(self, task: asyncio.Task[None]) -> None:
        self._restarts.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.faults.append(f"a process did not come back: {fault}")


@asynccontextmanager
async def run_site(folder: Path) -> AsyncGenerator[Site]:
    """Starts everything, and stops it at the end."""
    async with AsyncExitStack() as stack:
        fork_server = await stack.enter_async_context(run_fork_server())
        server = stack.enter_context(run_server(redis_on_path() or find_engine(None)))
        view = StoreView(server.url)
        stack.callback(view.close)
        site = Site(folder, view)
        await asyncio.gather(*(_start_agent(site, name, stack) for name in (*LASTING, SDK)))
        for place, name in enumerate(GATEWAYS):
            tap = partial(StoreTap, site.traps, place)
            proxy = await stack.enter_async_context(
                fault_proxy(server.url.removeprefix("unix://"), tap)
            )
            home = folder / name
            home.mkdir()
            (home / "passerelle.yaml").write_text(write_config(site, proxy.url), encoding="utf-8")
            environ = {_TOKEN: name, "PASSERELLE_LOG_FORMAT": "json"}
            config = home / "passerelle.yaml"
            gateway = GatewayProcess(
                home, config, environ=environ, begin=fork_server.start, port=find_free_port()
            )
            site.gateways.append(gateway)
            stack.push_async_callback(gateway.stop)
            await site.start_gateway(place)
        yield site
        await site.settle()


async def _start_agent(site: Site, name: str, stack: AsyncExitStack) -> None:
    agent = AgentProcess(name, site.folder, find_free_port())
    tap = partial(AgentTap, site.traps, name)

    async def read_request(reader: asyncio.StreamReader) -> None:
        await tap().read_request(reader)

    proxy = await stack.enter_async_context(
        fault_proxy(f"127.0.0.1:{agent.port}", tap, read_request)
    )
    agent.url = f"http://127.0.0.1:{proxy.port}"
    site.agents[name] = agent
    stack.callback(agent.kill)
    await agent.start()


def write_config(site: Site, store_url: str) -> str:
    """The configuration of both gateways, which differ by their token at the agents."""
    agents = [
        {"name": agent.name, "url": agent.url, "auth": {"bearer_env": _TOKEN}, "timeout": _TIMEOUT}
        for agent in site.agents.values()
    ]
    client = {
        "name": "ada",
        "key_hash": hashlib.sha256(KEY.encode()).hexdigest(),
        "may_call": ["*"],
        "kind": "person",
        "scopes": ["a2a:call", "tasks:read", "tasks:write", "channels:connect"],
    }
    return yaml.safe_dump(
        {
            "redis_url": store_url,
            "blobs": str(site.folder / "blobs"),
            # Ended sessions leave memory during all kills and cuts, and every check reads them from the archive.
            "retention": {"memory": _KEEP},
            "agents": agents,
            "clients": [client],
        }
    )
