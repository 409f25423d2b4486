"""Task graphs, jobs, queues and schedules concurrently, on two gateways over one store that die repeatedly.

Checked against the stored facts and the agent's messages: below a cancelled task everything is cancelled, each
cancellation is stored once, and nothing started; every item of a job ended, with the attempts of its policy; queued
turns ran in the acknowledged order; a schedule fired according to its policy for missed runs, and never twice. Every
message reached the agent at most once, and afterwards nothing is pending.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.task.status import ENDED
from passerelle.runtime.common.clock import SystemClock
from tests.chaos.records import open_records
from tests.chaos.work_graphs import TreeScene, WaitsScene
from tests.chaos.work_jobs import JobScene
from tests.chaos.work_queues import ContextScene, LineScene
from tests.chaos.work_site import Refused, WorkSite, run_work_site
from tests.chaos.work_ticks import EVERY_S, TickScene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.records import Records

ITEMS: Final = 200
TREE: Final = 40
_SETTLE_S: Final = 60.0
_AFTER_TICK_MS: Final = 100


class Scene(Protocol):
    """One scenario, concurrent with the others."""

    faults: list[str]

    async def play(self) -> None: ...

    async def judge(self) -> None: ...


@dataclass(slots=True)
class Round:
    """All scenarios concurrently. ``size`` is the number of each."""

    site: WorkSite
    records: Records
    draw: Random
    size: int
    ticks: int
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    faults: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        """Runs all of them, and checks the results."""
        ticking = [TickScene(self.site, self.records.store, one) for one in ("all", "once", "skip")]
        scenes = self._plan()
        lines = [one for one in scenes if isinstance(one, LineScene)]
        others = [one for one in scenes if not isinstance(one, LineScene)]
        waiting = [asyncio.create_task(self._play(one)) for one in lines]
        await asyncio.gather(self._tick(ticking), *(self._play(one) for one in others))
        await self.site.settle()
        self.calm.set()
        await asyncio.gather(*waiting, *(one.finish() for one in ticking))
        await self._await_rest()
        for scene in scenes:
            await scene.judge()
            self.faults += scene.faults
        for ticks in ticking:
            await ticks.judge()
            self.faults += ticks.faults
        self._judge_messages()
        steps = ", ".join(f"{one.steps} steps with {one.missed}" for one in ticking)
        print(
            f"chaos: work: {len(scenes)} scenes, {len(self.records.tasks)} tasks,"
            f" {self.site.deaths} gateways died; schedules took {steps}",
            flush=True,
        )

    def _plan(self) -> list[Scene]:
        site, store, fork = self.site, self.records.store, self._fork
        scenes: list[Scene] = [
            JobScene(site, fork(), "job", ITEMS),
            JobScene(site, fork(), "stopped", ITEMS // 4, is_stopped=True),
        ]
        for number in range(self.size):
            scenes += [
                TreeScene(site, store, fork(), f"tree{number}", TREE),
                WaitsScene(site, fork(), f"waits{number}", 12),
                ContextScene(site, fork(), f"context{number}", 6),
                ContextScene(site, fork(), f"urgent{number}", 2, interrupts=True),
            ]
        scenes.append(LineScene(site, fork(), "line", 10, self.calm))
        return scenes

    def _fork(self) -> Random:
        """A separate random source per scene, so that one does not affect another."""
        return Random(self.draw.getrandbits(32))

    async def _play(self, scene: Scene) -> None:
        try:
            await scene.play()
        except (AssertionError, Refused, TimeoutError) as error:
            scene.faults.append(f"{type(scene).__name__}: {error!r}")

    async def _tick(self, scenes: list[TickScene]) -> None:
        """A gateway dies at each tick, just before, at or after its time; sometimes both."""
        clock = SystemClock()
        first_ms = min([await scene.begin() for scene in scenes])
        for number in range(self.ticks):
            at_ms = first_ms + number * EVERY_S * 1000 + self.draw.randrange(-20, _AFTER_TICK_MS)

            def has_come(at_ms: int = at_ms) -> bool:
                return clock.now_ms() >= at_ms

            await wait_until(has_come, _SETTLE_S, "a tick")
            place = self.draw.randrange(2)
            self.site.strike(place)
            if number % 3 == 2:
                self.site.strike(1 - place)

    async def _await_rest(self) -> None:
        async def have_ended() -> bool:
            await self.records.read()
            return all(one.status in ENDED for one in self.records.tasks.values())

        try:
            await wait_until(have_ended, _SETTLE_S, "every task has ended")
            await wait_until(
                lambda: not self.site.store.find_leaks(), _SETTLE_S, "nothing is owed any more"
            )
        except AssertionError:
            self.faults += [
                f"{one.task_id} ({one.objective}) is still {one.status}"
                for one in self.records.tasks.values()
                if one.status not in ENDED
            ]
            self.faults += self.site.store.find_leaks()

    def _judge_messages(self) -> None:
        for message, count in self.site.agent.count_messages().items():
            if count != 1:
                self.faults.append(f"{message} reached the agent {count} times")


async def run_work(folder: Path, draw: Random, rounds: int, size: int, ticks: int) -> list[str]:
    """Prints a line for each round; returns one line per fault found."""
    faults: list[str] = []
    for number in range(rounds):
        place = folder / f"round-{number}"
        place.mkdir()
        began_s = time.monotonic()
        async with (
            run_work_site(place) as site,
            open_records(site.store.url, place) as records,
        ):
            played = Round(site, records, draw, size, ticks)
            await played.run()
            faults += [f"work, round {number}: {one}" for one in (*played.faults, *site.faults)]
            faults += await _verify(site)
        print(f"chaos: work: round {number} took {time.monotonic() - began_s:.0f} s", flush=True)
    return faults


async def _verify(site: WorkSite) -> list[str]:
    """Runs ``passerelle verify``, as an operator would; returns its complaints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "passerelle",
        "verify",
        "--config",
        "passerelle.yaml",
        cwd=site.gateways[0].folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    lines = said.decode(errors="replace").splitlines()
    print(f"chaos: {lines[-1] if lines else 'verify said nothing'}", flush=True)
    return lines if process.returncode else []
