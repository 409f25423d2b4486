"""Concurrent answers to approvals: ``python -m tests.races [--seed N] [--short]``.

An agent requests approval, and 24 racers answer through HTTP and channels at two gateways over one store. Expiry, a
cancel, another request or the agent itself may close it at the same time. Afterwards the stored facts are compared
with each racer's reply:

- each approval is closed exactly once; - every loser received the stored decision; - each pending answer was
delivered to the agent once, and the agent did what was decided, or nothing; - nothing is pending.

The seed is printed first; the same seed plans the same races in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.chaos.records import open_records
from tests.races.plan import RACERS, plan_races
from tests.races.proofs import judge, read_questions
from tests.races.racers import Result, run_race
from tests.races.rest import await_rest
from tests.races.site import run_site

if TYPE_CHECKING:
    from tests.chaos.records import Records
    from tests.races.plan import Race
    from tests.races.proofs import Judgement
    from tests.races.site import Site

RACES: Final = 1_000
SHORT_RACES: Final = 50
_AT_ONCE: Final = 8
_SHOWN: Final = 20
_TOLD: Final = 3


async def run(races: list[Race]) -> Judgement:
    """Runs all races, a few concurrently, and checks all of them together."""
    with tempfile.TemporaryDirectory(prefix="psr-races-") as name:
        folder = Path(name)
        async with run_site(folder) as site:
            turn = asyncio.Semaphore(_AT_ONCE)
            results = await asyncio.gather(*(_take_turn(turn, site, race) for race in races))
            rest = await await_rest(site.store_url, folder)
            print(f"races: {len(rest.hastened)} rows had a later time, and have gone before it")
            async with open_records(site.store_url, folder) as records:
                await records.read()
                sessions = sorted({task.session_id for task in records.tasks.values()})
                questions = await read_questions(records.store, sessions)
                judgement = judge(results, questions, site.cashier)
                await _describe_facts(records, judgement)
            judgement.faults += rest.faults
            return judgement


async def _take_turn(turn: asyncio.Semaphore, site: Site, race: Race) -> Result:
    async with turn:
        return await run_race(site, race)


async def _describe_facts(records: Records, judgement: Judgement) -> None:
    """The facts behind the first faults, since a race rarely repeats."""
    for task_id in judgement.strange[:_TOLD]:
        record = records.tasks[task_id.rpartition("~")[2]]
        print(f"races: facts of {task_id}:")
        for line in await records.describe_facts(record.session_id):
            print(f"  {line}")


def main() -> int:
    """Prints the seed first, and one line at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--short", action="store_true")
    flags = parser.parse_args()
    seed = secrets.randbelow(2**32) if flags.seed is None else flags.seed
    count = SHORT_RACES if flags.short else RACES
    print(f"races: seed {seed}, {count} questions, {RACERS} racers each", flush=True)
    began_s = time.monotonic()
    judgement = asyncio.run(run(plan_races(count, Random(seed))))
    for fault in judgement.faults[:_SHOWN]:
        print(f"races: {fault}")
    for name, found in (("closed by", judgement.causes), ("replies", judgement.codes)):
        print(f"races: {name} " + ", ".join(f"{key} {n}" for key, n in found.most_common()))
    print(f"races: {len(judgement.winners)} devices have won")
    verdict = f"{len(judgement.faults)} faults" if judgement.faults else "held"
    print(f"races: seed {seed}, {time.monotonic() - began_s:.0f} s: {verdict}")
    return 1 if judgement.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
