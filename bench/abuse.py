"""The effect of abuse on others: latency of a well-behaved caller next to each kind of abuse, and alone.

Rounds alternate between alone and abused, so noise of the machine affects both. The CPU that the abuser and its agent
use is missing for all others, so a ratio also depends on the machine: compare it with that of another checkout on the
same machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import orjson

from bench.abusers import AbuseOrder, AbuseStarted
from bench.kinds import TASK_ORDER, WARM_S, RoundPlan
from bench.load import LoadRun
from bench.rows import MeasurementError, Row, Spread
from bench.talkative import NAME
from bench.testbed import ANSWER_S, GatewaySetup, Testbed, open_testbed
from bench.trees import ROOT
from passerelle.demo.processes import start

_REST: Final = AbuseOrder("rest")
_CALLER: Final = replace(TASK_ORDER, callers=1)


@dataclass(frozen=True, slots=True)
class AbuseKind:
    """One kind of abuse, as named in the table."""

    name: str
    order: AbuseOrder


ABUSES: Final = (
    AbuseKind("4 pipelines that nobody reads", AbuseOrder("pipelines", count=4)),
    AbuseKind(
        "30 slow readers of a stream", AbuseOrder("slow readers", count=30, text="kb=2 every_ms=5")
    ),
    AbuseKind("an agent that talks, frames of 2 kB", AbuseOrder("talk", count=1, text="kb=2")),
    AbuseKind("an agent that talks, frames of 60 kB", AbuseOrder("talk", count=1, text="kb=60")),
    AbuseKind("400 half-open connections", AbuseOrder("half-open", count=400)),
    AbuseKind(
        "2 callers with bodies of 5 MB", AbuseOrder("bodies", count=2, text="z", size=5_000_000)
    ),
)


@dataclass(frozen=True, slots=True)
class AbusePair:
    """The caller alone, and next to an abuse in the following round."""

    alone: LoadRun
    abused: LoadRun


class AbuserProcess:
    """The abuser process, which executes one order at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def execute(self, order: AbuseOrder) -> None:
        """Returns when the abuse has started and the previous one has ended.

        Raises:
            MeasurementError: it did not start.
        """
        wire = self._process
        if wire.stdin is None or wire.stdout is None:
            raise MeasurementError("the abusers have no pipes")
        wire.stdin.write(orjson.dumps(asdict(order)) + b"\n")
        await wire.stdin.drain()
        async with asyncio.timeout(ANSWER_S):
            line = await wire.stdout.readline()
        if not line:
            raise MeasurementError("the abusers have ended")
        begun = AbuseStarted(**orjson.loads(line))
        if begun.error is not None:
            raise MeasurementError(f"{order.kind}: {begun.error}")


@asynccontextmanager
async def open_abusers() -> AsyncGenerator[AbuserProcess]:
    """Starts the abuser process; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.abusers",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield AbuserProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure_abuse(length: RoundPlan) -> AsyncGenerator[Row]:
    """Rows of the section, yielded as they are measured."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="psr-abuse-")))
        agent = start(NAME, ("bench.talkative",), folder, {"PYTHONPATH": str(ROOT)})
        stack.push_async_callback(agent.stop)
        url: str = orjson.loads(await agent.read_line("{"))["url"]
        testbed = await stack.enter_async_context(
            open_testbed(GatewaySetup("echo", others=({"name": NAME, "url": url},)))
        )
        abusers = await stack.enter_async_context(open_abusers())
        await testbed.run(replace(_CALLER, seconds=WARM_S), testbed.ours)
        for abuse in ABUSES:
            pairs = [
                await _take_turn(testbed, abusers, abuse, length) for _ in range(length.rounds)
            ]
            for row in _rows(abuse, pairs):
                yield row


async def _take_turn(
    testbed: Testbed, abusers: AbuserProcess, abuse: AbuseKind, length: RoundPlan
) -> AbusePair:
    caller = replace(_CALLER, seconds=length.seconds)
    alone = await testbed.run(caller, testbed.ours)
    url = testbed.ours.find_url(NAME)
    await abusers.execute(replace(abuse.order, url=url, headers=testbed.ours.process.authorization))
    abused = await testbed.run(caller, testbed.ours)
    await abusers.execute(_REST)
    return AbusePair(alone.outcome, abused.outcome)


def _rows(abuse: AbuseKind, pairs: list[AbusePair]) -> list[Row]:
    medians = [pair.abused.median_ms / pair.alone.median_ms for pair in pairs]
    late = [pair.abused.p99_ms / pair.alone.p99_ms for pair in pairs]
    what = f"beside {abuse.name}"
    return [
        Row(f"{what}: median ÷ alone", Spread.of(medians), "ratio"),
        Row(f"{what}: p99 ÷ alone", Spread.of(late), "ratio"),
        Row(f"{what}: p99", Spread.of([pair.abused.p99_ms for pair in pairs]), "ms"),
    ]
