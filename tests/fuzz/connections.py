"""Hostile connections to a separate gateway: crowds that stop half-way, pipelines, and very slow readers.

The seed determines the plan. The run passes when another caller is answered during and after it, every connection
ends within its guaranteed time, no log line reports an error, and all resources are returned.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import grpc.aio
import httpx
import orjson

from tests.conformance.grpc_caller import GrpcCaller
from tests.fuzz import pipelines, slow_readers
from tests.fuzz.crowds import CROWDS, GRPC, Crowd, run_connection
from tests.fuzz.remains import Remains
from tests.memory.site import MB, QUIET, Site, run_site, write_message
from tests.support.background_calls import BackgroundCalls
from tests.support.ports import find_free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from passerelle.core.wire.json import JsonObject

_FAST: Final[JsonObject] = {"events_per_s": 100_000, "bytes_per_s": 1_000_000_000}
_GROWTH: Final = 1.1
_BAD_LEVELS: Final = frozenset({"error", "critical"})
_ANSWERED: Final = "heard"


@dataclass(frozen=True, slots=True)
class Plan:
    """``crowd`` connections of each kind; pipelines and slow readers of each kind per round.

    Crowds that may live longer than ``within_s`` are not awaited: they disconnect.
    """

    crowd: int
    rounds: int
    pipelines: int
    requests: int
    readers: int
    within_s: float


SHORT: Final = Plan(crowd=20, rounds=2, pipelines=6, requests=30, readers=2, within_s=15.0)
LONG: Final = Plan(crowd=60, rounds=8, pipelines=12, requests=80, readers=4, within_s=60.0)


@dataclass(slots=True)
class Outcome:
    """Connections by kind, faults, and the calls of another caller."""

    opened: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    background: BackgroundCalls = field(default_factory=BackgroundCalls)
    resting: list[int] = field(default_factory=list[int])
    """Memory of the gateway after each round, in bytes."""


async def play(folder: Path, seed: int, plan: Plan) -> Outcome:
    """Runs everything against a gateway below ``folder``."""
    outcome, port = Outcome(), find_free_port()
    async with AsyncExitStack() as stack:
        listening: JsonObject = {"port": port, "default_agent": QUIET}
        site = await stack.enter_async_context(run_site(folder, {}, _FAST, grpc=listening))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        caller = GrpcCaller(channel, QUIET, site.headers("carol"))
        owner = stack.enter_context(
            httpx.Client(
                base_url=site.gateway.url,
                headers=site.gateway.authorization,
                timeout=10,
                trust_env=False,
            )
        )
        remains = Remains(owner)
        asks = (partial(_ask, site), partial(_ask_grpc, caller), partial(_ask_task, site))
        for ask in asks:
            outcome.faults += filter(None, [await ask()])
        before = await asyncio.to_thread(remains.measure)
        async with outcome.background.calling(*asks):
            await _play_all(site, port, seed, plan, outcome)
        for ask in asks:
            outcome.faults += filter(None, [await ask()])
        outcome.faults += await asyncio.to_thread(lambda: list(remains.find_left_behind(before)))
        outcome.faults += find_growth(outcome.resting)
        outcome.faults += find_errors(_read_log(site))
    outcome.faults += outcome.background.faults
    if not outcome.background.answered:
        outcome.faults.append("no other caller was answered")
    return outcome


async def _play_all(site: Site, port: int, seed: int, plan: Plan, outcome: Outcome) -> None:
    ports = {GRPC: port}
    standing: dict[asyncio.Task[str], Crowd] = {}
    for crowd in CROWDS:
        outcome.opened[crowd.name] += plan.crowd
        for number in range(plan.crowd):
            chance = _make_chance(seed, f"{crowd.name} {number}")
            at = ports.get(crowd.port, site.gateway.port)
            standing[asyncio.create_task(run_connection(crowd, site, at, chance))] = crowd
    try:
        for number in range(plan.rounds):
            await _play_round(site, seed, number, plan, outcome)
        awaited = [one for one, crowd in standing.items() if crowd.within_s <= plan.within_s]
        outcome.faults += filter(None, await asyncio.gather(*awaited))
    finally:
        for one in standing:
            one.cancel()
        await asyncio.gather(*standing, return_exceptions=True)


async def _play_round(site: Site, seed: int, number: int, plan: Plan, outcome: Outcome) -> None:
    slow = slow_readers.play(site, plan.readers, _make_chance(seed, f"readers {number}"))
    piped = [
        pipelines.play(site, plan.requests, _make_chance(seed, f"pipeline {number} {one}"))
        for one in range(plan.pipelines)
    ]
    outcome.opened["slow readers"] += plan.readers * len(slow_readers.KINDS)
    outcome.opened["pipelines"] += plan.pipelines
    found, wrong = await asyncio.gather(slow, asyncio.gather(*piped))
    outcome.faults += [*found, *filter(None, wrong)]
    await site.settle()
    outcome.resting.append(site.read_memory("VmRSS"))


async def _ask(site: Site) -> str:
    answer = await site.call("bob", "SendMessage", write_message("echo"), QUIET)
    return "" if _ANSWERED in str(answer.get("result")) else str(answer)


async def _ask_task(site: Site) -> str:
    url = f"{site.gateway.url}/v1/tasks/task_0"
    async with site.http.get(url, headers=site.headers("bob")) as response:
        said = await response.text()
        return "" if response.status == 404 and "not_found" in said else said


async def _ask_grpc(caller: GrpcCaller) -> str:
    answer = await caller.call("SendMessage", write_message("echo"))
    return "" if _ANSWERED in str(answer.result) else repr(answer.refusal)


def find_growth(resting: Sequence[int]) -> Iterator[str]:
    """Equal rounds must leave equal memory, except the first, which fills caches."""
    if resting[-1] > _GROWTH * resting[0]:
        reported = ", ".join(f"{size / MB:.0f}" for size in resting)
        yield f"memory is not given back: {reported} MB after each round"


def _read_log(site: Site) -> str:
    child = site.gateway.child
    assert child is not None
    return child.stderr_file.read_text(encoding="utf-8")


def find_errors(log: str) -> Iterator[str]:
    """Log lines that report an internal error; each line is JSON."""
    for line in log.splitlines():
        try:
            level = orjson.loads(line)["level"]
        except (orjson.JSONDecodeError, KeyError):
            level = "critical"
        if level in _BAD_LEVELS or "Traceback" in line:
            yield f"the log says {line[:8_000]}"


def _make_chance(seed: int, what: str) -> Random:
    return Random(f"{seed} {what}")
