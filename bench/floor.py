"""The floor: gateways that do nothing but pass on, in the same rounds as the gateway that keeps every task.

What the first of them costs is what no gateway on this server and this client can get below. The rows have no bound:
they say what a bound on the gateway can mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from bench.bare import FORMS
from bench.kinds import MESSAGE_ORDER, TASK_ORDER, WARM_S, Length
from bench.load import Order
from bench.rows import BenchBroken, Row, Spread
from bench.stage import Setting, Stage, open_stage
from bench.trees import ROOT
from bench.usage import Meter
from passerelle.demo.processes import Child, start


@dataclass(frozen=True, slots=True)
class Bare:
    """One gateway of nothing."""

    form: str
    url: str
    child: Child


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of what stands before the agent ÷ that of the agent called directly, and microseconds of the former."""

    ratio: float
    micros: float


async def measure_floor(length: Length) -> AsyncGenerator[Row]:
    """Rows of the section, as they are measured."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(open_stage(Setting("echo")))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="psr-floor-")))
        bare = [await _start(form, stage, folder, stack) for form in FORMS]
        for name, order in (("task", TASK_ORDER), ("bare Message", MESSAGE_ORDER)):
            costs = await _alternate(stage, bare, order, length)
            for form, measured in costs.items():
                yield Row(
                    f"{name}, {order.callers} callers: {form}: CPU ÷ agent CPU",
                    Spread.of([cost.ratio for cost in measured]),
                    "ratio",
                )
                yield Row(
                    f"{name}, {order.callers} callers: {form}: CPU",
                    Spread.of([cost.micros for cost in measured]),
                    "µs",
                )


async def _start(form: str, stage: Stage, folder: Path, stack: AsyncExitStack) -> Bare:
    arguments = ("bench.bare", form, stage.direct_url.rstrip("/"))
    child = start(form, arguments, folder, {"PYTHONPATH": str(ROOT)})
    stack.push_async_callback(child.stop)
    url: str = orjson.loads(await child.read_line("{"))["url"]
    return Bare(form, f"{url}/", child)


async def _alternate(
    stage: Stage, bare: list[Bare], order: Order, length: Length
) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {}
    for number in range(length.rounds + 1):
        timed = replace(order, seconds=length.seconds if number else WARM_S)
        direct = await stage.run(timed)
        micros = {f"bare {one.form}": await _run(stage, one, timed) for one in bare}
        micros["the gateway"] = (await stage.run(timed, stage.ours)).gateway_us
        if number:
            for form, took in micros.items():
                costs.setdefault(form, []).append(Cost(took / direct.agent_us, took))
    return costs


async def _run(stage: Stage, bare: Bare, order: Order) -> float:
    meter = Meter((bare.child.process.pid,))
    [before] = meter.read()
    outcome = await stage.load.carry_out(replace(order, url=bare.url, keys=()))
    if not outcome.count:
        raise BenchBroken(f"{bare.form}: nothing was answered")
    [after] = meter.read()
    return 1e6 * (after - before) / outcome.count
