"""Two gateways, one agent that asks in any dialect, a store that can be killed, and proxies that kill at a point."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import yaml

from passerelle.core.times import format_ms
from passerelle.gateway.clock import SystemClock
from passerelle.gateway.demo.processes import GatewayProcess
from passerelle.store.engine_binary import find_engine
from passerelle.store.engine_process import EngineSettings, build_command
from tests.chaos.approvals_plan import OWN, PLACES, Death, Errand, Where, read_pause
from tests.support.asking import ask_leave
from tests.support.engine import answers, end_process, redis_on_path, start_process
from tests.support.scripted_peer import ScriptedPeer, make_card
from tests.support.tcp_proxy import Cut, fault_proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from passerelle.core.json import JsonObject
    from tests.support.scripted_tasks import Turn

AGENT: Final = "asker"
KEY: Final = "psr_approvals"
GATEWAYS: Final = 2
LIFE_S: Final = 2
_TOKEN: Final = "CHAOS_GATEWAY"
_UP_S: Final = 60.0
_SCOPES: Final = (
    "a2a:call",
    "tasks:read",
    "tasks:write",
    "channels:connect",
    "approvals:read",
    "approvals:decide",
)


@dataclass(slots=True)
class Engine:
    """A server with its log on disk, killed and started again over it."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its socket."""
        return f"unix://{self.folder / 'engine.sock'}"

    async def start(self) -> None:
        """A life."""
        binary = redis_on_path() or find_engine(None)
        command = build_command(binary, EngineSettings(self.folder), self.folder / "engine.sock")
        self.process = start_process(command)
        await wait_until(lambda: answers(self.url), 20, "the store answers")

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def stop(self) -> None:
        """The end."""
        if self.process is not None:
            end_process(self.process)


@dataclass(slots=True, eq=False)
class Snare:
    """One armed death; ``sprung`` is set once it has happened."""

    errand: Errand
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False

    def fits(self, where: Where, data: bytes) -> bool:
        """Whether these bytes are the ones that it waits for; only one is told so."""
        wanted, marks = PLACES[self.errand.death]
        # A reply does not say whose it is: who sees it knows what was written before.
        if self.is_taken or wanted not in {where, "reply" if where == "write" else where}:
            return False
        return self.errand.label.encode() in data and all(mark in data for mark in marks)


@dataclass(slots=True)
class ApprovalSite:
    """Everything that runs. ``answers`` are the messages that came for each task of the agent."""

    folder: Path
    engine: Engine
    peer: ScriptedPeer
    gateways: list[GatewayProcess] = field(default_factory=list[GatewayProcess])
    snares: list[Snare] = field(default_factory=list[Snare])
    pauses: dict[str, Errand] = field(default_factory=dict[str, Errand])
    nudges: dict[str, asyncio.Event] = field(
        default_factory=lambda: defaultdict[str, asyncio.Event](asyncio.Event)
    )
    deaths: int = 0
    faults: list[str] = field(default_factory=list[str])
    _up: list[asyncio.Event] = field(
        default_factory=lambda: [asyncio.Event() for _ in range(GATEWAYS)]
    )
    _later: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def url(self, gateway: int) -> str:
        """Where a gateway listens."""
        return self.gateways[gateway].url

    async def await_one_up(self) -> None:
        """Until somebody is there to be killed: the other one may still be on its way back."""
        await wait_until(lambda: any(up.is_set() for up in self._up), _UP_S, "a gateway is ready")

    def choose(self, number: int) -> int:
        """A gateway that is up, the next one with each number; any of them while none is."""
        ready = [place for place, up in enumerate(self._up) if up.is_set()]
        return ready[number % len(ready)] if ready else number % len(self.gateways)

    async def start_gateway(self, number: int) -> None:
        """A life."""
        await self.gateways[number].start()
        self._up[number].set()

    def arm(self, errand: Errand) -> Snare:
        """Sets the snare of an errand."""
        snare = Snare(errand)
        self.snares.append(snare)
        self.pauses[errand.label] = errand
        return snare

    def spring(self, snare: Snare, gateway: int) -> None:
        """The gateway whose bytes these are dies, with the store if that was wanted, and comes back.

        Raises:
            Cut: always; the bytes go nowhere.
        """
        snare.is_taken = True
        self._up[gateway].clear()
        self.gateways[gateway].kill()
        self.deaths += 1
        if snare.errand.death is Death.STORE:
            self.engine.kill()
        task = asyncio.create_task(self._revive(snare, gateway))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        raise Cut

    async def _revive(self, snare: Snare, gateway: int) -> None:
        try:
            if snare.errand.death is Death.STORE:
                await self.engine.start()
            await self.start_gateway(gateway)
        except Exception as error:  # noqa: BLE001  whatever it is, the run did not hold
            self.faults.append(f"{snare.errand.label}: a process did not come back: {error}")
        snare.sprung.set()

    async def settle(self) -> None:
        """Until everybody is back."""
        while self._later:
            await asyncio.wait(self._later)

    # ------------------------------------------------------------ the agent

    async def ask(self, turn: Turn) -> None:
        """Asks as the errand of the message says."""
        errand = self.pauses[turn.argument.split()[0]]
        if errand.dialect != OWN:
            await self._show(turn, read_pause(errand))
            return
        ends = errand.death is Death.IN_EXPIRY
        await _ask_own(turn, errand.label, ends=ends)
        if errand.death is Death.IN_SUPERSEDE:
            await self.nudges[errand.label].wait()
            await _ask_own(turn, f"{errand.label}-next", ends=False)

    async def _show(self, turn: Turn, recorded: JsonObject) -> None:
        task = await turn.open()
        for artifact in cast("list[JsonObject]", recorded.get("artifacts", [])):
            name = str(artifact["artifactId"])
            parts = deepcopy(artifact["parts"])
            assert isinstance(parts, list)
            task.artifact(parts, artifact_id=name, name=str(artifact["name"]))
        status = {**cast("JsonObject", recorded["status"]), "timestamp": task.ticks.stamp()}
        task.record["status"] = status
        update: JsonObject = {"taskId": task.id, "contextId": task.context_id, "status": status}
        task.tell({"statusUpdate": deepcopy(update)})


async def _ask_own(turn: Turn, name: str, *, ends: bool) -> None:
    more: JsonObject = {}
    if ends:
        more["expires_at"] = format_ms(SystemClock().now_ms() + LIFE_S * 1000)
    subject: JsonObject = {"type": "tool_call", "name": name}
    await ask_leave(name, subject, "INPUT_REQUIRED", **more)(turn)


@dataclass(slots=True)
class StoreSnares:
    """One connection of a gateway to the store."""

    site: ApprovalSite
    gateway: int
    waiting: Snare | None = None

    async def up(self, data: bytes) -> bytes:
        for snare in self.site.snares:
            if snare.fits("write", data):
                if PLACES[snare.errand.death][0] == "write":
                    self.site.spring(snare, self.gateway)
                self.waiting = snare
        return data

    async def down(self, data: bytes) -> bytes:
        snare, self.waiting = self.waiting, None
        if snare is not None and not snare.is_taken:
            self.site.spring(snare, self.gateway)
        return data


@dataclass(slots=True)
class AgentSnares:
    """One connection of a gateway to the agent: a request is looked at once it names a task that it answers."""

    site: ApprovalSite
    sent: bytes = b""
    waiting: Snare | None = None

    async def up(self, data: bytes) -> bytes:
        self.sent = data if data.startswith(b"POST") else self.sent + data
        for snare in self.site.snares:
            if not self._answers(snare):
                continue
            if snare.fits("call", self.sent + snare.errand.label.encode()):
                self.site.spring(snare, self._gateway)
            if snare.fits("answer", self.sent + snare.errand.label.encode()):
                self.waiting = snare
        return data

    async def down(self, data: bytes) -> bytes:
        snare, self.waiting = self.waiting, None
        if snare is not None and not snare.is_taken:
            self.site.spring(snare, self._gateway)
        return data

    @property
    def _gateway(self) -> int:
        """By the token that it shows to agents."""
        return next(n for n in range(GATEWAYS) if f"Bearer gateway-{n}".encode() in self.sent)

    def _answers(self, snare: Snare) -> bool:
        """Whether the bytes are a message to the task of the errand."""
        tasks = [
            task.id
            for task in self.site.peer.tasks.values()
            if snare.errand.label in str(task.record)
        ]
        is_message = b'"SendMessage"' in self.sent or b'"SendStreamingMessage"' in self.sent
        return is_message and any(f'"taskId":"{task}"'.encode() in self.sent for task in tasks)


@asynccontextmanager
async def run_approval_site(folder: Path) -> AsyncGenerator[ApprovalSite]:
    """Starts everything, and ends it."""
    async with AsyncExitStack() as stack:
        home = folder / "engine"
        home.mkdir()
        engine = Engine(home)
        stack.callback(engine.stop)
        await engine.start()
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        site = ApprovalSite(folder, engine, peer)
        peer.on("ask", site.ask)
        agent = await stack.enter_async_context(
            fault_proxy(peer.url.removeprefix("http://"), partial(AgentSnares, site))
        )
        peer.card = make_card(AGENT, f"http://127.0.0.1:{agent.port}/")
        for number in range(GATEWAYS):
            store = await stack.enter_async_context(
                fault_proxy(engine.url.removeprefix("unix://"), partial(StoreSnares, site, number))
            )
            place = folder / f"gateway-{number}"
            place.mkdir()
            config = place / "passerelle.yaml"
            text = _write_config(folder, store.url, f"http://127.0.0.1:{agent.port}")
            config.write_text(text, encoding="utf-8")
            environ = {_TOKEN: f"gateway-{number}"}
            site.gateways.append(GatewayProcess(place, config, environ=environ))
            stack.push_async_callback(site.gateways[-1].stop)
        await asyncio.gather(*(site.start_gateway(number) for number in range(GATEWAYS)))
        yield site
        await site.settle()


def _write_config(folder: Path, store_url: str, agent_url: str) -> str:
    client = {
        "name": "ada",
        "key_hash": hashlib.sha256(KEY.encode()).hexdigest(),
        "may_call": ["*"],
        "kind": "person",
        "scopes": list(_SCOPES),
    }
    return yaml.safe_dump(
        {
            "redis_url": store_url,
            "secret_key": "A" * 43 + "=",
            "blobs": str(folder / "blobs"),
            "agents": [
                {
                    "name": AGENT,
                    "url": agent_url,
                    "auth": {"bearer_env": _TOKEN},
                    "timeout": {"query": "3s", "arrival": "8s"},
                }
            ],
            "clients": [client],
            "log_format": "json",
        }
    )
