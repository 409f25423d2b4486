"""Nothing happens: what a gateway without callers costs, and what each open stream costs in memory.

A few tasks go on for longer than the measurement; every subscriber has seen the Task that opens its stream.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncGenerator
from typing import Final

import httpx

from bench.load import Order
from bench.rows import BenchBroken, Bound, Row, Spread
from bench.stage import Stage, open_stage
from bench.usage import Meter, read_logged_bytes, read_resident_bytes

SUBSCRIBERS: Final = 1_000
TASKS: Final = 10
_WARM: Final = 100
_FILES_EACH: Final = 1
_FILES_SPARE: Final = 200
_REST_S: Final = 10.0
_SETTLE_S: Final = 3.0
_LONG: Final = "chunks=1000 every=10"


async def measure_idle() -> AsyncGenerator[Row]:
    """Rows of the section."""
    what, bound = f"{SUBSCRIBERS} idle subscribers: memory each", Bound("at most", 40.0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < SUBSCRIBERS * _FILES_EACH + _FILES_SPARE:
        yield Row(f"{what} (open files are limited to {soft})", None, "kB", bound)
        return
    async with open_stage("report") as stage:
        async for row in _measure_rest(stage):
            yield row
        tasks = [await _begin_task(stage) for _ in range(TASKS)]
        await _hold(stage, tasks, _WARM)
        await _release(stage)
        before = read_resident_bytes(stage.gateway_pid)
        await _hold(stage, tasks, SUBSCRIBERS)
        grown = read_resident_bytes(stage.gateway_pid) - before
        await _release(stage)
    yield Row(what, Spread.of([grown / SUBSCRIBERS / 1000]), "kB", bound)


async def _measure_rest(stage: Stage) -> AsyncGenerator[Row]:
    """Bytes that are written and CPU that is used for nobody; leases rest, and are looked at all the same."""
    endpoint, meter = stage.find_endpoint(), Meter((stage.gateway_pid, stage.engine_pid))
    await asyncio.sleep(_SETTLE_S)
    began_s, logged, used = time.monotonic(), await read_logged_bytes(endpoint), meter.read()
    await asyncio.sleep(_REST_S)
    took_s = time.monotonic() - began_s
    written = (await read_logged_bytes(endpoint) - logged) / took_s / 1000
    share = (sum(meter.read()) - sum(used)) / took_s * 100
    yield Row("no caller: written per second", Spread.of([written]), "kB", Bound("at most", 1.0))
    yield Row(
        "no caller: CPU of gateway and engine", Spread.of([share]), "%", Bound("at most", 1.5)
    )


async def _begin_task(stage: Stage) -> str:
    message = {"messageId": "idle", "role": "ROLE_USER", "parts": [{"text": _LONG}]}
    params = {"message": message, "configuration": {"returnImmediately": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"A2A-Version": "1.0", **stage.gateway.authorization}
    async with httpx.AsyncClient(headers=headers, timeout=20, trust_env=False) as http:
        answer = (await http.post(stage.through_url, json=body)).json()
    try:
        task: str = answer["result"]["task"]["id"]
    except KeyError:
        raise BenchBroken(f"no task was begun: {answer}") from None
    return task


async def _hold(stage: Stage, tasks: list[str], count: int) -> None:
    order = Order(
        "hold", stage.through_url, stage.gateway.authorization, " ".join(tasks), count, '"task"'
    )
    outcome = await stage.load.carry_out(order)
    if outcome.count != count:
        raise BenchBroken(f"{outcome.count} of {count} streams were opened")


async def _release(stage: Stage) -> None:
    await stage.load.carry_out(Order("release", stage.through_url, {}, "", 0, ""))
