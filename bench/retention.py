"""What it costs that ended sessions leave memory, and that memory does not grow by what is over.

First a gateway whose sessions leave 20 s after their end works without a pause. Then two new ones take turns in front
of one agent: one such, and one whose sessions stay. Both have done the same before. What the one uses more than the
other for the same work is what it costs; it counts until the last session has left.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx
import yaml

from bench.kinds import MIXED_ORDER, Length
from bench.rows import BenchBroken, Bound, Row, Spread
from bench.stage import Gateway, Setting, Stage, open_gateway, open_stage
from bench.usage import Meter, read_used_bytes
from passerelle.demo.processes import start

KEEP_S: Final = 20
MEMORY_ROUNDS: Final = 30
"""Of ten seconds each, without a pause between them."""
_SLICE_S: Final = 10.0
_FIRST: Final = 6
"""After so many, memory is what it will be."""
_DRAIN_S: Final = 200.0
_LEFT: Final = re.compile(
    r'^passerelle_archived_sessions_total\{outcome="archived"\} (\S+)$', re.MULTILINE
)
_TASKS: Final = 5 / 6
"""For each answer: the steps of the order make five tasks, and have six answers."""


def _set_up(keep: str | None) -> Setting:
    return Setting("echo", more=lambda _receiver: {"retention": {"memory": keep}})


async def measure_retention(length: Length, memory_rounds: int) -> AsyncGenerator[Row]:
    """Rows of the section."""
    async with open_stage(_set_up(f"{KEEP_S}s")) as stage:
        async for row in _measure_memory(stage, memory_rounds):
            yield row
    async with open_stage(_set_up(f"{KEEP_S}s")) as stage:
        with tempfile.TemporaryDirectory(prefix="psr-bench-") as name:
            folder = Path(name)
            config = folder / "keeping.yaml"
            config.write_text(
                yaml.safe_dump(_set_up(None).compose(stage.direct_url, stage.receiver))
            )
            async with open_gateway(start, folder / "keeping", config) as keeping:
                warm = min(_FIRST, memory_rounds)
                async for row in _measure_cost(stage, keeping, length, warm):
                    yield row


async def _measure_memory(stage: Stage, rounds: int) -> AsyncGenerator[Row]:
    endpoint, used = stage.ours.find_endpoint(), list[int]()
    for _ in range(rounds):
        await stage.run(replace(MIXED_ORDER, seconds=_SLICE_S), stage.ours)
        used.append(await read_used_bytes(endpoint))
    first = used[min(_FIRST, rounds) - 1]
    what = f"engine memory after {rounds * _SLICE_S:.0f} s of work ÷ after the first minute"
    yield Row(what, Spread.of([used[-1] / first]), "ratio", Bound("at most", 1.2))


@dataclass(slots=True)
class _Side:
    """One of the two gateways, and what its rounds gave."""

    gateway: Gateway
    answers: int = 0
    p99_ms: list[float] = field(default_factory=list[float])
    began: list[float] = field(default_factory=list[float])

    @property
    def meter(self) -> Meter:
        """Gateway and engine."""
        return Meter((self.gateway.pid, self.gateway.engine_pid))

    async def work(self, stage: Stage, seconds: float) -> None:
        """One round."""
        outcome = (await stage.run(replace(MIXED_ORDER, seconds=seconds), self.gateway)).outcome
        self.answers += outcome.count
        self.p99_ms.append(outcome.p99_ms)

    def find_cost(self) -> tuple[float, float]:
        """CPU µs of gateway and engine for a task, since ``began``."""
        gateway, engine = (
            1e6 * (now - then) / (self.answers * _TASKS)
            for now, then in zip(self.meter.read(), self.began, strict=True)
        )
        return gateway, engine


async def _measure_cost(
    stage: Stage, keeping: Gateway, length: Length, warm: int
) -> AsyncGenerator[Row]:
    sides = letting, kept = _Side(stage.ours), _Side(keeping)
    for _ in range(warm):
        for side in sides:
            await side.work(stage, _SLICE_S)
    await _drain(stage.ours)
    for side in sides:
        side.answers, side.p99_ms, side.began = 0, [], side.meter.read()
    for number in range(length.rounds):
        # Each works as often behind the other as before it.
        for side in sides if number % 2 == 0 else sides[::-1]:
            await side.work(stage, length.seconds)
    await _drain(stage.ours)
    (own, engine), (other, other_engine) = letting.find_cost(), kept.find_cost()
    late = [one / two for one, two in zip(letting.p99_ms, kept.p99_ms, strict=True)]
    yield Row("CPU of the gateway for a task", Spread.of([other]), "µs")
    what = "more where its session leaves"
    yield Row(f"{what}: CPU of the gateway", Spread.of([own - other]), "µs", Bound("at most", 200))
    yield Row(f"{what}: ÷ the work", Spread.of([own / other - 1]), "ratio", Bound("at most", 0.1))
    yield Row(f"{what}: CPU of the engine", Spread.of([engine - other_engine]), "µs")
    what = "p99 of an answer beside sessions that leave ÷ without"
    yield Row(what, Spread.of(late), "ratio", Bound("at most", 1.3))


async def _drain(gateway: Gateway) -> None:
    """Waits until no session has left for as long as one stays.

    Raises:
        BenchBroken: they leave and leave.
    """
    left = -1.0
    for _ in range(round(_DRAIN_S / KEEP_S)):
        before, left = left, await _count_left(gateway)
        if left == before:
            return
        # A few wait for others twice as long.
        await asyncio.sleep(2 * KEEP_S + 2)
    raise BenchBroken("sessions leave and leave")


async def _count_left(gateway: Gateway) -> float:
    async with httpx.AsyncClient(headers=gateway.process.authorization, trust_env=False) as http:
        page = await http.get(f"{gateway.process.url}/metrics")
    return sum(map(float, _LEFT.findall(page.raise_for_status().text)))
