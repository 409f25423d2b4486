"""The cost of delegation features: the gateway chooses the agent, or sends all items of a job.

A message to the agent ``passerelle``, for which the gateway chooses among three, takes turns with the same message to
a named agent and with a job whose items are that message. A job is over when all of its items have ended; its caller
polls twice a second, which is part of the cost. Rounds are short and many, and every second one runs in reverse
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import httpx

from bench.kinds import CALLERS, TASK_ORDER, WARM_S, RoundPlan
from bench.rows import Bound, MeasurementError, Row, Spread
from bench.steps import SHOWN
from bench.testbed import GatewaySetup, Testbed, open_testbed
from bench.usage import CpuMeter
from passerelle.core.wire.json import Json, JsonObject

ROUTER: Final = "passerelle"
"""The name of the gateway's own agent."""
_SETTING: Final = GatewaySetup("echo", others=({"name": "second"}, {"name": "third"}))
_LOOK_S: Final = 0.5
_REST_S: Final = 0.25
_JOB_S: Final = 120.0
_LIVE: Final = frozenset({"created", "running"})


async def measure_delegation(length: RoundPlan, items: int) -> AsyncGenerator[Row]:
    """Rows of the section; a job has ``items`` items."""
    named, routed, item = list[float](), list[float](), list[float]()
    async with open_testbed(_SETTING) as testbed:
        for number in range(length.rounds + 1):
            seconds = length.seconds if number else WARM_S
            turns: list[tuple[list[float], Callable[[], Awaitable[float]]]] = [
                (named, partial(_send, testbed, testbed.agent_name, seconds)),
                (routed, partial(_send, testbed, ROUTER, seconds)),
                (item, partial(_run_job, testbed, items)),
            ]
            for found, measure in turns if number % 2 else reversed(turns):
                used = await measure()
                # The first round is not counted.
                if number:
                    found.append(used)
    yield Row("message to a named agent: gateway CPU", Spread.of(named), "µs")
    yield Row("message routed among three agents: gateway CPU", Spread.of(routed), "µs")
    yield _compare("message routed ÷ to a named agent: gateway CPU", routed, named, 1.1)
    yield Row(f"item of a job of {items:,}: gateway CPU", Spread.of(item), "µs")
    yield _compare("item of a job ÷ message to a named agent: gateway CPU", item, named, 1.3)


async def _send(testbed: Testbed, agent: str, seconds: float) -> float:
    """Gateway CPU µs per message. The caller is the owner, as for a job: clients of the testbed may not create one."""
    order = replace(TASK_ORDER, seconds=seconds, keys=[testbed.ours.process.token])
    return (await testbed.run(order, testbed.ours, as_agent=agent)).gateway_us


async def _run_job(testbed: Testbed, items: int) -> float:
    """Gateway CPU µs per item, until the job is over and the gateway has finished its work on it.

    Raises:
        MeasurementError: an item did not complete in time.
    """
    gateway = testbed.ours
    meter = CpuMeter((gateway.pid, gateway.engine_pid))
    job: JsonObject = {
        "title": "bench",
        "agents": [testbed.agent_name],
        "inputs": list[Json](["hello"]) * items,
        "concurrency": CALLERS,
    }
    url, headers = gateway.process.url, gateway.process.authorization
    client = httpx.AsyncClient(base_url=url, headers=headers, timeout=_JOB_S, trust_env=False)
    async with client as http:
        started = meter.read()[0]
        shown = (await _ask(http, "POST", "/v1/jobs", job))["job"]
        path = f"/v1/jobs/{shown['jobId']}"
        try:
            async with asyncio.timeout(_JOB_S):
                while shown["status"] in _LIVE:
                    await asyncio.sleep(_LOOK_S)
                    shown = await _ask(http, "GET", path)
        except TimeoutError:
            raise MeasurementError(
                f"the job is still {shown['status']}: {shown['counts']}"
            ) from None
    await meter.await_rest(_REST_S)
    used = meter.read()[0] - started
    if shown["status"] != "completed":
        raise MeasurementError(f"the job is {shown['status']}: {shown['counts']}")
    return 1e6 * used / items


async def _ask(
    http: httpx.AsyncClient, method: str, path: str, body: JsonObject | None = None
) -> Any:  # noqa: ANN401  JSON
    answer = await http.request(method, path, json=body)
    if not answer.is_success:
        raise MeasurementError(f"{method} {path}: {answer.status_code}: {answer.text[:SHOWN]}")
    return answer.json()


def _compare(what: str, values: Sequence[float], others: Sequence[float], most: float) -> Row:
    ratios = [one / other for one, other in zip(values, others, strict=True)]
    return Row(what, Spread.of(ratios), "ratio", Bound("at most", most))
