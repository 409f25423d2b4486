"""Killed gateways start again, also those that are killed while they start."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Revivals:
    """Starts killed gateways again, each by one task at a time; after a further kill the task starts it once more.

    ``start`` returns once the gateway of that number is ready; its errors are ``faults``, unless the gateway was
    killed meanwhile.
    """

    start: Callable[[int], Awaitable[None]]
    faults: list[str]
    _kills: Counter[int] = field(default_factory=Counter[int])
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, "asyncio.Task[None]"])

    def begin(self, number: int) -> None:
        """Notes that a gateway was killed, and starts it unless that is under way."""
        self._kills[number] += 1
        if number not in self._running:
            self._running[number] = asyncio.create_task(self._revive(number))

    async def settle(self) -> None:
        """Waits until all gateways are back."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def _revive(self, number: int) -> None:
        try:
            while not await self._try(number):
                pass
        finally:
            del self._running[number]

    async def _try(self, number: int) -> bool:
        """Whether the matter is decided: the gateway is up, or has a fault."""
        kills = self._kills[number]
        try:
            await self.start(number)
        except Exception as error:  # noqa: BLE001  whatever it is, the run did not hold
            if self._kills[number] == kills:
                self.faults.append(f"gateway {number} did not come back: {error}")
        return self._kills[number] == kills
