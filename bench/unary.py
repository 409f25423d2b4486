"""Unary SendMessage: an agent called directly, and through the gateway that keeps every task.

Rounds alternate, so that a neighbour's noise meets both sides, and each ratio is made of two rounds that
followed each other. CPU ratios are of one round: agent, gateway and engine under the same load.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Final

from bench.load import Order
from bench.rows import Bound, Row, Spread
from bench.stage import Round, Stage, open_stage
from bench.usage import read_used_bytes

CALLERS: Final = 16
TASK: Final = Order("unary", "", {}, "hello", CALLERS, '"TASK_STATE_COMPLETED"')
MESSAGE: Final = Order("unary", "", {}, "message: hello", CALLERS, '"ROLE_AGENT"')
WARM_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Length:
    """How often, and how long each time."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A direct round and the one through the gateway that followed it."""

    direct: Round
    through: Round


async def measure_unary(length: Length) -> AsyncGenerator[Row]:
    """Rows of the section, as they are measured."""
    async with open_stage("echo") as stage:
        for name, order, cpu_bound in (("task", TASK, 0.25), ("bare Message", MESSAGE, 0.30)):
            used = await read_used_bytes(stage.find_endpoint())
            pairs, sent = await _alternate(stage, order, length)
            grown = (await read_used_bytes(stage.find_endpoint()) - used) / sent
            for row in _rows_at_load(name, pairs, cpu_bound):
                yield row
            yield Row(
                f"{name}: engine bytes per answered message, nothing trimmed",
                Spread.of([grown]),
                "bytes",
            )
        pairs, _ = await _alternate(stage, replace(TASK, callers=1), length)
        for row in _rows_alone(pairs):
            yield row


async def _alternate(stage: Stage, order: Order, length: Length) -> tuple[list[Pair], int]:
    """The pairs, and how many messages the gateway has kept meanwhile."""
    sent = 0
    warm = replace(order, seconds=WARM_S)
    order = replace(order, seconds=length.seconds)
    await stage.run(warm, through=False)
    sent += (await stage.run(warm, through=True)).outcome.count
    pairs: list[Pair] = []
    for _ in range(length.rounds):
        direct = await stage.run(order, through=False)
        through = await stage.run(order, through=True)
        sent += through.outcome.count
        pairs.append(Pair(direct, through))
    return pairs, sent


def _rows_at_load(name: str, pairs: list[Pair], cpu_bound: float) -> list[Row]:
    def row(
        what: str, value: Callable[[Pair], float], unit: str, bound: Bound | None = None
    ) -> Row:
        return Row(
            f"{name}, {CALLERS} callers: {what}", Spread.of(list(map(value, pairs))), unit, bound
        )

    return [
        row(
            "gateway CPU ÷ agent CPU",
            lambda pair: pair.through.gateway_us / pair.through.agent_us,
            "ratio",
            Bound("at most", cpu_bound),
        ),
        row(
            "engine CPU ÷ agent CPU",
            lambda pair: pair.through.engine_us / pair.through.agent_us,
            "ratio",
        ),
        row(
            "requests/s through ÷ direct",
            lambda pair: pair.through.rate / pair.direct.rate,
            "ratio",
            Bound("at least", 0.85),
        ),
        row(
            "appends per request",
            lambda pair: pair.through.appends,
            "appends",
            Bound("exactly", 2),
        ),
        row("requests/s direct", lambda pair: pair.direct.rate, "1/s"),
        row("requests/s through", lambda pair: pair.through.rate, "1/s"),
        row("agent CPU, called directly", lambda pair: pair.direct.agent_us, "µs"),
        row("agent CPU, called by the gateway", lambda pair: pair.through.agent_us, "µs"),
        row("gateway CPU", lambda pair: pair.through.gateway_us, "µs"),
        row("engine CPU", lambda pair: pair.through.engine_us, "µs"),
    ]


def _rows_alone(pairs: list[Pair]) -> list[Row]:
    added = [pair.through.outcome.median_ms - pair.direct.outcome.median_ms for pair in pairs]
    ratio = [pair.through.rate / pair.direct.rate for pair in pairs]
    return [
        Row(
            "task, 1 caller: time added per request", Spread.of(added), "ms", Bound("at most", 2.5)
        ),
        Row("task, 1 caller: requests/s through ÷ direct", Spread.of(ratio), "ratio"),
        Row(
            "task, 1 caller: time of a direct request",
            Spread.of([pair.direct.outcome.median_ms for pair in pairs]),
            "ms",
        ),
    ]
