"""Idle cost: a gateway without callers, and the memory of each open stream.

A few tasks run for longer than the measurement; every subscriber has received the Task that opens its stream.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, Literal

from bench.kinds import make_call, make_message
from bench.load import LoadOrder
from bench.rows import Bound, Row, Spread
from bench.steps import TASK, RequestStep
from bench.testbed import GatewaySetup, Testbed, open_testbed
from bench.usage import CpuMeter, read_logged_bytes, read_resident_bytes

SUBSCRIBERS: Final = 1_000
TASKS: Final = 10
_WARM: Final = 100
_FILES_EACH: Final = 1
_FILES_SPARE: Final = 200
_REST_S: Final = 10.0
_SETTLE_S: Final = 3.0
_SETTING: Final = GatewaySetup("report", more=lambda _: {"requests": {"streams": SUBSCRIBERS}})
_BEGIN: Final = RequestStep(
    make_call(
        "SendMessage",
        {
            "message": make_message("chunks=1000 every=10"),
            "configuration": {"returnImmediately": True},
        },
    ),
    '"task"',
    teaches=True,
)
_FOLLOW: Final = RequestStep(make_call("SubscribeToTask", {"id": TASK}), '"task"')


async def measure_idle() -> AsyncGenerator[Row]:
    """Rows of the section."""
    what, bound = f"{SUBSCRIBERS} idle subscribers: memory each", Bound("at most", 40.0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < SUBSCRIBERS * _FILES_EACH + _FILES_SPARE:
        yield Row(f"{what} (open files are limited to {soft})", None, "kB", bound)
        return
    async with open_testbed(_SETTING) as testbed:
        async for row in _measure_rest(testbed):
            yield row
        tasks = await testbed.load.execute(_order(testbed, "send", _BEGIN, TASKS))
        hold = replace(_order(testbed, "hold", _FOLLOW, SUBSCRIBERS), known=tasks.found)
        await testbed.load.execute(replace(hold, callers=_WARM))
        await testbed.load.execute(LoadOrder("release"))
        before = read_resident_bytes(testbed.ours.pid)
        await testbed.load.execute(hold)
        grown = read_resident_bytes(testbed.ours.pid) - before
        await testbed.load.execute(LoadOrder("release"))
    yield Row(what, Spread.of([grown / SUBSCRIBERS / 1000]), "kB", bound)


async def _measure_rest(testbed: Testbed) -> AsyncGenerator[Row]:
    """Bytes written and CPU used without callers; leases stay unchanged but are still checked."""
    endpoint, meter = (
        testbed.ours.find_endpoint(),
        CpuMeter((testbed.ours.pid, testbed.ours.engine_pid)),
    )
    await asyncio.sleep(_SETTLE_S)
    began_s, logged, used = time.monotonic(), await read_logged_bytes(endpoint), meter.read()
    await asyncio.sleep(_REST_S)
    took_s = time.monotonic() - began_s
    written = (await read_logged_bytes(endpoint) - logged) / took_s / 1000
    gateway, engine = (
        (now - then) / took_s * 100 for now, then in zip(meter.read(), used, strict=True)
    )
    yield Row("no caller: written per second", Spread.of([written]), "kB", Bound("at most", 1.0))
    yield Row("no caller: CPU of the gateway", Spread.of([gateway]), "%", Bound("at most", 0.3))
    what = "no caller: CPU of the engine; one without clients uses 0.2"
    yield Row(what, Spread.of([engine]), "%", Bound("at most", 0.4))


def _order(
    testbed: Testbed, kind: Literal["send", "hold"], step: RequestStep, callers: int
) -> LoadOrder:
    gateway = testbed.ours
    url = gateway.find_url(testbed.agent_name)
    return LoadOrder(kind, url, [step], callers, keys=[gateway.process.token])
