"""A failover that loses acknowledged writes during delegated tasks: the promoted replica was cut off before.

Two gateways over a primary and a replica behind one address, like a managed store. Tasks are begun and input is
requested; the replica is cut off; more is sent, begun and answered; the primary dies and the replica takes its place.
In some rounds a gateway dies too.

May be lost: a task that was begun in the tail, if its agent has no message then; an answer in the tail, which its
caller is asked for again. Must not be lost: an older task, which ends as at its agent with all of the agent's output.
No agent receives a message twice, nothing stays open, and the lists match the streams.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import httpx
import yaml

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.chaos.plan import GATEWAYS, LASTING
from tests.chaos.site import KEY, AgentProcess
from tests.chaos.store_view import StoreView
from tests.support.failover import run_pair
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

_BEFORE: Final = 16
_IN_TAIL: Final = 6
_NOT_FOUND: Final = -32001
_ALONE_S: Final = 2
_WITHIN_S: Final = 120.0
_CALL_S: Final = 6.0
_PAUSE_S: Final = 0.3
_AGED_S: Final = 4
"""A server that started just before the last check of its primary is not recognized as promoted, and acts wait there.
"""
_LOST: Final = re.compile(r"^passerelle_lost_tails_total\{.*\} ([\d.]+)$", re.MULTILINE)
_REST: Final = frozenset({"TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"})
_ASKS: Final = "TASK_STATE_INPUT_REQUIRED"


@dataclass(slots=True)
class Errand:
    """One message to an agent and what its caller knows of it."""

    label: str
    agent: str
    text: str
    gateway: int
    is_early: bool
    """Begun before the replica was cut off: nothing of it may be lost."""
    task_id: str = ""
    replies: int = 0
    said: set[str] = field(default_factory=set[str])
    """Message ids of the caller."""
    end: JsonObject | None = None
    """The task as it ended; None: it is not found any more."""


@dataclass(slots=True)
class Scene:
    """One round: its processes, and the faults found."""

    open_view: Callable[[], StoreView]
    """A view of the store at the end."""
    agents: dict[str, AgentProcess]
    gateways: list[GatewayProcess]
    http: httpx.AsyncClient
    faults: list[str] = field(default_factory=list[str])

    async def call(
        self, errand: Errand, method: str, params: JsonObject, key: str = ""
    ) -> JsonObject | None:
        """The answer of either gateway; None if neither answered in time. ``key`` makes repeats idempotent."""
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        for turn in range(len(self.gateways)):
            gateway = self.gateways[(errand.gateway + turn) % len(self.gateways)]
            try:
                url = f"{gateway.url}/agents/{errand.agent}"
                headers = {"Idempotency-Key": key} if key else {}
                answer = await self.http.post(url, json=body, headers=headers)
            except httpx.HTTPError:
                continue
            if answer.status_code not in {429, 500, 502, 503, 504}:
                return cast("JsonObject", answer.json())
        return None

    async def send(self, errand: Errand, text: str, message: str) -> JsonObject | None:
        """Sends a message without waiting for the end."""
        errand.said.add(message)
        sent: JsonObject = {
            "messageId": message,
            "role": "ROLE_USER",
            "parts": [{"text": text}],
            **({"taskId": errand.task_id} if errand.task_id else {"contextId": errand.label}),
        }
        params: JsonObject = {"message": sent, "configuration": {"returnImmediately": True}}
        return await self.call(errand, "SendMessage", params, message)

    async def begin(self, errand: Errand) -> None:
        """Begins the task; the caller repeats the call until it receives a task."""
        within_s = time.monotonic() + _WITHIN_S
        answer: JsonObject | None = None
        while time.monotonic() < within_s:
            answer = await self.send(errand, errand.text, f"{errand.label}-m1")
            task = object_at(object_at(answer or {}, "result"), "task")
            errand.task_id = text_at(task, "id")
            if errand.task_id:
                return
            await asyncio.sleep(_PAUSE_S)
        self.faults.append(f"{errand.label}: not begun: {answer}")

    async def read(self, errand: Errand) -> JsonObject | None:
        """The task as a gateway shows it; None if no gateway answers."""
        return await self.call(errand, "GetTask", {"id": errand.task_id})

    async def reply(self, errand: Errand) -> None:
        """Answers the agent's input request again."""
        errand.replies += 1
        await self.send(errand, f"{errand.label} yes", f"{errand.label}-r{errand.replies}")

    async def finish(self, errand: Errand) -> None:
        """Follows a task until it has ended, and answers each input request."""
        within_s = time.monotonic() + _WITHIN_S
        while errand.task_id and time.monotonic() < within_s:
            answer = await self.read(errand)
            if answer is not None:
                if object_at(answer, "error").get("code") == _NOT_FOUND:
                    return
                task = object_at(answer, "result")
                state = text_at(object_at(task, "status"), "state")
                if state == _ASKS:
                    await self.reply(errand)
                elif state and state not in _REST:
                    errand.end = task
                    return
            await asyncio.sleep(_PAUSE_S)
        if errand.task_id:
            self.faults.append(f"{errand.label}: no end within {_WITHIN_S:.0f} s")


async def run_lost_tails(folder: Path, draw: Random, rounds: int) -> list[str]:
    """Prints a line for each round; returns one line per fault found."""
    faults: list[str] = []
    for number in range(rounds):
        home = folder / f"round-{number}"
        home.mkdir()
        faults += await _run_round(home, number, draw)
    return faults


async def _run_round(folder: Path, number: int, draw: Random) -> list[str]:
    began_s = time.monotonic()
    early = [_plan(f"l{number:02d}e{place:02d}", draw, is_early=True) for place in range(_BEFORE)]
    late = [_plan(f"l{number:02d}t{place:02d}", draw, is_early=False) for place in range(_IN_TAIL)]
    tail_s, kills = draw.uniform(0.5, 3.0), draw.random() < 1 / 2
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(run_pair())
        await wait_until(lambda: pair.replica_uptime_s >= _AGED_S, 10, "the replica is no new one")
        view = partial(StoreView, pair.replica.url)
        scene = await stack.enter_async_context(open_scene(folder, pair.url, view))
        for errand in early:
            await scene.begin(errand)
        await await_begun(scene, early)
        await pair.await_replicated()
        pair.cut_replication()
        cut_s = time.monotonic()
        in_tail = [asyncio.create_task(scene.begin(errand)) for errand in late]
        in_tail += [
            asyncio.create_task(scene.reply(errand)) for errand in early[::2] if asks(errand)
        ]
        await asyncio.sleep(tail_s)
        pair.promote()
        if kills:
            scene.gateways[-1].kill()
            await scene.gateways[-1].start()
        await asyncio.gather(*in_tail)
        await asyncio.gather(*(scene.finish(errand) for errand in (*early, *late)))
        await prove(scene, early, late)
        noticed = [await count_noticed(scene, gateway) for gateway in scene.gateways]
        lost = sum(errand.end is None for errand in late)
        print(
            f"chaos: lost tail {number}: {tail_s:.1f} s cut off{', a gateway killed' if kills else ''};"
            f" {len(early)} tasks from before, {len(late)} in the tail of which {lost} are gone,"
            f" {sum(noticed):.0f} losses noticed;"
            f" {time.monotonic() - cut_s:.0f} s after the cut all had ended; {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
        if not sum(noticed) and not kills:
            scene.faults.append(f"round {number}: no gateway noticed a loss")
        return scene.faults


def _plan(label: str, draw: Random, *, is_early: bool) -> Errand:
    verb = draw.choice(["work", "work", "ask"])
    pace = f"chunks={draw.randint(4, 40)} every={draw.choice([0.05, 0.1, 0.3])}"
    text = f"{label} {verb} {pace}"
    return Errand(label, draw.choice(LASTING), text, draw.randrange(len(GATEWAYS)), is_early)


def asks(errand: Errand) -> bool:
    return errand.text.split()[1] == "ask"


async def await_begun(scene: Scene, early: list[Errand]) -> None:
    """Waits until every agent has its messages and every input request was made: nothing is in flight at the cut."""

    async def has_begun(errand: Errand) -> bool:
        task = object_at(await scene.read(errand) or {}, "result")
        state = text_at(object_at(task, "status"), "state")
        return state == _ASKS if asks(errand) else state not in {"", "TASK_STATE_SUBMITTED"}

    for errand in early:
        await wait_until(partial(has_begun, errand), 30, f"{errand.label} has begun")


async def prove(scene: Scene, early: list[Errand], late: list[Errand]) -> None:
    counts: dict[str, int] = {}
    made: dict[str, JsonObject] = {}
    for agent in scene.agents.values():
        truth = await agent.read_truth()
        counts |= cast("dict[str, int]", object_at(truth, "messages"))
        made |= {_read_label(task): task for task in objects_at(truth, "tasks")}
    for errand in (*early, *late):
        twice = [name for name in errand.said if counts.get(name, 0) > 1]
        scene.faults += [f"{errand.label}: {name} reached its agent twice" for name in twice]
        theirs = made.get(errand.label)
        if errand.end is None:
            if errand.is_early:
                scene.faults.append(f"{errand.label}: it was begun before the tail, and is gone")
            elif errand.task_id and theirs is not None:
                scene.faults.append(f"{errand.label}: its agent has it, and it is gone")
            continue
        shown = (_read_state(errand.end), _read_text(errand.end))
        if theirs is None or shown != (_read_state(theirs), _read_text(theirs)):
            said = None if theirs is None else _read_state(theirs)
            scene.faults.append(
                f"{errand.label}: {shown[0]}, at its agent {said}; or its content differs"
            )
    scene.faults += await _verify(scene)


async def _verify(scene: Scene) -> list[str]:
    """Runs ``passerelle verify --rebuild``, and checks for leftovers in the store once all has settled."""
    view = scene.open_view()
    try:
        leaks: list[str] = []

        def is_settled() -> bool:
            leaks[:] = view.find_leaks()
            return not leaks

        try:
            await wait_until(is_settled, 30, "nothing is owed any more")
        except AssertionError:
            return leaks
    finally:
        view.close()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "passerelle", "verify", "--rebuild", "--config", "passerelle.yaml"),
        cwd=scene.gateways[0].folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ},
    )
    said, _ = await process.communicate()
    return said.decode(errors="replace").splitlines() if process.returncode else []


async def count_noticed(scene: Scene, gateway: GatewayProcess) -> float:
    page = (await scene.http.get(f"{gateway.url}/metrics")).text
    return sum(float(found[1]) for found in _LOST.finditer(page))


def _read_label(task: JsonObject) -> str:
    messages = objects_at(task, "history")
    parts = objects_at(messages[0], "parts") if messages else []
    return text_at(parts[0], "text").partition(" ")[0] if parts else ""


def _read_state(task: JsonObject) -> str:
    return text_at(object_at(task, "status"), "state")


def _read_text(task: JsonObject) -> str:
    artifacts = objects_at(task, "artifacts")
    return "".join(text_at(part, "text") for one in artifacts for part in objects_at(one, "parts"))


@asynccontextmanager
async def open_scene(
    folder: Path,
    store_url: str | list[str],
    open_view: Callable[[], StoreView],
    names: tuple[str, ...] = GATEWAYS,
) -> AsyncGenerator[Scene]:
    """Starts agents and gateways over a running store."""
    async with AsyncExitStack() as stack:
        agents: dict[str, AgentProcess] = {}
        for name in LASTING:
            port = find_free_port()
            agent = AgentProcess(name, folder, port, f"http://127.0.0.1:{port}")
            stack.callback(_end, agent)
            await agent.start()
            agents[name] = agent
        headers = {"Authorization": f"Bearer {KEY}", "A2A-Version": "1.0"}
        http = httpx.AsyncClient(headers=headers, trust_env=False, timeout=_CALL_S)
        await stack.enter_async_context(http)
        scene = Scene(open_view, agents, [], http)
        for name in names:
            home = folder / name
            home.mkdir()
            config = home / "passerelle.yaml"
            config.write_text(_write_config(folder, store_url, agents), encoding="utf-8")
            gateway = GatewayProcess(
                home, config, environ={"PASSERELLE_LOG_FORMAT": "json"}, port=find_free_port()
            )
            stack.push_async_callback(gateway.stop)
            scene.gateways.append(gateway)
            await gateway.start()
        yield scene


def _end(agent: AgentProcess) -> None:
    if agent.child is not None:
        agent.child.kill()


def _write_config(folder: Path, store_url: str | list[str], agents: dict[str, AgentProcess]) -> str:
    client = {
        "name": "ada",
        "key_hash": hashlib.sha256(KEY.encode()).hexdigest(),
        "may_call": ["*"],
        "kind": "person",
        "scopes": ["a2a:call", "tasks:read", "tasks:write"],
    }
    return yaml.safe_dump(
        {
            "redis_url": store_url,
            "blobs": str(folder / "blobs"),
            "secret_key": "00" * 32,
            "replicated_acts_after": f"{_ALONE_S}s",
            "agents": [{"name": one.name, "url": one.url} for one in agents.values()],
            "clients": [client],
        }
    )
