"""Conversations with agents of every kind, directly and through the gateway.

``python -m tests.conversations [--whole]`` plays every pair of axis values; ``--whole`` also plays triples.
``--only`` plays the cases whose name contains each of the given words, such as ``sdk_0_3 raises``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conversations.axes import Case, plan
from tests.conversations.compare import MOST_ROWS, SLOWER_S, Difference, compare, load_rows
from tests.conversations.play import Barrier, Player, Record
from tests.conversations.site import Site, run_site
from tests.support.leaving import find_changed_reads

KNOWN: Final = Path(__file__).parent / "known.toml"
AT_ONCE: Final = 6
_GATHER_S: Final = 30.0
_MEASURED_AGAIN: Final = 3


async def play(site: Site, case: Case, number: int) -> list[Difference]:
    """Plays one case on both sides; returns the differences."""
    label = f"c{number:04d}"
    caller = site.call_directly(case)
    direct = await Player(case, caller, site.log, f"{label}-direct").play()
    through = await Player(case, site.call_through(case), site.log, f"{label}-through").play()
    return compare(case, direct, through)


async def play_again(
    site: Site, case: Case, number: int, found: list[Difference]
) -> list[Difference]:
    """Repeats a case that differs only in times, without concurrent cases: the machine may have had other work."""
    for turn in range(_MEASURED_AGAIN):
        bad = [one for one in found if not one.row]
        if not bad or not all(one.where.startswith("time") for one in bad):
            break
        found = await play(site, case, number + turn * 1000)
    return found


async def play_restarts(site: Site, cases: Sequence[Case]) -> dict[Case, list[Difference]]:
    """Plays the cases in which the gateway restarts, all around one restart."""
    if not cases:
        return {}
    direct: dict[Case, Record] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def play_directly(number: int, case: Case) -> None:
        async with gate:
            player = Player(case, site.call_directly(case), site.log, f"r{number:04d}-direct")
            direct[case] = await player.play()

    await asyncio.gather(*(play_directly(*one) for one in enumerate(cases)))
    barrier = Barrier(len(cases))
    playing = [
        asyncio.create_task(
            Player(
                case, site.call_through(case), site.log, f"r{number:04d}-through", barrier
            ).play()
        )
        for number, case in enumerate(cases)
    ]
    async with asyncio.timeout(_GATHER_S):
        await barrier.all_here.wait()
    await site.restart()
    barrier.passed.set()
    through = await asyncio.gather(*playing)
    return {
        case: compare(case, direct[case], one) for case, one in zip(cases, through, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """The differences in each case, and the reads that change once all sessions have left memory."""

    differences: dict[Case, list[Difference]]
    changed: dict[str, tuple[str, str]]


async def run(cases: Sequence[Case], folder: Path) -> Findings:
    """Plays every case."""
    found: dict[Case, list[Difference]] = {}
    async with run_site(folder, cases) as site:
        gate = asyncio.Semaphore(AT_ONCE)

        async def play_one(number: int, case: Case) -> None:
            async with gate:
                found[case] = await play(site, case, number)

        steady = [case for case in cases if case.event != "restart"]
        await asyncio.gather(*(play_one(*one) for one in enumerate(steady)))
        for number, case in enumerate(steady):
            found[case] = await play_again(site, case, 5000 + number, found[case])
        found |= await play_restarts(site, [case for case in cases if case.event == "restart"])
        changed = await find_changed_reads(site.gateway, site.config, least=len(cases) // 2)
    return Findings(found, changed)


def tell(findings: Findings) -> int:
    """Prints the differences and a summary line; returns the exit status."""
    found, known = findings.differences, load_known()
    bad = {case: [one for one in said if not one.row] for case, said in found.items()}
    different = [case for case, said in bad.items() if said]
    new = [case for case in different if str(case) not in known]
    mended = [case for case in found if str(case) in known and not bad[case]]
    for case in different:
        print(f"{case}" + (f"\n    known: {known[str(case)]}" if str(case) in known else ""))
        for one in bad[case]:
            print(f"    {one}")
    for case in mended:
        print(f"{case}\n    was not different this time; it stands in {KNOWN.name}")
    rows = Counter(one.row for said in found.values() for one in said if one.row)
    unknown = sorted(set(rows) - set(load_rows()))
    equal = sum(not said for said in found.values())
    used = ", ".join(f"{row} {count}" for row, count in sorted(rows.items()))
    print(f"conversations: rows used: {used or 'none'}")
    print(
        f"conversations: {len(found)} cases, {equal} equal, {len(found) - equal - len(different)} in the table,"
        f" {len(different)} different, of these {len(different) - len(new)} known"
    )
    for asked, (before, after) in findings.changed.items():
        print(f"{asked}\n    before its session left: {before}\n    after: {after}")
    print(f"conversations: {len(findings.changed)} reads changed as sessions left memory")
    return 1 if new or unknown or findings.changed or not found else 0


def load_known() -> dict[str, str]:
    """Known failing cases, each with its fault: faults of the gateway, which no row allows."""
    rows: list[dict[str, str]] = tomllib.loads(KNOWN.read_text("utf-8")).get("case", [])
    return {row["name"]: row["fault"] for row in rows}


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conversations", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="every triple, not every pair")
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of cases")
    flags = parser.parse_args()
    words: list[str] = flags.only
    cases = [case for case in plan(whole=flags.whole) if all(word in str(case) for word in words)]
    assert len(load_rows()) <= MOST_ROWS
    logging.disable(logging.CRITICAL)  # raising agents are part of the test
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="psr-conversations-") as name:
        found = asyncio.run(run(cases, Path(name)))
    print(
        f"conversations: {time.monotonic() - began_s:.0f} s, an answer may take {SLOWER_S:.0f} s more"
    )
    return tell(found)


if __name__ == "__main__":
    raise SystemExit(main())
