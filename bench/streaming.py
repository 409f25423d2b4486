"""Streams: events a second through the gateway against directly, at a steady pace and as fast as the agent can.

An event is an artifact chunk: what the agent sent and the caller has to get, each one exactly once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from bench.load import Order
from bench.rows import BenchBroken, Bound, Row, Spread
from bench.stage import Round, Stage, open_stage

STREAMS: Final = 8
_COMPLETED: Final = '"TASK_STATE_COMPLETED"'


@dataclass(frozen=True, slots=True)
class Pace:
    """Chunks per stream, and the seconds between two of them."""

    name: str
    chunks: int
    every_s: float
    bound: Bound

    @property
    def order(self) -> Order:
        """All streams at once, each read to its end."""
        text = f"chunks={self.chunks} every={self.every_s:.3f}"
        return Order("stream", "", {}, text, STREAMS, _COMPLETED)


async def measure_streams(rounds: int, chunks: int) -> AsyncGenerator[Row]:
    """Rows of the section; a round has ``chunks`` events in each stream."""
    paces = (
        Pace("an event per 15 ms", chunks, 0.015, Bound("at least", 0.9)),
        Pace("as fast as the agent can", chunks, 0.0, Bound("at least", 0.6)),
    )
    async with open_stage("report") as stage:
        await _run(stage, Pace("", 20, 0.0, Bound("at least", 0)), through=True)
        for pace in paces:
            pairs = [
                (await _run(stage, pace, through=False), await _run(stage, pace, through=True))
                for _ in range(rounds)
            ]
            name = f"{STREAMS} streams, {pace.name}"
            ratio = Spread.of([through.rate / direct.rate for direct, through in pairs])
            yield Row(f"{name}: events/s through ÷ direct", ratio, "ratio", pace.bound)
            yield Row(
                f"{name}: events/s through", Spread.of([late.rate for _, late in pairs]), "1/s"
            )
            for what, values in (
                ("agent CPU per event", [through.agent_us for _, through in pairs]),
                ("gateway CPU per event", [through.gateway_us for _, through in pairs]),
                ("engine CPU per event", [through.engine_us for _, through in pairs]),
                ("appends per event", [through.appends for _, through in pairs]),
            ):
                unit = "µs" if "CPU" in what else "appends"
                yield Row(f"{name}: {what}", Spread.of(values), unit)


async def _run(stage: Stage, pace: Pace, *, through: bool) -> Round:
    done = await stage.run(pace.order, through=through)
    if done.outcome.count != STREAMS * pace.chunks:
        raise BenchBroken(f"{done.outcome.count} events of {STREAMS * pace.chunks} arrived")
    return done
