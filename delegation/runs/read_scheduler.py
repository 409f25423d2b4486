"""How much runs bring in a time, and which of them is read next.

*In a time*: a run may bring a second's worth at once. Beyond that its stream is read no faster than its rate, so the
agent feels it.

*Next*: runs that bring much take turns, one batch of frames in every few turns of the event loop. Turns go round
callers, then the agents of a caller, then the runs at an agent: twenty runs of one caller have together what one run of
another caller has. A run that brings little never waits here. Events per run do not tell what brings much: many runs,
each of them slow, take the process together. So a run takes turns when more has come than its last batch has taken, or
when the runs of its caller together bring more than a fixed amount; and only while somebody is there who brings little:
turns keep appends apart that would share an exchange with the store, and are of no use among those who all bring much.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_BURST_S: Final = 1.0
QUIET_EVENTS: Final = 64
QUIET_BYTES: Final = 1024 * 1024
"""What the runs of a caller may bring within a second before each of them waits for its turn."""
_MOST_CALLERS: Final = 1024
"""Callers whose sums are kept; those that are loud are kept beyond it."""
_NEAR_S: Final = 10.0
"""For so long somebody is taken to be there after a request, or after an event of a run."""
_APART: Final = 8
"""Turns of the loop from one batch to the next. Others need some twenty for one answer; where nobody has anything to do
they take some µs each."""


@dataclass(slots=True)
class ReadRate:
    """Events and bytes of one run. Each moves on a time at which all that came is paid for."""

    events_per_s: float
    bytes_per_s: float
    _events_at_s: float = 0.0
    _bytes_at_s: float = 0.0

    def count(self, events: int, size: int, now_s: float) -> None:
        """So much has come by now."""
        begin_s = now_s - _BURST_S
        self._events_at_s = max(self._events_at_s, begin_s) + events / self.events_per_s
        self._bytes_at_s = max(self._bytes_at_s, begin_s) + size / self.bytes_per_s

    def find_wait_s(self, now_s: float) -> float:
        """Seconds until more may come; none or less where it may now."""
        return max(self._events_at_s, self._bytes_at_s) - now_s


def name_caller(tenant: str, principal: str) -> str:
    """Under what name the share of a caller is counted."""
    return f"{tenant}/{principal}"


@dataclass(slots=True)
class CallerLoads:
    """What the runs of each caller bring together."""

    _sums: dict[str, ReadRate] = field(default_factory=dict[str, ReadRate])
    _light: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    """When callers who bring little were there last, the newest last."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._sums)

    def count(self, caller: str, events: int, size: int, now_s: float) -> None:
        """So much has come for a caller by now."""
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
        """A caller is there."""
        if not self.is_heavy(caller, now_s):
            self._note_light(caller, now_s)

    def _note_light(self, caller: str, now_s: float) -> None:
        self._light[caller] = now_s
        self._light.move_to_end(caller)
        if len(self._light) > _MOST_CALLERS:
            self._light.popitem(last=False)

    def has_no_light_callers(self, caller: str, now_s: float) -> bool:
        """Whether nobody else is there who brings little."""
        light = self._light
        while light:
            oldest = next(iter(light))
            if now_s - light[oldest] <= _NEAR_S:
                break
            del light[oldest]
        return not light or (len(light) == 1 and caller in light)

    def is_heavy(self, caller: str, now_s: float) -> bool:
        """Whether it is so much that others notice it."""
        rate = self._sums.get(caller)
        return rate is not None and rate.find_wait_s(now_s) > 0

    def _forget(self, now_s: float) -> None:
        """Those that are not loud: a new sum says the same of them, or a little less."""
        self._sums = {
            caller: rate for caller, rate in self._sums.items() if rate.find_wait_s(now_s) > 0
        }


T = TypeVar("T")


@dataclass(slots=True)
class RoundRobin(Generic[T]):
    """Who waits, by caller and agent. Pure."""

    _callers: dict[str, dict[str, deque[T]]] = field(
        default_factory=dict[str, "dict[str, deque[T]]"]
    )

    def add(self, caller: str, agent: str, item: T) -> None:
        """One more, behind the others of its caller and agent."""
        self._callers.setdefault(caller, {}).setdefault(agent, deque()).append(item)

    def pop(self) -> T | None:
        """Whose turn it is; None where nobody waits. Its caller, and its agent there, come last from now on."""
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
    """The turns of one event loop. Who does not find anybody there has one at once."""

    def __init__(self) -> None:
        self._line: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._is_taken = False
        self.waiting = 0
        """How many wait for one."""
        self.sums = CallerLoads()
        """What callers bring; the reader of each stream counts it."""

    async def take(self, caller: str, agent: str) -> None:
        """Returns when it is the turn of a run of ``caller`` at ``agent``; a run has one place in the line at most."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, loop, _APART)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._line.add(caller, agent, place)
        self.waiting += 1
        try:
            await place
        finally:
            self.waiting -= 1

    def _pass_on(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        """Once in so many turns of the loop, as long as somebody waits."""
        if left > 1:
            loop.call_soon(self._pass_on, loop, left - 1)
            return
        place = self._line.pop()
        while place is not None and place.done():
            # It was cancelled.
            place = self._line.pop()
        if place is None:
            self._is_taken = False
            return
        place.set_result(None)
        loop.call_soon(self._pass_on, loop, _APART)
