"""Two gateways, one agent with all dialects, a store that can be killed, and proxies that kill at a point."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import yaml

from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from passerelle.store.engine_process import EngineSettings, build_command
from tests.chaos.approvals_agent import AGENT, GREETING, QUIET, VAULT, AskingAgent
from tests.chaos.approvals_plan import Death, Errand
from tests.chaos.approvals_snares import GATEWAYS, AgentSnares, Snare, StoreSnares, Trapper
from tests.chaos.records import open_records
from tests.chaos.revivals import Revivals
from tests.support.engine import answers, end_process, redis_on_path, start_process
from tests.support.ports import find_free_port
from tests.support.scripted_peer import make_card
from tests.support.tcp_proxy import Cut, fault_proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from passerelle.core.wire.json import Json, JsonObject
    from tests.support.fork_server import ForkServer

PERSON: Final = "ada"
PHONE_OWNER: Final = "pia"
"""The person whose phone gets pushes."""
TRAVELLER: Final = "vera"
"""The person whose device reconnects while a gateway dies."""
SECOND: Final = "grace"
"""The person who may also answer after a while."""
ESCALATES_MS: Final = 1_500
_TOKEN: Final = "CHAOS_GATEWAY"
_UP_S: Final = 60.0
_SCOPES: Final = (
    "a2a:call",
    "tasks:read",
    "tasks:write",
    "channels:connect",
    "approvals:read",
    "approvals:decide",
    "audit:read",
    "devices:manage",
)


def name_key(person: str) -> str:
    """The key of a person."""
    return f"psr_approvals_{person}"


@dataclass(slots=True)
class Engine:
    """A server with its log on disk, killed and restarted over it."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its socket."""
        return f"unix://{self.folder / 'engine.sock'}"

    async def start(self) -> None:
        """Starts it, if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        binary = redis_on_path() or find_engine(None)
        command = build_command(binary, EngineSettings(self.folder), self.folder / "engine.sock")
        self.process = start_process(command)
        await wait_until(lambda: answers(self.url), 20, "the store answers")

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def stop(self) -> None:
        """Stops it for good."""
        if self.process is not None:
            end_process(self.process)


@dataclass(slots=True)
class ApprovalSite:
    """All processes of one lane, shared with no other lane."""

    folder: Path
    engine: Engine
    agent: AskingAgent = field(default_factory=AskingAgent)
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    trapper: Trapper = field(init=False)
    deaths: int = 0
    has_phone: bool = False
    """Whether the phone with pushes is paired."""
    faults: list[str] = field(default_factory=list[str])
    _up: list[asyncio.Event] = field(
        default_factory=lambda: [asyncio.Event() for _ in range(GATEWAYS)]
    )
    _revivals: Revivals = field(init=False)

    def __post_init__(self) -> None:
        self.trapper = Trapper(self.spring, self.agent.find_tasks)
        self._revivals = Revivals(self.start_gateway, self.faults)

    def url(self, gateway: int) -> str:
        """The URL of a gateway."""
        return self.gateways[gateway].url

    async def await_one_up(self) -> None:
        """Waits until a gateway is up to be killed: the other one may still be starting."""
        await wait_until(lambda: any(up.is_set() for up in self._up), _UP_S, "a gateway is ready")

    def choose(self, number: int) -> int:
        """A running gateway, the next one with each number; any of them if none runs."""
        ready = [place for place, up in enumerate(self._up) if up.is_set()]
        return ready[number % len(ready)] if ready else number % len(self.gateways)

    async def start_gateway(self, number: int) -> None:
        """Starts a gateway, and the store if it was killed."""
        await self.engine.start()
        await self.gateways[number].start()
        self._up[number].set()

    def arm(self, errand: Errand) -> Snare:
        """Arms the snare of an errand."""
        self.agent.errands[errand.label] = errand
        return self.trapper.arm(errand, is_live=errand.death is not Death.IN_WELCOME)

    def spring(self, snare: Snare, gateway: int) -> None:
        """Kills and restarts the gateway that these bytes belong to, and the store if the errand wants that.

        Raises:
            Cut: always; the bytes are dropped.
        """
        snare.is_taken = True
        snare.sprung.set()
        self._up[gateway].clear()
        self.gateways[gateway].kill()
        self.deaths += 1
        if snare.errand.death is Death.STORE:
            self.engine.kill()
        self._revivals.begin(gateway)
        raise Cut

    async def settle(self) -> None:
        """Waits until all processes are back."""
        await self._revivals.settle()


@asynccontextmanager
async def run_approval_site(
    folder: Path, fork_server: ForkServer, push_origin: str
) -> AsyncGenerator[ApprovalSite]:
    """Starts everything, and stops it at the end."""
    async with AsyncExitStack() as stack:
        home = folder / "engine"
        home.mkdir(parents=True)
        engine = Engine(home)
        stack.callback(engine.stop)
        await engine.start()
        site = ApprovalSite(folder, engine)
        peer = await stack.enter_async_context(site.agent.peer)
        agent = await stack.enter_async_context(
            fault_proxy(peer.url.removeprefix("http://"), partial(AgentSnares, site.trapper))
        )
        agent_url = f"http://127.0.0.1:{agent.port}"
        peer.card = make_card(AGENT, f"{agent_url}/")
        quiet_peer = await stack.enter_async_context(site.agent.quiet)
        quiet = await stack.enter_async_context(
            fault_proxy(quiet_peer.url.removeprefix("http://"), partial(AgentSnares, site.trapper))
        )
        quiet_url = f"http://127.0.0.1:{quiet.port}"
        card = make_card(QUIET, f"{quiet_url}/")
        quiet_peer.card = {**card, "capabilities": {"streaming": False}}
        agents = {AGENT: agent_url, VAULT: agent_url, QUIET: quiet_url}
        for number in range(GATEWAYS):
            tap = partial(StoreSnares, site.trapper, number)
            store = await stack.enter_async_context(
                fault_proxy(engine.url.removeprefix("unix://"), tap)
            )
            place = folder / f"gateway-{number}"
            place.mkdir()
            config = place / "passerelle.yaml"
            text = _write_config(folder, store.url, agents, push_origin)
            config.write_text(text, encoding="utf-8")
            environ = {_TOKEN: f"gateway-{number}"}
            site.gateways.append(
                GatewayProcess(
                    place, config, environ=environ, begin=fork_server.start, port=find_free_port()
                )
            )
            stack.push_async_callback(site.gateways[-1].stop)
        await asyncio.gather(*(site.start_gateway(number) for number in range(GATEWAYS)))
        await _meet_agents(site)
        yield site
        await site.settle()


async def _meet_agents(site: ApprovalSite) -> None:
    """Gives each agent one task, and waits until its behaviour is recorded.

    A message lost on the way to an agent whose behaviour is unknown has an unknown outcome: its task list proves
    nothing.
    """
    headers = {"Authorization": f"Bearer {name_key(PERSON)}", "A2A-Version": "1.0"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for name in (AGENT, QUIET):
            message = {"messageId": f"m-{name}", "role": "ROLE_USER", "parts": [{"text": GREETING}]}
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
            url = f"{site.url(0)}/agents/{name}"
            async with http.post(url, json={**body, "params": {"message": message}}) as response:
                said = await response.text()
            assert "TASK_STATE_COMPLETED" in said, said
    async with open_records(site.engine.url, site.folder) as records:
        await records.read()
        workers = [task.attempts[-1].worker for task in records.tasks.values()]
        assert len(workers) == 2, workers

        async def are_known() -> bool:
            stored = records.store.habits
            return all([await stored.read(one.peer, one.card_hash or "") for one in workers])

        await wait_until(are_known, _UP_S, "it is stored how the agents behave")


def _write_config(folder: Path, store_url: str, urls: dict[str, str], push_origin: str) -> str:
    clients: list[Json] = [
        {
            "name": name,
            "key_hash": hashlib.sha256(name_key(name).encode()).hexdigest(),
            "may_call": ["*"],
            "kind": "person",
            "scopes": list(_SCOPES),
        }
        for name in (PERSON, PHONE_OWNER, TRAVELLER, SECOND)
    ]
    agents: list[Json] = [
        {
            "name": name,
            "url": url,
            "auth": {"bearer_env": _TOKEN},
            "timeout": {"query": "3s", "arrival": "8s"},
        }
        for name, url in urls.items()
    ]
    hold: JsonObject = {
        "name": "hold",
        "effect": "ask",
        "about": ["delegations"],
        "when": f'peer.name == "{VAULT}"',
    }
    later: JsonObject = {"after": f"{ESCALATES_MS}ms", "to": [SECOND]}
    return yaml.safe_dump(
        {
            "redis_url": store_url,
            "secret_key": "A" * 43 + "=",
            "blobs": str(folder / "blobs"),
            "agents": agents,
            "clients": clients,
            "policy": {
                "rules": [hold],
                "grants": {"scope": "task"},
                "approvers": [{"risk": "low", "who": ["@caller"], "escalate": [later]}],
            },
            "webhooks": {"allow": [push_origin]},
            "log_format": "json",
        }
    )
