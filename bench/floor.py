"""The floor: pass-through gateways in the same rounds as the gateway that stores every task.

The cheapest of them is the lower bound of any gateway on this server and this client. The rows have no bound: they
show what a bound on the gateway can mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from bench.bare import FORMS
from bench.kinds import MESSAGE_ORDER, TASK_ORDER, WARM_S, RoundPlan
from bench.load import LoadOrder
from bench.rows import MeasurementError, Row, Spread
from bench.testbed import GatewaySetup, Testbed, open_testbed
from bench.trees import ROOT
from bench.usage import CpuMeter
from passerelle.demo.processes import Child, start


@dataclass(frozen=True, slots=True)
class PassThroughGateway:
    """One pass-through gateway."""

    form: str
    url: str
    child: Child


@dataclass(frozen=True, slots=True)
class FloorCost:
    """CPU of the gateway ÷ that of the agent called directly, and its microseconds per answer."""

    ratio: float
    micros: float


async def measure_floor(length: RoundPlan) -> AsyncGenerator[Row]:
    """Rows of the section, yielded as they are measured."""
    async with AsyncExitStack() as stack:
        testbed = await stack.enter_async_context(open_testbed(GatewaySetup("echo")))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="psr-floor-")))
        bare = [await _start(form, testbed, folder, stack) for form in FORMS]
        for name, order in (("task", TASK_ORDER), ("bare Message", MESSAGE_ORDER)):
            costs = await _alternate(testbed, bare, order, length)
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


async def _start(
    form: str, testbed: Testbed, folder: Path, stack: AsyncExitStack
) -> PassThroughGateway:
    arguments = ("bench.bare", form, testbed.direct_url.rstrip("/"))
    child = start(form, arguments, folder, {"PYTHONPATH": str(ROOT)})
    stack.push_async_callback(child.stop)
    url: str = orjson.loads(await child.read_line("{"))["url"]
    return PassThroughGateway(form, f"{url}/", child)


async def _alternate(
    testbed: Testbed, bare: list[PassThroughGateway], order: LoadOrder, length: RoundPlan
) -> dict[str, list[FloorCost]]:
    costs: dict[str, list[FloorCost]] = {}
    for number in range(length.rounds + 1):
        timed = replace(order, seconds=length.seconds if number else WARM_S)
        direct = await testbed.run(timed)
        micros = {f"bare {one.form}": await _run(testbed, one, timed) for one in bare}
        micros["the gateway"] = (await testbed.run(timed, testbed.ours)).gateway_us
        if number:
            for form, took in micros.items():
                costs.setdefault(form, []).append(FloorCost(took / direct.agent_us, took))
    return costs


async def _run(testbed: Testbed, bare: PassThroughGateway, order: LoadOrder) -> float:
    meter = CpuMeter((bare.child.process.pid,))
    [before] = meter.read()
    outcome = await testbed.load.execute(replace(order, url=bare.url, keys=()))
    if not outcome.count:
        raise MeasurementError(f"{bare.form}: nothing was answered")
    [after] = meter.read()
    return 1e6 * (after - before) / outcome.count
