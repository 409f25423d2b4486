"""One flood: callers arrive one after the other, each with all of its turns, while the agents are paused.

An unfair queue would serve the first one first. Once the agents resume, the arrivals at the agents are counted per
caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tests.queues.site import OPERATOR
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.queues.site import QueueSite

SHARE: Final = 0.1
"""Maximum difference between the services of two callers."""
_AT_ONCE: Final = 16
_PER_TURN_S: Final = 0.05
_PATIENCE_S: Final = 60.0
_CHECKS: Final = 10
_IDLE_S: Final = 5.0
_WARM: Final = 50
_PROBES: Final = 200
"""Number of turns that are added and moved to measure the cost."""
_ROUNDS: Final = 5
"""Number of moves, and of promotions: the median counts, since a scan of waiting turns adds to some of them."""
_CONTEXT: Final = 10
"""Turns that wait in the context in which they are promoted one after the other."""
Answer = dict[str, Any]


@dataclass(slots=True)
class Costs:
    """CPU seconds of gateways and engine per turn: added, given another priority, promoted in its context.

    ``idle`` is the use per second without calls: waiting turns are scanned now and then.
    """

    waiting: int
    idle: float
    added: float
    moved: float
    promoted: float


@dataclass(slots=True)
class Served:
    """The lead of the most served caller over the least served one after a number of arrivals."""

    turns: int
    most: int
    least: int


@dataclass(slots=True)
class Flood:
    """``turns`` for each caller at each agent."""

    site: QueueSite
    turns: int
    probes: bool = True
    faults: list[str] = field(default_factory=list[str])
    costs: list[Costs] = field(default_factory=list[Costs])
    served: list[Served] = field(default_factory=list[Served])
    took_s: tuple[float, float] = (0.0, 0.0)
    """Seconds to queue all of them, and to have all of them sent."""
    _tasks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Caller and task of each waiting turn."""
    _thread: str = ""
    _turn_ids: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        """Runs the whole flood."""
        site = self.site
        planned = [
            (caller, agent, number)
            for caller in site.callers
            for number in range(self.turns)
            for agent in site.agents
        ]
        await self._each(range(_WARM), self._warm)
        await site.pause()
        began_s = time.monotonic()
        first = 10 if self.probes else 0
        await self._each(planned[:first], self._send)
        if self.probes:
            await self._open_context()
            planned = await self._measure(planned[first:], first)
            middle, last = planned[:-_PROBES], planned[-_PROBES:]
            await self._each(middle, self._send)
            await self._measure(last, len(self._tasks))
        else:
            await self._each(planned, self._send)
        queued_s = time.monotonic()
        await site.resume()
        await self._watch()
        self.took_s = (queued_s - began_s, time.monotonic() - queued_s)

    # ------------------------------------------------------------ waiting turns

    async def _warm(self, number: int) -> None:
        """Warms up, so that no first call is measured."""
        site = self.site
        caller = site.callers[number % len(site.callers)]
        agent = site.agents[number % len(site.agents)]
        await site.send(caller, agent, f"echo warm {number}", at=number, waits=True)

    async def _send(self, planned: tuple[str, str, int]) -> None:
        caller, agent, number = planned
        text = f"flood {caller} {agent} {number}"
        task = await self.site.send(caller, agent, text, at=number)
        self._tasks.append((caller, str(task["id"])))

    async def _open_context(self) -> None:
        """A context whose first turn waits for its agent, and the others for it; the flood has another caller."""
        caller = OPERATOR
        context: JsonObject = {}
        for number in range(_CONTEXT + 1):
            text = f"echo context {caller} {number}"
            message: JsonObject = {"messageId": text, "parts": [{"text": text}]}
            body: JsonObject = {
                "agent": self.site.agents[0],
                "message": message,
                "whenBusy": "queue",
            }
            turn = await self.site.call(caller, "POST", "/v1/turns", {**body, **context})
            context = {"contextId": turn["contextId"]}
            if number:
                self._turn_ids.append(str(turn["turnId"]))
            self._thread = str(turn["threadId"])

    async def _measure(
        self, planned: list[tuple[str, str, int]], waiting: int
    ) -> list[tuple[str, str, int]]:
        """Adds, moves and promotes some turns with ``waiting`` others; returns the remaining ones."""
        probes, left = planned[:_PROBES], planned[_PROBES:]
        before = await self._measure_idle()
        added = await self._cost(probes, self._send)
        moved = [
            await self._cost([(*one, priority) for one in self._tasks[-_PROBES:]], self._move)
            for priority in range(1, _ROUNDS + 1)
        ]
        # One after the other: they change one record, and concurrent changes would get a retry error.
        promoted = [
            await self._cost(range(_PROBES), self._promote, at_once=1) for _ in range(_ROUNDS)
        ]
        # Scans come in waves: the idle cost of the quieter of two moments is subtracted.
        idle = min(before, await self._measure_idle())
        spent = [
            median((used - idle * took_s) / _PROBES for used, took_s in rounds)
            for rounds in ([added], moved, promoted)
        ]
        self.costs.append(Costs(waiting, idle, *spent))
        return left

    async def _move(self, wanted: tuple[str, str, int]) -> None:
        caller, task, priority = wanted
        await self.site.call(caller, "PATCH", f"/v1/tasks/{task}", {"priority": priority})

    async def _promote(self, number: int) -> None:
        turn = self._turn_ids[number % _CONTEXT]
        path = f"/v1/threads/{self._thread}/queue/{turn}/promote"
        await self.site.call(OPERATOR, "POST", path, {}, at=number)

    async def _cost(
        self,
        items: Iterable[Any],
        act: Callable[[Any], Awaitable[None]],
        at_once: int = _AT_ONCE,
    ) -> tuple[float, float]:
        """CPU seconds, and elapsed seconds."""
        before, began_s = self.site.read_cpu(), time.monotonic()
        await self._each(items, act, at_once)
        return self.site.read_cpu() - before, time.monotonic() - began_s

    async def _measure_idle(self) -> float:
        before, began_s = self.site.read_cpu(), time.monotonic()
        await asyncio.sleep(_IDLE_S)
        return (self.site.read_cpu() - before) / (time.monotonic() - began_s)

    async def _each(
        self,
        items: Iterable[Any],
        act: Callable[[Any], Awaitable[None]],
        at_once: int = _AT_ONCE,
    ) -> None:
        left = iter([*items])

        async def work() -> None:
            for item in left:
                await act(item)

        await asyncio.gather(*(work() for _ in range(at_once)))

    # ------------------------------------------------------------ service

    async def _watch(self) -> None:
        """Counts the arrivals per caller at ten moments, over all agents."""
        everything = self.turns * len(self.site.callers) * len(self.site.agents)
        patience_s = _PATIENCE_S + everything * _PER_TURN_S
        for check in range(1, _CHECKS + 1):
            wanted = everything * check // _CHECKS

            def have_come(wanted: int = wanted) -> bool:
                return len(self.site.arrived) >= wanted

            await wait_until(have_come, patience_s, f"{wanted} turns have come in")
            self._judge(Counter(self.site.arrived[:wanted]))
        served = Counter(self.site.arrived)
        each = self.turns * len(self.site.agents)
        if uneven := {name: count for name, count in served.items() if count != each}:
            self.faults.append(f"not {each} turns of each caller: {uneven}")

    def _judge(self, served: Counter[str]) -> None:
        counts = [served[name] for name in self.site.callers]
        turns, most, least = served.total(), max(counts), min(counts)
        self.served.append(Served(turns, most, least))
        # Per agent a caller may have had one more turn, and each gateway may have one in flight.
        ahead = len(self.site.agents) * len(self.site.gateways)
        allowed = max(ahead, SHARE * turns / len(counts))
        if most - least > allowed:
            self.faults.append(f"of {turns} turns one caller had {most}, another one {least}")
