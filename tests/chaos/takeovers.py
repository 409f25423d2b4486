"""Time until the runs of a dead gateway are driven again, and the step that took it.

The end of a takeover is the first call about a run that a proxy sees, even if its agent is down. A message that its
new driver delays, since the connection to the agent is in backoff, counts as well: it is read from the log. So does
the end of a run that was cancelled before any agent had its message. The steps are also read from the log: when the
run was claimed, and when a driver began.

The guarantee applies while the store answers. While a trap of another errand holds the store connection of the
gateway that takes over, its appends are not answered: that time is added to the limit and reported.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson

from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.duties.leases import LEASE_MS
from tests.chaos.plan import GATEWAYS

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.records import Records
    from tests.chaos.site import Death, Site
    from tests.chaos.traps import Hold
    from tests.chaos.verdict import Verdict

AGAIN_S: Final = LEASE_MS / 1000 + 1
"""Limit for the takeover of a killed gateway's runs: its lease and a second."""
_MOVED: Final = "run.taken_over"
_ADOPTED: Final = "run.adopted"
_HELD: Final = "send.held"
_SHOWN_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class TakenUp:
    """One run of a dead gateway. Times in seconds after the death that counts; None: the step was not logged.

    ``held_s``: for how long, after the end of the lease, its new gateway had no answer from the store.
    """

    task_id: str
    again_s: float
    lease_s: float | None
    moved_s: float | None
    adopted_s: float | None
    held_s: float

    @property
    def is_late(self) -> bool:
        """Whether it took longer than guaranteed."""
        return self.again_s > AGAIN_S + self.held_s

    def __str__(self) -> str:
        steps = (
            ("lease over", self.lease_s),
            ("moved", self.moved_s),
            ("driver", self.adopted_s),
            ("first call", self.again_s),
        )
        parts = [f"{name} {at_s:.2f}" for name, at_s in steps if at_s is not None]
        if self.held_s:
            parts.append(f"of it {self.held_s:.2f} without the store")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Call:
    """When a gateway called an agent about a run, in monotonic time of this process, and which gateway."""

    at_s: float
    gateway: int


def prove_takeovers(site: Site, records: Records, verdict: Verdict) -> None:
    """Checks each run of each dead gateway: none waited for longer than guaranteed."""
    lines = read_lines(gateway.folder / "gateway.log" for gateway in site.gateways)
    for place, death in enumerate(site.deaths):
        for task_id, until_ms in death.tasks.items():
            record = records.tasks.get(task_id)
            if record is None:
                verdict.blame("", f"{task_id} was driven, and is not there")
            else:
                _prove_one(site, place, record, until_ms, lines, verdict)


def _prove_one(
    site: Site,
    place: int,
    record: TaskRecord,
    until_ms: int,
    lines: dict[str, list[tuple[int, JsonObject]]],
    verdict: Verdict,
) -> None:
    """The first call about a run after its gateway died, counted from the last death before it."""
    death, label = site.deaths[place], record.scope.context_id
    call = _find_call(site, record, death, lines)
    if call is None:
        if record.status in ENDED and parse_ms(record.status_at) <= death.at_ms:
            return  # the dead gateway's last append was in flight and has ended the task
        verdict.blame(label, f"{record.task_id} was never asked for after {death.why}")
        return
    last = max(
        (one for one in site.deaths[place:] if one.at_s <= call.at_s), key=lambda one: one.at_s
    )
    taken = _break_down(site, record.task_id, call, until_ms, last, lines)
    verdict.taken_up.append(taken)
    if taken.is_late:
        what = f"{record.task_id} was driven again after {taken.again_s:.1f} s ({taken})"
        verdict.blame(label, what)
        end_ms = last.at_ms + round(taken.again_s * 1000)
        verdict.notes += _describe_lines(record.task_id, last.at_ms, end_ms, lines)


def _find_call(
    site: Site,
    record: TaskRecord,
    death: Death,
    lines: dict[str, list[tuple[int, JsonObject]]],
) -> Call | None:
    ids = {
        name
        for attempt in record.attempts
        for name in (attempt.remote_task_id, attempt.remote_context_id)
    }
    label = record.scope.context_id
    calls = [
        Call(call.at_s, call.gateway)
        for call in (*site.traps.calls, *site.traps.knocks)
        if call.label == label or not ids.isdisjoint(call.about)
    ]
    since = [timed for timed in lines[record.task_id] if timed[0] >= death.at_ms]
    adopted_ms = min((at for at, line in since if line["event"] == _ADOPTED), default=math.inf)
    calls += [
        Call(death.at_s + (at_ms - death.at_ms) / 1000, GATEWAYS.index(str(line["gateway"])))
        for at_ms, line in since
        if line["event"] == _HELD and at_ms >= adopted_ms
    ]
    calls += find_end(record, death, since)
    later = (call for call in calls if call.at_s > death.at_s)
    return min(later, key=lambda call: call.at_s, default=None)


def find_end(record: TaskRecord, death: Death, since: list[tuple[int, JsonObject]]) -> list[Call]:
    """The end of a run that was cancelled before any agent had its message: its new driver calls no agent.

    ``since`` are the log lines about it since the death; one of them must report the driver.
    """
    if record.status is not Status.CANCELLED or any(one.remote_task_id for one in record.attempts):
        return []
    at_s = death.at_s + (parse_ms(record.status_at) - death.at_ms) / 1000
    drivers = [str(line["gateway"]) for _, line in since if line["event"] == _ADOPTED]
    return [Call(at_s, GATEWAYS.index(driver)) for driver in drivers[:1]]


def _break_down(
    site: Site,
    task_id: str,
    call: Call,
    until_ms: int,
    death: Death,
    lines: dict[str, list[tuple[int, JsonObject]]],
) -> TakenUp:
    def find(event: str) -> float | None:
        parts = (at_ms for at_ms, line in lines[task_id] if line["event"] == event)
        return next(((at_ms - death.at_ms) / 1000 for at_ms in parts if at_ms >= death.at_ms), None)

    lease_s = (until_ms - death.at_ms) / 1000
    held_s = measure_hold(site.traps.holds, call, death.at_s + lease_s)
    return TakenUp(task_id, call.at_s - death.at_s, lease_s, find(_MOVED), find(_ADOPTED), held_s)


def measure_hold(holds: list[Hold], call: Call, from_s: float) -> float:
    """How long the caller's connection to the store was held between the end of a lease and its call."""
    return sum(
        max(0.0, min(hold.until_s, call.at_s) - max(hold.from_s, from_s))
        for hold in holds
        if hold.gateway == call.gateway
    )


def read_lines(files: Iterable[Path]) -> dict[str, list[tuple[int, JsonObject]]]:
    """The log lines of all gateways with their times in ms, by task; "" has the others."""
    found: dict[str, list[tuple[int, JsonObject]]] = defaultdict(list)
    for file in files:
        for text in file.read_bytes().splitlines():
            if text.startswith(b"{"):
                line = cast("JsonObject", orjson.loads(text))
                line["gateway"] = file.parent.name
                found[str(line.get("task", ""))].append((parse_ms(str(line["time"])), line))
    for lines in found.values():
        lines.sort(key=lambda timed: timed[0])
    return found


def _describe_lines(
    task_id: str, from_ms: int, to_ms: int, lines: dict[str, list[tuple[int, JsonObject]]]
) -> list[str]:
    """The gateways' log lines about a run, and about no particular run, in that time."""
    parts = sorted((*lines[task_id], *lines[""]), key=lambda timed: timed[0])
    return [
        f"  {(at_ms - from_ms) / 1000:.3f} {orjson.dumps(line).decode()}"
        for at_ms, line in parts
        if from_ms <= at_ms <= to_ms and line["event"] != "http.request"
    ][:_SHOWN_LINES]


def describe_delays(taken_up: list[TakenUp]) -> str:
    """One line for all, and the steps of the slowest."""
    if not taken_up:
        return "chaos: no run was driven again"
    longest = max(taken_up, key=lambda one: one.again_s)
    middle_s = statistics.median(one.again_s for one in taken_up)
    return (
        f"chaos: {len(taken_up)} runs driven again after {longest.again_s:.1f} s at most ({longest}),"
        f" {middle_s:.1f} s in the middle; {AGAIN_S:.0f} s are promised"
    )
