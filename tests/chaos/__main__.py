"""Kills, cuts and restarts during delegated tasks: ``python -m tests.chaos [--seed N] [--short]``.

Two gateways over one store call three agents. All of them are processes, and proxies between them see every byte.
Each round plans errands of callers and injects a fault at each named point: processes are killed, connections are cut
or held, a gateway is frozen around a send. Afterwards everything is compared with the records of the agents. Further
parts: a gateway with many open runs is killed and restarted; gateways, once with their store, are killed at each
point in the life of an approval, answered by a person or by the caller; replicas without the last acknowledged writes
are promoted; a cluster moves slots and promotes such a replica (long form only). In the last part graphs of tasks,
jobs, queues and schedules run concurrently, while gateways are killed at and between ticks. ``--approvals``,
``--tails``, ``--cluster`` and ``--work`` run one of these parts, ``--tasks`` the others.

The seed is printed first. The same seed plans the same errands and faults in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from tests.chaos.approvals_rounds import run_approvals
from tests.chaos.cluster_tails import run_cluster_tails
from tests.chaos.lost_tails import run_lost_tails
from tests.chaos.plan import ERRANDS
from tests.chaos.restart import reopen
from tests.chaos.rounds import run_rounds
from tests.chaos.work_rounds import run_work

_Part: TypeAlias = Callable[[], Coroutine[None, None, list[str]]]

ROUNDS: Final = 10
LONG_ERRANDS: Final = 100
"""Errands per round of the long form: 1,000 in total, and every fault ten times."""
TAILS: Final = 5
"""Number of failovers with loss; the short form has one."""
OPEN_RUNS: Final = 10_000
SHORT_OPEN_RUNS: Final = 300
WORK_ROUNDS: Final = 3
WORK_SIZE: Final = 4
"""Trees, waits and contexts per round of the long form; the short form has one of each."""
WORK_TICKS: Final = 12
SHORT_WORK_TICKS: Final = 4
_SHOWN_FAULTS: Final = 20


async def run(seed: int, *, short: bool, only: str) -> list[str]:
    """Runs all parts; returns one line per fault found.

    The parts run one after the other, so that none slows down another.
    """
    with tempfile.TemporaryDirectory(prefix="psr-chaos-") as name:
        folder = Path(name)
        rounds, reopened, asked = folder / "rounds", folder / "restart", folder / "approvals"
        tails, cluster, work = folder / "tails", folder / "cluster", folder / "work"
        for part in (rounds, reopened, asked, tails, cluster, work):
            part.mkdir()
        losing = partial(run_lost_tails, tails, Random(seed), 1 if short else TAILS)
        moving = partial(run_cluster_tails, cluster, Random(seed))
        asking = partial(run_approvals, asked, Random(seed), whole=not short)
        reopening = partial(reopen, reopened, SHORT_OPEN_RUNS if short else OPEN_RUNS)
        count, errands = (1, ERRANDS) if short else (ROUNDS, LONG_ERRANDS)
        amount = (1, 1, SHORT_WORK_TICKS) if short else (WORK_ROUNDS, WORK_SIZE, WORK_TICKS)
        working = partial(run_work, work, Random(seed), *amount)
        driving = partial(run_rounds, rounds, Random(seed), count, errands)
        turns: list[_Part]
        match only:
            case "approvals":
                turns = [asking]
            case "tasks":
                turns = [driving, reopening]
            case "tails":
                turns = [losing]
            case "cluster":
                turns = [moving]
            case "work":
                turns = [working]
            case _:
                long = [] if short else [moving]
                turns = [asking, driving, losing, *long, working, reopening]
        faults: list[str] = []
        for play in turns:
            faults += await play()
        return faults


def main() -> int:
    """Prints the seed first, and one line at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--short", action="store_true")
    parts = parser.add_mutually_exclusive_group()
    for part in ("approvals", "tails", "cluster", "work", "tasks"):
        parts.add_argument(f"--{part}", dest="only", action="store_const", const=part, default="")
    flags = parser.parse_args()
    seed = secrets.randbelow(2**32) if flags.seed is None else flags.seed
    print(f"chaos: seed {seed}", flush=True)
    began_s = time.monotonic()
    faults = asyncio.run(run(seed, short=flags.short, only=flags.only))
    for fault in faults[:_SHOWN_FAULTS]:
        print(fault)
    verdict = f"{len(faults)} faults" if faults else "held"
    took_s = time.monotonic() - began_s
    print(f"chaos: seed {seed}, {took_s:.0f} s: {verdict}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
