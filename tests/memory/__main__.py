"""``make memory``: the memory that a caller or an agent can make a gateway use is bounded.

Each kind of abuse runs three times in a row on a new gateway with a budget of 256 MiB; ``SHORT=1`` runs what fits
into two minutes. The run passes when for each of them

- the process is alive, and its peak (VmHWM) is at most 600 MB; - another caller is answered within five seconds,
every time; - the third peak is at most 1.1 times the first: memory is returned.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.memory.cases import CASES
from tests.memory.site import MB, QUIET, run_site, write_message
from tests.support.background_calls import BackgroundCalls
from tests.support.ports import find_free_port

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.memory.cases import Case
    from tests.memory.site import Site

ROUNDS: Final = 3
_GROWTH: Final = 1.1


@dataclass(slots=True)
class Outcome:
    """Results of one case. ``peaks`` in bytes, ``background`` are the calls of another caller."""

    base: int = 0
    peaks: list[int] = field(default_factory=list[int])
    background: BackgroundCalls = field(default_factory=BackgroundCalls)
    faults: list[str] = field(default_factory=list[str])

    def is_given_back(self) -> bool:
        """Whether the last peak is hardly above the first."""
        return self.peaks[-1] <= _GROWTH * self.peaks[0]


async def _call_beside(site: Site) -> str:
    answer = await site.call("bob", "SendMessage", write_message("echo"), QUIET)
    return "" if "result" in answer else str(answer)


async def play(case: Case) -> Outcome:
    """Runs one case to the end of its rounds."""
    outcome = Outcome()
    settings: JsonObject = {"grpc": {"port": find_free_port()}} if case.grpc else {}
    with tempfile.TemporaryDirectory(prefix="psr-memory-") as name:
        running = run_site(Path(name), case.timeout, case.outputs, **settings)
        async with running as site:
            outcome.base = site.read_memory("VmRSS")
            async with outcome.background.calling(partial(_call_beside, site)):
                while site.is_alive() and len(outcome.peaks) < ROUNDS:
                    site.reset_peak()
                    await case.abuse(site)
                    outcome.peaks.append(site.read_memory("VmHWM"))
                    site.leave_all()
            _judge(case, site, outcome)
    return outcome


def _judge(case: Case, site: Site, outcome: Outcome) -> None:
    if not site.is_alive():
        outcome.faults.append("the gateway has ended")
    if max(outcome.peaks, default=0) > case.most_bytes:
        outcome.faults.append(f"a peak over {case.most_bytes / MB:.0f} MB")
    if len(outcome.peaks) == ROUNDS and not outcome.is_given_back():
        outcome.faults.append("what was taken is not given back: the peaks grow")
    outcome.faults += outcome.background.faults
    if not outcome.background.answered:
        outcome.faults.append("no other caller was answered")


def _describe(case: Case, outcome: Outcome, seconds: float) -> None:
    peaks = ", ".join(f"{peak / MB:.0f}" for peak in outcome.peaks)
    print(
        f"memory: {case.name}: {outcome.base / MB:.0f} MB, peaks {peaks} MB; "
        f"{outcome.background.answered} other calls, the slowest {outcome.background.slowest_s:.1f} s; {seconds:.0f} s",
        flush=True,
    )
    for fault in dict.fromkeys(outcome.faults):
        print(f"memory: {case.name}: {fault}", flush=True)


def main() -> int:
    """Prints one line per case, and one at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory", description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default=None, help="the name of a case")
    flags = parser.parse_args()
    cases = [
        case
        for case in CASES
        if (case.short or not flags.short) and flags.only in {None, case.name}
    ]
    faults, began_s = 0, time.monotonic()
    for case in cases:
        case_s = time.monotonic()
        outcome = asyncio.run(play(case))
        _describe(case, outcome, time.monotonic() - case_s)
        faults += bool(outcome.faults)
    verdict = f"{faults} are not held" if faults else "held"
    print(f"memory: {len(cases)} cases, {time.monotonic() - began_s:.0f} s: {verdict}")
    return 1 if faults or not cases else 0


if __name__ == "__main__":
    raise SystemExit(main())
