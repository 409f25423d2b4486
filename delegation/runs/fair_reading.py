"""Runs that bring much take turns: one batch of frames in every few turns of the event loop, whoever else wants it.

Turns go round callers, then the agents of a caller, then the runs at an agent: twenty runs of one caller have together
what one run of another has. A run that brings little never waits here.

What brings much is no number of events of a run: where there are many of them each is slow, and all together take the
process. So it is a run of which more has come than its last batch has taken, and each run of a caller all of whose runs
together bring more than is nobody's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from passerelle.delegation.runs.rates import Sums

T = TypeVar("T")
_APART: Final = 8
"""Turns of the loop from one batch to the next. Others need some twenty for one answer; where nobody has anything to do
they take some µs each."""


@dataclass(slots=True)
class Rotation(Generic[T]):
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


class Turns:
    """The turns of one event loop. Who does not find anybody there has one at once."""

    def __init__(self) -> None:
        self._line: Rotation[asyncio.Future[None]] = Rotation()
        self._is_taken = False
        self.waiting = 0
        """How many wait for one."""
        self.sums = Sums()
        """What callers bring; whoever takes what has come counts it."""

    async def take(self, caller: str, agent: str) -> None:
        """Returns when it is the turn of a run of ``caller`` at ``agent``; a run has one place in the line at most."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._pass_on, _APART)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._line.add(caller, agent, place)
        self.waiting += 1
        try:
            await place
        finally:
            self.waiting -= 1

    def _pass_on(self, left: int) -> None:
        """Once in so many turns of the loop, as long as somebody waits."""
        if left > 1:
            asyncio.get_running_loop().call_soon(self._pass_on, left - 1)
            return
        place = self._line.pop()
        while place is not None and place.done():
            # It was cancelled.
            place = self._line.pop()
        if place is None:
            self._is_taken = False
            return
        place.set_result(None)
        asyncio.get_running_loop().call_soon(self._pass_on, _APART)
