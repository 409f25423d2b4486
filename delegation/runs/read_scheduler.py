"""Limits how fast runs are read, and decides which of them is read next.

*Rate*: a run may bring one second's worth at once. Beyond that its stream is read no faster than its rate, so the
agent is slowed down.

*Order*: runs with a high volume take turns, one batch of frames in every few turns of the event loop. Turns rotate
over callers, then the agents of a caller, then the runs at an agent: twenty runs of one caller get together what one
run of another caller gets. A run with a low volume never waits here. Events per run do not show the volume: many slow
runs together can occupy the process. So a run takes turns when more has come than its last batch contained, or when
the runs of its caller together exceed a fixed amount; and only while a caller with a low volume is active: turns
separate appends that would share an exchange with the store, and are useless if all callers have a high volume.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_BURST_S: Final = 1.0
QUIET_EVENTS: Final = 64
QUIET_BYTES: Final = 1024 * 1024
"""What the runs of a caller may bring within a second before each of them takes turns."""
_MOST_CALLERS: Final = 1024
"""Callers whose sums are kept; heavy callers are kept beyond it."""
_NEAR_S: Final = 10.0
"""How long a caller counts as active after a request, or after an event of a run."""
_APART: Final = 8
"""Turns of the loop between batches. Other work needs some twenty for one answer; in an idle process they take some µs
each.
"""


@dataclass(slots=True)
class ReadRate:
    """Events and bytes of one run. Each advances a time at which everything received is within the rate."""

    events_per_s: float
    bytes_per_s: float
    _events_at_s: float = 0.0
    _bytes_at_s: float = 0.0

    def count(self, events: int, size: int, now_s: float) -> None:
        """Counts what has been received by now."""
        begin_s = now_s - _BURST_S
        self._events_at_s = max(self._events_at_s, begin_s) + events / self.events_per_s
        self._bytes_at_s = max(self._bytes_at_s, begin_s) + size / self.bytes_per_s

    def find_wait_s(self, now_s: float) -> float:
        """Seconds until more may be read; zero or less if it may now."""
        return max(self._events_at_s, self._bytes_at_s) - now_s


def name_caller(tenant: str, principal: str) -> str:
    """The name under which the share of a caller is counted."""
    return f"{tenant}/{principal}"


@dataclass(slots=True)
class CallerLoads:
    """The volume of the runs of each caller together."""

    _sums: dict[str, ReadRate] = field(default_factory=dict[str, ReadRate])
    _light: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    """When callers with a low volume were last active, the newest last."""

    def __len__(self) -> int:
        """The number of sums kept."""
        return len(self._sums)

    def count(self, caller: str, events: int, size: int, now_s: float) -> None:
        """Counts what has been received for a caller by now."""
        rate = self._sums.get(caller)
        if rate is None:
            if len(self._sums) >= _MOST_CALLERS:
                self._forget(now_s)
            rate = self._sums[caller] = ReadRate(QUIET_EVENTS, QUIET_BYTES)
        rate.count(events, size, now_s)
        if rate.find_wait_s(now_s) > 0:
            self._light.pop(caller, None)
        else:
            self._note_light(caller, now_s)

    def note(self, caller: str, now_s: float) -> None:
        """A caller is active."""
        if not self.is_heavy(caller, now_s):
            self._note_light(caller, now_s)

    def _note_light(self, caller: str, now_s: float) -> None:
        self._light[caller] = now_s
        self._light.move_to_end(caller)
        if len(self._light) > _MOST_CALLERS:
            self._light.popitem(last=False)

    def has_no_light_callers(self, caller: str, now_s: float) -> bool:
        """Whether no other caller with a low volume is active."""
        light = self._light
        while light:
            oldest = next(iter(light))
            if now_s - light[oldest] <= _NEAR_S:
                break
            del light[oldest]
        return not light or (len(light) == 1 and caller in light)

    def is_heavy(self, caller: str, now_s: float) -> bool:
        """Whether the runs of a caller exceed the rate that others would notice."""
        rate = self._sums.get(caller)
        return rate is not None and rate.find_wait_s(now_s) > 0

    def _forget(self, now_s: float) -> None:
        """Forgets callers that are not heavy: a new sum gives the same result for them, or a little less."""
        self._sums = {
            caller: rate for caller, rate in self._sums.items() if rate.find_wait_s(now_s) > 0
        }


T = TypeVar("T")


@dataclass(slots=True)
class RoundRobin(Generic[T]):
    """Waiting items, by caller and agent. Pure."""

    _callers: dict[str, dict[str, deque[T]]] = field(
        default_factory=dict[str, "dict[str, deque[T]]"]
    )

    def add(self, caller: str, agent: str, item: T) -> None:
        """Adds an item behind the others of its caller and agent."""
        self._callers.setdefault(caller, {}).setdefault(agent, deque()).append(item)

    def pop(self) -> T | None:
        """The next item; None if nothing waits. Its caller, and its agent there, come last from now on."""
        if not self._callers:
            return None
        caller = next(iter(self._callers))
        agents = self._callers.pop(caller)
        agent = next(iter(agents))
        line = agents.pop(agent)
        item = line.popleft()
        if line:
            agents[agent] = line
        if agents:
            self._callers[caller] = agents
        return item


class ReadScheduler:
    """The turns of one event loop. The first run in an empty queue gets one at once."""

    def __init__(self) -> None:
        self._queue: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._is_taken = False
        self.waiting = 0
        """The number of runs that wait for a turn."""
        self.sums = CallerLoads()
        """The volume of callers; the reader of each stream counts it."""

    async def take(self, caller: str, agent: str) -> None:
        """Returns when a run of ``caller`` at ``agent`` has the turn; a run has at most one place in the queue."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, loop, _APART)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._queue.add(caller, agent, place)
        self.waiting += 1
        try:
            await place
        finally:
            self.waiting -= 1

    def _pass_on(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        """Passes the turn on once in ``left`` turns of the loop, as long as runs wait."""
        if left > 1:
            loop.call_soon(self._pass_on, loop, left - 1)
            return
        place = self._queue.pop()
        while place is not None and place.done():
            # It was cancelled.
            place = self._queue.pop()
        if place is None:
            self._is_taken = False
            return
        place.set_result(None)
        loop.call_soon(self._pass_on, loop, _APART)
