"""Gateways over one store, agents in this process, and callers with a key each."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
import yaml

from passerelle.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask, redis_on_path, run_server
from tests.support.ports import find_free_port
from tests.support.scripted_behaviours import echo
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.support.scripted_tasks import Turn

SLOTS: Final = 4
"""Concurrent sends per agent."""
OPERATOR: Final = "operator"
_SCOPES: Final = ("a2a:call", "tasks:read", "tasks:write")
_ANSWER_S: Final = 60.0
_PAUSED: Final = "passerelle_agent_paused{"
Answer = dict[str, Any]


@dataclass(slots=True)
class QueueSite:
    """All processes."""

    store_url: str
    http: aiohttp.ClientSession
    callers: tuple[str, ...]
    peers: list[ScriptedPeer] = field(default_factory=list[ScriptedPeer])
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    arrived: list[str] = field(default_factory=list[str])
    """The caller of each turn of the flood, in order of arrival at the agents."""

    async def take(self, turn: Turn) -> None:
        """The agents' behaviour for a turn of the flood."""
        self.arrived.append(turn.text.split()[1])
        await echo(turn)

    @property
    def agents(self) -> list[str]:
        """Their names."""
        return [peer.name for peer in self.peers]

    async def call(
        self, who: str, method: str, path: str, body: JsonObject | None = None, *, at: int = 0
    ) -> Answer:
        """The answer of one gateway, ``at`` modulo their number; an error fails the run."""
        url = f"{self.gateways[at % len(self.gateways)].url}{path}"
        headers = {"Authorization": f"Bearer {name_key(who)}", "A2A-Version": "1.0"}
        async with self.http.request(method, url, json=body, headers=headers) as answer:
            text = await answer.text()
            assert answer.ok, f"{method} {path}: {text}"
            return cast("Answer", await answer.json())

    async def send(
        self, who: str, agent: str, text: str, *, at: int = 0, waits: bool = False
    ) -> Answer:
        """The Task of a message; ``waits``: its caller waits for the end."""
        params: JsonObject = {
            "message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]},
            "configuration": {"returnImmediately": not waits},
        }
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        answer = await self.call(who, "POST", f"/agents/{agent}", body, at=at)
        return cast("Answer", answer["result"]["task"])

    async def pause(self) -> None:
        """Pauses every agent, at every gateway: a gateway without the call learns of it a moment later."""
        await self._steer("pause")

        async def are_paused() -> bool:
            return all([await self._count_paused(one) == len(self.peers) for one in self.gateways])

        await wait_until(are_paused, _ANSWER_S, "every gateway knows that the agents are paused")

    async def resume(self) -> None:
        """Resumes every agent."""
        await self._steer("resume")

    async def _steer(self, verb: str) -> None:
        for agent in self.agents:
            await self.call(OPERATOR, "POST", f"/v1/agents/{agent}/{verb}", {})

    async def _count_paused(self, gateway: GatewayProcess) -> int:
        async with self.http.get(f"{gateway.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(one.startswith(_PAUSED) and one.endswith(" 1.0") for one in lines)

    def read_cpu(self) -> float:
        """CPU seconds that gateways and engine have used so far."""
        reported = cast("dict[str, int]", ask(self.store_url, "INFO", "server"))
        lives = [one.child.process.pid for one in self.gateways if one.child is not None]
        return sum(_read_cpu(pid) for pid in (reported["process_id"], *lives))


def name_key(caller: str) -> str:
    """The key of a caller."""
    return f"psr_queues_{caller}"


def _read_cpu(pid: int) -> float:
    """Of all its threads, in nanoseconds; ``stat`` has hundredths of a second only."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text(encoding="ascii").split()[0]) for one in threads) / 1e9


@asynccontextmanager
async def run_queue_site(
    folder: Path, instances: int, agents: int, callers: int
) -> AsyncGenerator[QueueSite]:
    """Starts everything, and stops it at the end."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(redis_on_path() or find_engine(None)))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            )
        )
        site = QueueSite(server.url, http, tuple(f"caller-{one}" for one in range(callers)))
        for number in range(agents):
            peer = ScriptedPeer(f"agent-{number}")
            peer.on("flood", site.take)
            site.peers.append(await stack.enter_async_context(peer))
        text = _write_config(site, folder)
        for number in range(instances):
            home = folder / f"gateway-{number}"
            home.mkdir()
            config = home / "passerelle.yaml"
            config.write_text(text, encoding="utf-8")
            environ = {"PASSERELLE_LOG_FORMAT": "json"}
            gateway = GatewayProcess(home, config, environ=environ, port=find_free_port())
            site.gateways.append(gateway)
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in site.gateways))
        yield site


def _write_config(site: QueueSite, folder: Path) -> str:
    clients = [
        {
            "name": name,
            "key_hash": hashlib.sha256(name_key(name).encode()).hexdigest(),
            "may_call": ["*"],
            "scopes": [*_SCOPES, *(["runtime:operate"] if name == OPERATOR else [])],
        }
        for name in (*site.callers, OPERATOR)
    ]
    agents = [
        {"name": peer.name, "url": peer.url, "limits": {"concurrency": SLOTS}}
        for peer in site.peers
    ]
    return yaml.safe_dump(
        {
            "redis_url": site.store_url,
            "blobs": str(folder / "blobs"),
            "agents": agents,
            "clients": clients,
        }
    )
