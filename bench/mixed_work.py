"""Work of all kinds: an agent called directly, and through the gateway that stores every task.

The kinds take turns at one gateway, and rounds alternate: directly, then through the gateway and that of another
checkout, in either order. Noise of the machine thus affects all sides, and each ratio is computed from consecutive
rounds. Rounds are short and many: with five rounds of four seconds each, the medians of two identical checkouts
differed by a tenth. The gateway's CPU is divided by that of the agent **called directly**: behind the gateway the
agent is more expensive, which would flatter the ratio.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from bench.kinds import WARM_S, RoundPlan, WorkKind, WorkMix, make_scenes
from bench.rows import Bound, Row, Spread
from bench.testbed import BenchGateway, RoundResult, Testbed, open_testbed
from bench.trees import Checkout, compare


@dataclass(frozen=True, slots=True)
class WorkTurn:
    """A direct round of a kind, and those through the gateways that followed it."""

    direct: RoundResult
    ours: RoundResult
    base: RoundResult | None


async def measure_work(length: RoundPlan, base: Checkout | None) -> AsyncGenerator[Row]:
    """Rows of the section, yielded as they are measured."""
    for scene in make_scenes(length):
        async with open_testbed(scene.setting, base) as testbed:
            turns = await _play(testbed, scene, length)
        for kind in scene.kinds:
            for row in make_rows(kind, turns[kind.name], turns.get(kind.per)):
                yield row


async def _play(testbed: Testbed, scene: WorkMix, length: RoundPlan) -> dict[str, list[WorkTurn]]:
    """The turns of each kind; the very first round is not counted."""
    turns: dict[str, list[WorkTurn]] = {kind.name: [] for kind in scene.kinds}
    for number in range(length.rounds + 1):
        for kind in scene.kinds:
            seconds = length.seconds if number else WARM_S
            turn = await _take_turn(testbed, kind, seconds, is_base_first=number % 2 == 1)
            if number:
                turns[kind.name].append(turn)
    return turns


async def _take_turn(
    testbed: Testbed, kind: WorkKind, seconds: float, *, is_base_first: bool
) -> WorkTurn:
    order = replace(kind.order, seconds=0.0 if kind.is_once else seconds)
    direct = replace(order, steps=kind.direct or order.steps)

    async def pass_through(gateway: BenchGateway) -> RoundResult:
        return await testbed.run(order, gateway, as_agent=kind.as_agent, lead=kind.lead)

    called = await testbed.run(direct, lead=kind.lead)
    base = await pass_through(testbed.base) if testbed.base and is_base_first else None
    ours = await pass_through(testbed.ours)
    if testbed.base and not is_base_first:
        base = await pass_through(testbed.base)
    return WorkTurn(called, ours, base)


def make_rows(
    kind: WorkKind, turns: Sequence[WorkTurn], per: Sequence[WorkTurn] | None
) -> list[Row]:
    """Rows of a kind; ``per`` are the turns of the reference kind, if it is not the agent."""
    if kind.order.callers == 1:
        rows = _rows_alone(kind, turns)
    elif per is not None:
        rows = [
            _row(
                f"{kind.name}: gateway CPU ÷ one caller's",
                [
                    turn.ours.gateway_us / other.ours.gateway_us
                    for turn, other in zip(turns, per, strict=True)
                ],
                bound=kind.most,
            )
        ]
    else:
        ratios = [turn.ours.gateway_us / turn.direct.agent_us for turn in turns]
        rows = [_row(f"{kind.name}: gateway CPU ÷ agent CPU", ratios, bound=kind.most)]
    rows.append(_own_row(kind, "gateway CPU", "µs", turns, lambda own: own.gateway_us))
    if kind.rate is not None:
        rates = [turn.ours.rate / turn.direct.rate for turn in turns]
        what = f"{kind.name}: a second through ÷ direct"
        rows.append(Row(what, Spread.of(rates), "ratio", Bound("at least", kind.rate)))
    if kind.is_whole:
        rows += _rows_of_all(kind, turns)
    pairs = [(turn.ours.gateway_us, turn.base.gateway_us) for turn in turns if turn.base]
    return [*rows, compare(f"{kind.name}: gateway CPU", pairs)] if pairs else rows


def _rows_alone(kind: WorkKind, turns: Sequence[WorkTurn]) -> list[Row]:
    added = [turn.ours.outcome.median_ms - turn.direct.outcome.median_ms for turn in turns]
    direct = [turn.direct.outcome.median_ms for turn in turns]
    return [
        _row(f"{kind.name}: time added", added, "ms", 2.5),
        _row(f"{kind.name}: time directly", direct, "ms"),
    ]


def _rows_of_all(kind: WorkKind, turns: Sequence[WorkTurn]) -> list[Row]:
    appends = [turn.ours.appends for turn in turns]
    return [
        Row(f"{kind.name}: appends", Spread.of(appends), "appends", Bound("exactly", 2)),
        _own_row(kind, "engine CPU", "µs", turns, lambda own: own.engine_us),
        _own_row(kind, "agent CPU, called by the gateway", "µs", turns, lambda own: own.agent_us),
        _row(f"{kind.name}: agent CPU", [turn.direct.agent_us for turn in turns], "µs"),
        _row(f"{kind.name}: a second, directly", [turn.direct.rate for turn in turns], "1/s"),
        _own_row(kind, "engine bytes, nothing trimmed", "bytes", turns, lambda own: own.kept_bytes),
    ]


def _own_row(
    kind: WorkKind,
    what: str,
    unit: str,
    turns: Sequence[WorkTurn],
    value: Callable[[RoundResult], float],
) -> Row:
    return _row(f"{kind.name}: {what}", [value(turn.ours) / kind.events for turn in turns], unit)


def _row(
    what: str, values: Sequence[float], unit: str = "ratio", bound: float | None = None
) -> Row:
    return Row(what, Spread.of(values), unit, None if bound is None else Bound("at most", bound))
