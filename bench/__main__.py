"""``python -m bench [PART…] [--short]``: a table of ratios, both sides measured in the same run.

Two shared cores drift, so no absolute value is judged: a bound applies to a ratio, a count or an added time.
Everything runs on loopback and in temporary directories, and no process outlives the run. The exit status is 0 when
every bound held, 1 when one was missed, 2 when something failed and could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.abuse import measure_abuse
from bench.appends import measure_appends
from bench.approvals import compare_approvals, measure_approvals
from bench.channel_servers import install_socketio
from bench.channel_trees import compare_channels
from bench.channels import ChannelPlan, measure_channels
from bench.delegation import measure_delegation
from bench.floor import measure_floor
from bench.idle import measure_idle
from bench.inboxes import measure_inboxes
from bench.kinds import RoundPlan
from bench.mixed_work import measure_work
from bench.retention import MEMORY_ROUNDS, measure_retention
from bench.rivals import install_rivals, measure_rivals
from bench.rows import COLUMNS, Bound, MeasurementError, Row, summarize
from bench.scale import measure_scale
from bench.size import measure_size
from bench.startup import measure_startup
from bench.trees import Checkout
from passerelle.core.errors import PasserelleError
from passerelle.demo.checks import CheckFailed
from passerelle.gateway.server import run
from passerelle.runtime.common.version import VERSION

LIMIT_S: Final = 1_800.0
"""Time limit of each part, in seconds."""
INTERRUPTED: Final = 130
UNMEASURED: Final = (
    Row("append at 1 M tasks ÷ at 1 k", None, "ratio", Bound("at most", 1.15)),
    Row("runs of a killed instance driven again after", None, "s", Bound("at most", 6.0)),
)
"""Bounds of the design that are not measured yet: rows, so that they are visible."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the command line for all sections: ``short`` runs, and a checkout to compare with."""

    short: bool
    base: Checkout | None = None


Section = Callable[[RunOptions], AsyncGenerator[Row]]


async def run_a2a(options: RunOptions) -> AsyncGenerator[Row]:
    """A2A calls: throughput, latency and cost."""
    async for row in measure_work(
        RoundPlan(2, 1.0) if options.short else RoundPlan(12, 0.7), options.base
    ):
        yield row
    async for row in measure_idle():
        yield row


async def run_floor(options: RunOptions) -> AsyncGenerator[Row]:
    """The minimum cost of passing a request on."""
    async for row in measure_floor(RoundPlan(2, 1.0) if options.short else RoundPlan(5, 2.0)):
        yield row


async def run_store(options: RunOptions) -> AsyncGenerator[Row]:
    """The store alone."""
    async for row in measure_appends(
        rounds=2 if options.short else 5, seconds=0.5 if options.short else 1.0
    ):
        yield row
    async for row in measure_size(
        many=10_000 if options.short else 100_000, rounds=3 if options.short else 9
    ):
        yield row


async def run_scale(options: RunOptions) -> AsyncGenerator[Row]:
    """The cost of a task among a million others."""
    many = 30_000 if options.short else 1_000_000
    length = RoundPlan(2, 1.0) if options.short else RoundPlan(9, 2.0)
    async for row in measure_scale(many, length):
        yield row


async def run_rivals(options: RunOptions) -> AsyncGenerator[Row]:
    """Other gateways with the same work."""
    async for row in measure_rivals(RoundPlan(1, 1.0) if options.short else RoundPlan(3, 2.0)):
        yield row


async def run_channels(options: RunOptions) -> AsyncGenerator[Row]:
    """Channels: latency and cost of delivery to devices."""
    plan = ChannelPlan(1, 2.0) if options.short else ChannelPlan(3, 4.0)
    rows = compare_channels(plan, options.base) if options.base else measure_channels(plan)
    async for row in rows:
        yield row


async def run_approvals(options: RunOptions) -> AsyncGenerator[Row]:
    """Approvals: how long people and agents wait for each other."""
    if options.base:
        async for row in compare_approvals(2 if options.short else 6, options.base):
            yield row
        return
    async for row in measure_approvals(20 if options.short else 200):
        yield row
    async for row in measure_inboxes(10_000, rounds=3 if options.short else 7, welcomes=40):
        yield row


async def run_abuse(options: RunOptions) -> AsyncGenerator[Row]:
    """Effect of abusive clients on other callers."""
    async for row in measure_abuse(RoundPlan(1, 1.0) if options.short else RoundPlan(5, 3.0)):
        yield row


async def run_retention(options: RunOptions) -> AsyncGenerator[Row]:
    """The cost of moving ended sessions out of memory."""
    length = RoundPlan(2, 2.0) if options.short else RoundPlan(20, 4.0)
    async for row in measure_retention(length, 6 if options.short else MEMORY_ROUNDS):
        yield row


async def run_delegation(options: RunOptions) -> AsyncGenerator[Row]:
    """The cost of choosing an agent, and of sending the items of a job."""
    length = RoundPlan(3, 1.0) if options.short else RoundPlan(12, 1.0)
    async for row in measure_delegation(length, 200 if options.short else 1_000):
        yield row


async def run_startup(options: RunOptions) -> AsyncGenerator[Row]:
    """The cost of a start."""
    async for row in measure_startup(2 if options.short else 9, options.base):
        yield row


SECTIONS: Final[dict[str, Section]] = {
    "a2a": run_a2a,
    "floor": run_floor,
    "store": run_store,
    "scale": run_scale,
    "rivals": run_rivals,
    "channels": run_channels,
    "approvals": run_approvals,
    "abuse": run_abuse,
    "retention": run_retention,
    "delegation": run_delegation,
    "startup": run_startup,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="PART", help=f"{' or '.join(SECTIONS)}, or all")
    parser.add_argument("--short", action="store_true", help="a quick look: few and short rounds")
    parser.add_argument(
        "--peers",
        choices=["all"],
        help="install the other servers of the chosen parts that are missing, first",
    )
    parser.add_argument(
        "--base",
        type=Path,
        help="a checkout with an environment, whose gateway takes turns with ours in a2a, channels, approvals, startup",
    )
    chosen = parser.parse_args(arguments)
    sections: list[str] = chosen.only or list(SECTIONS)
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    try:
        options = RunOptions(chosen.short, Checkout.of(chosen.base) if chosen.base else None)
        if chosen.peers and "rivals" in sections:
            install_rivals()
        if chosen.peers and "channels" in sections:
            install_socketio()
        return run(_print_table(sections, options))
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return INTERRUPTED
    except MeasurementError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 2


async def _print_table(sections: Sequence[str], options: RunOptions) -> int:
    started = time.monotonic()
    rows: list[Row] = []
    status = 0
    print(_describe_machine())
    try:
        for name in sections:
            print(f"\n{name + ':':<8}{COLUMNS[8:]}", flush=True)
            async with asyncio.timeout(LIMIT_S):
                async for row in SECTIONS[name](options):
                    _print_row(row, rows)
        for row in UNMEASURED if len(sections) == len(SECTIONS) else ():
            _print_row(row, rows)
    except (MeasurementError, CheckFailed, PasserelleError, TimeoutError) as error:
        print(f"bench: error: {error!r}", file=sys.stderr)
        status = 2
    print(summarize(rows, time.monotonic() - started))
    return status or int(any(row.verdict == "missed" for row in rows))


def _print_row(row: Row, rows: list[Row]) -> None:
    rows.append(row)
    print(row.render(), flush=True)


def _describe_machine() -> str:
    busy = os.getloadavg()[0]
    return (
        f"passerelle {VERSION}, Python {platform.python_version()}, {os.cpu_count()} cores"
        f" shared by everything, load {busy:.1f}: trust ratios, not absolute numbers"
    )


if __name__ == "__main__":
    sys.exit(main())
