"""Counts round trips to the store where they leave the client, attributed to the operation that caused them.

All store calls go through ``Batcher.call``, pipelines and scripts alike; calls queued in one iteration of the loop
share a round trip. A call belongs to the *errand* in whose context it was made: one request, one driver, one visit of
the relay. So background work of the gateway (leases, due rows, links) is never counted. Concurrent calls of an errand
wait for the store together: they are one trip.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import pytest

from passerelle.channels.connection import ChannelConnection
from passerelle.delegation.duties.relay import Relay
from passerelle.delegation.runs import dispatch
from passerelle.gateway.a2a.operations import Operations
from passerelle.gateway.http import v1
from passerelle.store.batcher import Batcher
from passerelle.store.connection import RespValue
from passerelle.store.scripts import OPERATIONS, read_script

ERRANDS: Final = (
    (ChannelConnection, "_call", "request"),
    (getattr(v1, "_Endpoint"), "answer", "request"),  # noqa: B009  private to its module
    (Operations, "answer", "call"),
    (dispatch, "drive", "driver"),
    (Relay, "pass_on", "relay"),
)
"""Where an errand begins, and its name."""

_errand: ContextVar[tuple[str, int]] = ContextVar("errand", default=("", 0))
_SCRIPTS: Final = {read_script(name).digest.encode(): name for name in OPERATIONS}


@dataclass(eq=False)
class Trip:
    """One call: the commands, and the times when it was sent and answered, by the loop's clock."""

    errand: tuple[str, int]
    names: tuple[str, ...]
    packed: bytes
    began_s: float
    ended_s: float = float("inf")
    values: int = 0
    """The reply, each element of an array separately."""

    @property
    def is_over(self) -> bool:
        return self.ended_s < float("inf")


@dataclass
class Trips:
    """All calls since the start of the watch."""

    all: list[Trip] = field(default_factory=list[Trip])

    def find(self, kind: str, name: str, since_s: float = 0.0, holding: bytes = b"") -> Trip | None:
        """The first answered call of an errand of this kind that ran a script or command of this name."""
        return next(
            (
                one
                for one in self.all
                if one.errand[0] == kind
                and name in one.names
                and one.is_over
                and one.began_s >= since_s
                and holding in one.packed
            ),
            None,
        )

    def list_errand(self, last: Trip, since_s: float = 0.0) -> list[Trip]:
        """The calls of one errand up to and including one of them."""
        return [
            one
            for one in self.all
            if one.errand == last.errand and since_s <= one.began_s and one.ended_s <= last.ended_s
        ]


def count(trips: Iterable[Trip]) -> int:
    """Number of calls that had to be awaited one after the other."""
    waited, free_s = 0, 0.0
    for one in sorted(trips, key=lambda trip: trip.ended_s):
        if one.began_s >= free_s:
            waited, free_s = waited + 1, one.ended_s
    return waited


def describe(trips: Iterable[Trip]) -> str:
    """The message for a test that counted too many."""
    return "; ".join(f"{one.errand[0]}: {' + '.join(one.names)}" for one in trips)


def watch(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Records every call from now on, of every store in this process."""
    trips, numbers, call = Trips(), itertools.count(1), Batcher.call

    async def noted(
        batcher: Batcher,
        packed: bytes,
        count: int = 1,
        *,
        no_linger: bool = False,
        linger_s: float = 0.0,
    ) -> list[RespValue]:
        now = asyncio.get_running_loop().time
        trip = Trip(_errand.get(), _read_names(packed), packed, now())
        trips.all.append(trip)
        try:
            replies = await call(batcher, packed, count, no_linger=no_linger, linger_s=linger_s)
            trip.values = sum(map(_count_values, replies))
            return replies
        finally:
            trip.ended_s = now()

    monkeypatch.setattr(Batcher, "call", noted)
    for owner, method, name in ERRANDS:
        monkeypatch.setattr(owner, method, _begin(getattr(owner, method), name, numbers))
    return trips


def _begin(
    method: Callable[..., Awaitable[object]], name: str, numbers: itertools.count[int]
) -> Callable[..., Awaitable[object]]:
    async def begun(*arguments: object) -> object:
        token = _errand.set((name, next(numbers)))
        try:
            return await method(*arguments)
        finally:
            _errand.reset(token)

    return begun


def _count_values(reply: RespValue) -> int:
    return sum(map(_count_values, reply)) if isinstance(reply, list) else 1


def _read_names(packed: bytes) -> tuple[str, ...]:
    """The command of each call in a pipeline; the name in the case of a script."""
    names: list[str] = []
    parts = iter(packed.split(b"\r\n"))
    for part in parts:
        if not part.startswith(b"*") or not part[1:].isdigit():
            continue
        next(parts, None)
        command = next(parts, b"")
        if command == b"EVALSHA":
            next(parts, None)
            command = _SCRIPTS.get(next(parts, b""), "script").encode()
        names.append(command.decode(errors="replace"))
    return tuple(names)
