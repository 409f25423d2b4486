"""Traps: actions that run when the bytes of a task pass a proxy at a named point.

A trap is armed for one errand and springs once. Its caller learns what happens to the bytes: held for a while, or
lost with the connection. The product knows nothing about traps.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.chaos.plan import AT_STORE, Action, Point
from tests.support.stored_events import mark_type
from tests.support.tcp_proxy import Cut

if TYPE_CHECKING:
    from tests.chaos.plan import Errand, Fault

LABEL: Final = re.compile(rb"r\d\dt\d\d\d")
HOLD_S: Final = 1.2
LATE_S: Final = 10.0
"""Longer than the agents' time limit for a message, and shorter than that after a takeover: lookups continue."""
_AT_WORK_S: Final = 0.6
"""Delay into the work of a task, for a kill that waits for no particular bytes."""
_CHUNKS_BEFORE: Final = 3
_COMPLETED: Final = mark_type("task.completed")
_SENDS: Final = frozenset({"SendMessage", "SendStreamingMessage"})
_STREAMS: Final = frozenset({*_SENDS, "SubscribeToTask"})


@dataclass(frozen=True, slots=True)
class Request:
    """A call in flight to an agent: its gateway, and its task if the bytes name one."""

    gateway: int
    agent: str
    method: str
    label: str | None
    about: frozenset[str]
    """Ids of its task and its context at the agent."""
    at_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Period in which the connection of a gateway to the store was held, in monotonic time of this process."""

    gateway: int
    from_s: float
    until_s: float


@dataclass(slots=True, eq=False)
class Trap:
    """One armed fault. ``sprung`` is set once it has happened."""

    errand: Errand
    fault: Fault
    seen: int = 0
    sprung: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False
    gateway: int | None = None
    """The gateway whose bytes sprang it."""

    @property
    def mark(self) -> bytes:
        """The bytes that identify its errand."""
        return self.errand.label.encode()

    def take(self) -> bool:
        """Claims the trap; True for one caller only."""
        is_first, self.is_taken = not self.is_taken, True
        return is_first


@dataclass(frozen=True, slots=True)
class Hands:
    """Process actions of a trap, by the index of a gateway or the name of an agent."""

    kill_gateway: Callable[[int], None]
    kill_agent: Callable[[str], None]
    freeze: Callable[[int, Trap], Awaitable[None]]


@dataclass(slots=True)
class Traps:
    """The armed traps by label, and every call that passed; ``knocks`` met an unavailable agent.

    ``holds`` are those of store connections: the gateway's writes are not answered meanwhile.
    """

    hands: Hands
    armed: dict[str, Trap] = field(default_factory=dict[str, Trap])
    calls: list[Request] = field(default_factory=list[Request])
    knocks: list[Request] = field(default_factory=list[Request])
    holds: list[Hold] = field(default_factory=list[Hold])
    _later: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def arm(self, errand: Errand) -> Trap | None:
        """Arms the trap of an errand, if it has one."""
        if errand.fault is None:
            return None
        trap = self.armed[errand.label] = Trap(errand, errand.fault)
        return trap

    def disarm_missed(self) -> list[Errand]:
        """Removes the traps that were never sprung; returns their errands."""
        missed = [trap.errand for trap in self.armed.values() if not trap.is_taken]
        for errand in missed:
            del self.armed[errand.label]
        return missed

    def has_sprung(self, label: str) -> bool:
        """Whether the fault of an errand has happened."""
        return label in self.armed and self.armed[label].sprung.is_set()

    def count_sends(self, label: str) -> int:
        """Number of sends of an errand."""
        return sum(call.label == label and call.method in _SENDS for call in self.calls)

    # ------------------------------------------------------------ at the store

    async def meet_write(self, gateway: int, data: bytes) -> Trap | None:
        """Bytes from a gateway to the store; returns the trap that waits for their answer, if any.

        Raises:
            Cut: they never arrive.
        """
        waiting = None
        for trap in self._list_at_store():
            if trap.mark not in data:
                continue
            trap.seen += 1
            match trap.fault.point:
                case Point.BEFORE_APPEND if trap.seen == 1:
                    await self._spring(trap, gateway)
                case Point.AFTER_APPEND if trap.seen == 1:
                    waiting = trap
                case Point.UNSTORED if trap.seen == 2:
                    await self._spring(trap, gateway)
                case Point.BEFORE_COMPLETION if _COMPLETED in data:
                    await self._spring(trap, gateway)
                case _:
                    pass
        return waiting

    def _list_at_store(self) -> list[Trap]:
        return [
            trap
            for trap in self.armed.values()
            if trap.fault.point in AT_STORE and not trap.is_taken
        ]

    async def meet_reply(self, trap: Trap, gateway: int) -> None:
        """The store's answer to the bytes that a trap waited for.

        Raises:
            Cut: it is dropped.
        """
        await self._spring(trap, gateway)

    # ------------------------------------------------------------ at an agent

    async def meet_call(self, call: Request) -> Trap | None:
        """A whole request to an agent; returns the trap that inspects its answer, if any.

        Raises:
            Cut: it never arrives.
        """
        self.calls.append(call)
        trap = self.armed.get(call.label or "")
        if trap is None or trap.is_taken:
            return None
        match trap.fault.point:
            case Point.ON_THE_WAY if call.method in _SENDS:
                await self._spring(trap, call.gateway)
            case Point.CANCEL_ASKED if call.method == "CancelTask":
                await self._spring(trap, call.gateway)
            case Point.CANCEL_TOLD if call.method == "CancelTask":
                return trap
            case Point.UNANSWERED if call.method in _SENDS:
                return trap
            case Point.MID_STREAM | Point.AT_WORK if call.method in _STREAMS:
                return trap
            case _:
                pass
        return None

    async def meet_answer(self, trap: Trap, gateway: int, data: bytes) -> None:
        """A chunk of an agent's answer that a trap inspects.

        Raises:
            Cut: it is dropped.
        """
        if trap.is_taken:
            return
        match trap.fault.point:
            case Point.UNANSWERED | Point.CANCEL_TOLD:
                await self._spring(trap, gateway)
            case Point.MID_STREAM:
                trap.seen += data.count(b"artifactUpdate")
                if trap.seen >= _CHUNKS_BEFORE:
                    await self._spring(trap, gateway)
            case Point.AT_WORK:
                if trap.take():
                    self._detach(self._strike_later(trap, gateway))
            case _:
                pass

    # ------------------------------------------------------------ actions

    async def _spring(self, trap: Trap, gateway: int) -> None:
        if not trap.take():
            return
        trap.gateway = gateway
        match trap.fault.action:
            case Action.KILL_GATEWAY:
                self.hands.kill_gateway(gateway)
            case Action.LATE:
                self.hands.kill_gateway(gateway)
                trap.sprung.set()
                await asyncio.sleep(LATE_S)
                return
            case Action.KILL_PEER:
                self.hands.kill_agent(trap.errand.agent)
            case Action.HOLD:
                trap.sprung.set()
                await self._hold(trap, gateway)
                return
            case Action.FREEZE:
                # Its connection may end meanwhile, with a killed agent; the gateway stays frozen.
                await asyncio.shield(self._detach(self._freeze(trap, gateway)))
                return
            case Action.CUT:
                pass
        trap.sprung.set()
        raise Cut

    async def _hold(self, trap: Trap, gateway: int) -> None:
        from_s = time.monotonic()
        await asyncio.sleep(HOLD_S)
        if trap.fault.point in AT_STORE:
            self.holds.append(Hold(gateway, from_s, time.monotonic()))

    async def _strike_later(self, trap: Trap, gateway: int) -> None:
        await asyncio.sleep(_AT_WORK_S)
        trap.gateway = gateway
        self.hands.kill_gateway(gateway)
        trap.sprung.set()

    async def _freeze(self, trap: Trap, gateway: int) -> None:
        await self.hands.freeze(gateway, trap)
        trap.sprung.set()

    def _detach(self, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return task
