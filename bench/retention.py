"""The cost of moving ended sessions out of memory, and a check that memory does not grow with ended work.

First a gateway whose sessions leave 20 s after their end works without a pause. Then one works for 10 s, and rests
until all sessions have left: the CPU used while sessions leave, minus that used after, is the cost of leaving.
Finally a gateway whose sessions leave and one whose sessions stay take turns in front of one agent, to measure how
long callers wait.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import yaml

from bench.kinds import MIXED_ORDER, RoundPlan
from bench.rows import Bound, MeasurementError, Row, Spread
from bench.testbed import BenchGateway, GatewaySetup, Testbed, open_gateway, open_testbed
from bench.usage import CpuMeter, read_used_bytes
from passerelle.demo.processes import start

KEEP_S: Final = 20
MEMORY_ROUNDS: Final = 30
"""Of ten seconds each, without a pause between them."""
_SLICE_S: Final = 10.0
_FIRST: Final = 6
"""Number of rounds after which memory has reached its level."""
_CYCLES: Final = 3
"""Cycles of work and of its sessions leaving."""
_WARM: Final = 2
_DRAIN_S: Final = 200.0
_LOOK_S: Final = 1.0
_LEFT: Final = re.compile(
    r'^passerelle_archived_sessions_total\{outcome="archived"\} (\S+)$', re.MULTILINE
)
_TASKS: Final = 5 / 6
"""Per answer: the steps of the order make five tasks in six answers."""
_TASKS_OF_SESSION: Final = 5 / 3
"""Three of them are in one session."""


def _set_up(keep: str | None) -> GatewaySetup:
    return GatewaySetup("echo", more=lambda _receiver: {"retention": {"memory": keep}})


async def measure_retention(length: RoundPlan, memory_rounds: int) -> AsyncGenerator[Row]:
    """Rows of the section."""
    async with open_testbed(_set_up(f"{KEEP_S}s")) as testbed:
        async for row in _measure_memory(testbed, memory_rounds):
            yield row
    async with open_testbed(_set_up(f"{KEEP_S}s")) as testbed:
        async for row in _measure_leaving(testbed.ours, testbed, min(_CYCLES, length.rounds)):
            yield row
        with tempfile.TemporaryDirectory(prefix="psr-bench-") as name:
            folder = Path(name)
            config = folder / "keeping.yaml"
            config.write_text(
                yaml.safe_dump(_set_up(None).compose(testbed.direct_url, testbed.receiver))
            )
            async with open_gateway(start, folder / "keeping", config) as keeping:
                warm = min(_WARM, memory_rounds)
                async for row in _measure_waits(testbed, keeping, length, warm):
                    yield row


async def _measure_memory(testbed: Testbed, rounds: int) -> AsyncGenerator[Row]:
    endpoint, used = testbed.ours.find_endpoint(), list[int]()
    for _ in range(rounds):
        await testbed.run(replace(MIXED_ORDER, seconds=_SLICE_S), testbed.ours)
        used.append(await read_used_bytes(endpoint))
    first = used[min(_FIRST, rounds) - 1]
    what = f"engine memory after {rounds * _SLICE_S:.0f} s of work ÷ after the first minute"
    yield Row(what, Spread.of([used[-1] / first]), "ratio", Bound("at most", 1.2))


@dataclass(frozen=True, slots=True)
class RetentionSample:
    """A sample of a resting gateway: time, sessions that have left memory, CPU seconds of gateway and engine."""

    at_s: float
    left: float
    cpu_s: Sequence[float]


def find_leaving_s(looks: Sequence[RetentionSample]) -> list[float]:
    """CPU seconds of leaving, per process: those used while sessions left, minus the idle cost.

    The idle cost is measured after the last session has left.

    Raises:
        MeasurementError: no session has left, or there is no idle time after them.
    """
    changes = [
        place for place in range(1, len(looks)) if looks[place].left != looks[place - 1].left
    ]
    if not changes or changes[-1] + 1 >= len(looks):
        raise MeasurementError("no session leaves, or they leave and leave")
    begin, end, last = looks[changes[0] - 1], looks[changes[-1]], looks[-1]
    busy_s, rest_s = end.at_s - begin.at_s, last.at_s - end.at_s
    return [
        late - early - (resting - late) / rest_s * busy_s
        for early, late, resting in zip(begin.cpu_s, end.cpu_s, last.cpu_s, strict=True)
    ]


async def _measure_leaving(
    gateway: BenchGateway, testbed: Testbed, rounds: int
) -> AsyncGenerator[Row]:
    """CPU of leaving sessions, separate from that of the work that created them."""
    meter = CpuMeter((gateway.pid, gateway.engine_pid))
    works, leaves = list[float](), list[list[float]]()
    for _ in range(rounds):
        began = meter.read()
        outcome = (await testbed.run(replace(MIXED_ORDER, seconds=_SLICE_S), gateway)).outcome
        works.append(1e6 * (meter.read()[0] - began[0]) / (outcome.count * _TASKS))
        looks = [look async for look in _watch_rest(gateway, meter)]
        left = (looks[-1].left - looks[0].left) * _TASKS_OF_SESSION
        leaves.append([1e6 * used_s / left for used_s in find_leaving_s(looks)])
    gateways, engines = zip(*leaves, strict=True)
    shares = [one / work for one, work in zip(gateways, works, strict=True)]
    yield Row("CPU of the gateway for a task", Spread.of(works), "µs")
    what = "a task that leaves with its session"
    yield Row(f"{what}: CPU of the gateway", Spread.of(gateways), "µs", Bound("at most", 200))
    yield Row(f"{what}: ÷ the work", Spread.of(shares), "ratio", Bound("at most", 0.1))
    yield Row(f"{what}: CPU of the engine", Spread.of(engines), "µs")


async def _measure_waits(
    testbed: Testbed, keeping: BenchGateway, length: RoundPlan, warm: int
) -> AsyncGenerator[Row]:
    sides, late = (testbed.ours, keeping), dict[int, list[float]]()
    for number in range(warm + length.rounds):
        # Each gateway runs first as often as second.
        for gateway in sides if number % 2 == 0 else sides[::-1]:
            order = replace(MIXED_ORDER, seconds=_SLICE_S if number < warm else length.seconds)
            outcome = (await testbed.run(order, gateway)).outcome
            if number >= warm:
                late.setdefault(gateway.pid, []).append(outcome.p99_ms)
    pairs = zip(*(late[gateway.pid] for gateway in sides), strict=True)
    what = "p99 of an answer beside sessions that leave ÷ without"
    yield Row(what, Spread.of([one / two for one, two in pairs]), "ratio", Bound("at most", 1.3))


async def _watch_rest(gateway: BenchGateway, meter: CpuMeter) -> AsyncGenerator[RetentionSample]:
    """Samples until no session has left for longer than one stays.

    Raises:
        MeasurementError: sessions keep leaving.
    """
    first = last = RetentionSample(time.monotonic(), await _count_left(gateway), meter.read())
    yield first
    for _ in range(round(_DRAIN_S / _LOOK_S)):
        look = RetentionSample(time.monotonic(), await _count_left(gateway), meter.read())
        yield look
        if look.left != last.left:
            last = look
        elif look.left != first.left and look.at_s - last.at_s > KEEP_S + 5:
            return
        await asyncio.sleep(_LOOK_S)
    raise MeasurementError("sessions leave and leave")


async def _count_left(gateway: BenchGateway) -> float:
    async with httpx.AsyncClient(headers=gateway.process.authorization, trust_env=False) as http:
        page = await http.get(f"{gateway.process.url}/metrics")
    return sum(map(float, _LEFT.findall(page.raise_for_status().text)))
