"""Schedules at whose ticks a gateway dies: each follows its policy for missed runs and never fires twice (OBJ-8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.events import decode_event
from passerelle.core.payloads.conversation import SessionUpdated
from passerelle.core.wire.times import parse_ms
from tests.chaos.work_agent import AGENT
from tests.support.proof import read_stream
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.payloads.schedule import MissedPolicy, ScheduleChange
    from passerelle.core.wire.json import Json
    from passerelle.store.store import Store
    from tests.chaos.work_site import Answer, WorkSite

EVERY_S: Final = 3
GRACE_S: Final = 1
_BORDER_MS: Final = 250
"""Tolerance between the time that a gateway judged by and that of the fact."""
_OVER_S: Final = 60.0


@dataclass(slots=True)
class TickScene:
    """One schedule."""

    site: WorkSite
    store: Store
    missed: MissedPolicy
    faults: list[str] = field(default_factory=list[str])
    steps: int = 0
    _schedule: str = ""

    async def begin(self) -> int:
        """Creates it; returns the time of its first tick, in ms."""
        body: dict[str, Json] = {
            "title": self.missed,
            "agent": AGENT,
            "text": f"work tick-{self.missed} 0.05",
            "everyS": EVERY_S,
            "graceS": GRACE_S,
            "missed": self.missed,
            "overlap": "allow",
        }
        made = await self.site.call("POST", "/v1/schedules", body, key=f"schedule {self.missed}")
        self._schedule = str(made["schedule"]["scheduleId"])
        return parse_ms(str((await self._read())["nextAt"]))

    async def finish(self) -> None:
        """Waits for the pending runs, and deletes it."""

        async def have_begun() -> bool:
            return not (await self._read())["waiting"]

        async def have_ended() -> bool:
            recent = (await self._read())["recent"]
            return all(run.get("status") == "completed" for run in recent)

        try:
            await wait_until(have_begun, _OVER_S, "every run that waits has begun")
            await self.site.call("POST", f"/v1/schedules/{self._schedule}/pause", {})
            await wait_until(have_ended, _OVER_S, "every run has ended")
        except AssertionError as error:
            self.faults.append(f"{self.missed}: {error}: {await self._read()}")
        await self.site.call("DELETE", f"/v1/schedules/{self._schedule}")

    async def judge(self) -> None:
        """Every tick was judged once, according to the policy."""
        named, begun, at_ms = Counter[int](), set[int](), 0
        sent = self.site.agent.count_messages()
        for entry in await read_stream(self.store.log, self._schedule):
            event = decode_event(entry.data, entry.frame, entry.facade)
            step = event.fact.payload
            if not isinstance(step, SessionUpdated) or step.schedule is None:
                continue
            begun |= {run.number for run in step.schedule.runs if step.schedule.step == "begun"}
            if step.schedule.step == "ticked":
                self.steps += 1
                named.update(run.tick_ms for run in step.schedule.runs)
                at_ms = self._judge_step(step.schedule, parse_ms(event.timestamp), at_ms)
        self.faults += [
            f"{self.missed}: tick {one} has {n} runs" for one, n in named.items() if n > 1
        ]
        for number in range(1, named.total() + 1):
            name = f"schedule-{self._schedule}-{number}"
            # A run that waited when the schedule was deleted has not begun.
            if sent[name] != (number in begun):
                self.faults.append(f"{self.missed}: run {number} was sent {sent[name]} times")

    def _judge_step(self, step: ScheduleChange, judged_ms: int, expected_ms: int) -> int:
        """Checks one step against the policy; returns the next expected tick."""
        first, last, every = step.tick_ms or 0, step.through_ms or 0, EVERY_S * 1000
        if expected_ms and first != expected_ms:
            self.faults.append(f"{self.missed}: tick {expected_ms} was not judged, {first} was")
        ticks = [*range(first, last + 1, every)]
        runs = [run.tick_ms for run in step.runs]
        if len(runs) + step.missed + step.skipped != len(ticks):
            self.faults.append(f"{self.missed}: {len(ticks)} ticks, and {len(runs)} runs: {step}")
        late_ms = judged_ms - last
        if abs(late_ms - GRACE_S * 1000) > _BORDER_MS:
            wanted = self._choose(ticks, is_on_time=late_ms < GRACE_S * 1000)
            if runs != wanted:
                self.faults.append(f"{self.missed}: runs for {runs}, and not for {wanted}")
        return step.next_ms or 0

    def _choose(self, ticks: list[int], *, is_on_time: bool) -> list[int]:
        match self.missed:
            case "skip":
                return ticks[-1:] if is_on_time else []
            case "once":
                return ticks[-1:]
            case "all":
                return ticks

    async def _read(self) -> Answer:
        return await self.site.call("GET", f"/v1/schedules/{self._schedule}")
