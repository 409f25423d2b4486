"""The limits in use by this instance: opened by name, renewed in rounds, returned at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from passerelle.runtime.common.beat import sleep_until_beat
from passerelle.runtime.limits.account import Account
from passerelle.runtime.limits.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.limits import LimitStore
    from passerelle.runtime.limits.account import Quota
    from passerelle.runtime.limits.limit import Bounds

ROUND_S: Final = 2.0
"""How long an instance keeps at most what it does not need."""


class Limiter:
    """An asynchronous context manager: the rounds run inside it. ``instance`` is unique in the runtime."""

    def __init__(
        self, port: LimitStore, instance: str, clock: Clock, *, round_s: float = ROUND_S
    ) -> None:
        self._port = port
        self._instance = instance
        self._clock = clock
        self._round_s = round_s
        self._active: dict[Limit | Account, None] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._rounds: asyncio.Task[None] | None = None

    def open(self, name: str, bounds: Bounds) -> Limit:
        """The limit of a name, such as ``agent:echo``. Each name is opened once; it needs no closing."""
        return Limit(self._port, name, self._instance, bounds, self._clock, self._launch)

    def open_account(self, name: str, quotas: Sequence[Quota]) -> Account:
        """The account of a caller; ``name`` must differ from all names of limits."""
        return Account(self._port, name, quotas, self._clock, self._launch)

    async def __aenter__(self) -> Self:
        self._rounds = asyncio.create_task(self._run(), name="limits")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.wait((self._rounds,))
        if self._flights:
            await asyncio.wait(self._flights)
        # What cannot be returned expires in the store.
        await asyncio.gather(*(one.give_back() for one in self._active), return_exceptions=True)

    def _launch(
        self, limit: Limit | Account, call: Coroutine[None, None, None]
    ) -> asyncio.Task[None]:
        self._active[limit] = None
        flight = asyncio.create_task(call)
        self._flights.add(flight)
        flight.add_done_callback(self._land)
        return flight

    def _land(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        # Waiters get the failure from the task itself; a call without waiters may fail silently.
        if not flight.cancelled():
            flight.exception()

    async def _run(self) -> None:
        while True:
            await sleep_until_beat(self._round_s)
            await self._renew()

    async def _renew(self) -> None:
        """Renews all limits; calls made in one iteration of the event loop share an exchange with the store."""
        await asyncio.gather(*(limit.renew() for limit in tuple(self._active)))
        for limit in tuple(self._active):
            if limit.is_idle:
                del self._active[limit]
