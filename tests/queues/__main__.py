"""Many turns wait for a few agents: ``python -m tests.queues [--short]``.

10,000 turns of 100 callers wait for 5 paused agents, with one gateway and then with two over one store. The cost of
adding, moving and promoting a turn is compared with ten waiting and with all waiting. Once the agents resume, the
callers have to be served in equal shares: at no tenth of the way may one be ahead of another by more than a tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.queues.flood import Flood
from tests.queues.site import run_queue_site

AGENTS: Final = 5
CALLERS: Final = 100
TURNS: Final = 20
"""Per caller and agent."""
LEAST: Final = 0.5
"""Smaller values are meaningless: the subtracted idle cost was larger than the measured one."""
SHORT: Final = (3, 20, 10)
MOST: Final = 2.0
"""Maximum cost of a turn with all waiting, relative to ten waiting, on a shared machine. It is CPU seconds in
addition to the idle cost of waiting turns, which is reported separately; ``tests/contract`` counts the store's work.
"""


async def play(instances: int, agents: int, callers: int, turns: int) -> list[str]:
    """One flood, reported line by line; returns the faults."""
    with tempfile.TemporaryDirectory(prefix="psr-queues-") as name:
        async with run_queue_site(Path(name), instances, agents, callers) as site:
            flood = Flood(site, turns)
            await flood.run()
    few, many = flood.costs
    print(f"queues: {instances} gateways, {agents * callers * turns} turns of {callers} callers")
    print(f"queues: put in line in {flood.took_s[0]:.0f} s, sent in {flood.took_s[1]:.0f} s")
    print(
        f"queues: used while nothing is asked: {few.idle:.1%} of a core where {few.waiting} wait,"
        f" {many.idle:.1%} where {many.waiting} do"
    )
    for verb in ("added", "moved", "promoted"):
        small, large = (getattr(one, verb) * 1000 for one in (few, many))
        ratio = large / small if small > 0 else 0.0
        said = "held" if ratio <= MOST else "missed"
        if ratio < LEAST:
            said = "too noisy to say"
        reported = (
            f"{verb}: {small:.2f} ms where {few.waiting} wait, {large:.2f} where {many.waiting} do"
        )
        print(f"queues: {reported}: {ratio:.2f} ({said})")
        if ratio > MOST:
            flood.faults.append(f"{verb}: {ratio:.2f} times as dear")
    shares = ", ".join(f"{one.least}-{one.most} of {one.turns}" for one in flood.served)
    print(f"queues: turns of a caller, least and most: {shares}", flush=True)
    return [f"{instances} gateways: {fault}" for fault in flood.faults]


async def run(*, short: bool, gateways: int = 0) -> list[str]:
    """With one gateway, and with two; ``gateways``: with that number only."""
    size = SHORT if short else (AGENTS, CALLERS, TURNS)
    return [
        fault
        for instances in ((gateways,) if gateways else (1, 2))
        for fault in await play(instances, *size)
    ]


def main() -> int:
    """Prints one line at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.queues", description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument(
        "--gateways", type=int, default=0, help="run with this number of gateways only"
    )
    flags = parser.parse_args()
    began_s = time.monotonic()
    faults = asyncio.run(run(short=flags.short, gateways=flags.gateways))
    for fault in faults:
        print(f"queues: {fault}")
    verdict = f"{len(faults)} faults" if faults else "held"
    print(f"queues: {time.monotonic() - began_s:.0f} s: {verdict}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
