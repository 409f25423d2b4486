"""Snares in the proxies: the gateway that reads or writes the awaited bytes is killed, and the bytes are dropped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.chaos.approvals_plan import PLACES, Place
from tests.support.stored_events import mark_type

if TYPE_CHECKING:
    from tests.chaos.approvals_plan import Errand, Where

GATEWAYS: Final = 2
_REQUIRED: Final = mark_type("action.required")
_ACTION: Final = re.compile(rb'"actionId":"(act_[0-9a-z]+)"')


@dataclass(slots=True, eq=False)
class Snare:
    """One armed death; ``sprung`` is set once it has happened.

    ``names`` are the label of the errand, and the ids of its approvals once they are known. A snare that is not
    ``is_live`` yet waits for its errand to enable it.
    """

    errand: Errand
    is_live: bool = True
    is_taken: bool = False
    names: set[bytes] = field(init=False)
    sprung: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.names = {self.errand.label.encode()}

    @property
    def place(self) -> Place:
        """The point of the death."""
        return PLACES[self.errand.death]

    def learn(self, data: bytes) -> None:
        """Learns the ids of approvals from the bytes that open them."""
        if _REQUIRED in data and self.errand.label.encode() in data:
            self.names.update(_ACTION.findall(data))

    def fits(self, where: Where, data: bytes) -> bool:
        """Whether these are the awaited bytes; True only once."""
        place = self.place
        if self.is_taken or not self.is_live or place.where != where:
            return False
        named = place.anybodys or any(name in data for name in self.names)
        return named and all(mark in data for mark in place.marks)


@dataclass(slots=True)
class Trapper:
    """All snares of a site, the gateways that they kill, and the agent's tasks of each errand."""

    kill: Callable[[Snare, int], None]
    """Raises ``Cut``: the bytes are dropped."""
    find_tasks: Callable[[Errand], list[str]]
    snares: list[Snare] = field(default_factory=list[Snare])

    def arm(self, errand: Errand, *, is_live: bool) -> Snare:
        """Arms the snare of an errand."""
        snare = Snare(errand, is_live)
        self.snares.append(snare)
        return snare

    def list_armed(self) -> list[Snare]:
        """The snares that were never sprung."""
        return [snare for snare in self.snares if not snare.is_taken]


@dataclass(slots=True)
class StoreSnares:
    """One connection of a gateway to the store. A reply does not name its errand, but the preceding write does."""

    trapper: Trapper
    gateway: int
    waiting: Snare | None = None

    async def up(self, data: bytes) -> bytes:
        for snare in self.trapper.list_armed():
            snare.learn(data)
            if snare.fits("write", data):
                self.trapper.kill(snare, self.gateway)
            if snare.fits("reply", data):
                self.waiting = snare
        return data

    async def down(self, data: bytes) -> bytes:
        snare, self.waiting = self.waiting, None
        if snare is not None and not snare.is_taken:
            self.trapper.kill(snare, self.gateway)
        for armed in self.trapper.list_armed():
            if armed.fits("read", data):
                self.trapper.kill(armed, self.gateway)
        return data


@dataclass(slots=True)
class AgentSnares:
    """One connection of a gateway to the agent: a request is inspected once it names the task that it answers."""

    trapper: Trapper
    sent: bytes = b""
    waiting: Snare | None = None

    async def up(self, data: bytes) -> bytes:
        self.sent = data if data.startswith(b"POST") else self.sent + data
        for snare in self.trapper.list_armed():
            if not self._answers(snare):
                continue
            named = self.sent + snare.errand.label.encode()
            if snare.fits("call", named):
                self.trapper.kill(snare, self._gateway)
            if snare.fits("answer", named):
                self.waiting = snare
        return data

    async def down(self, data: bytes) -> bytes:
        snare, self.waiting = self.waiting, None
        if snare is not None and not snare.is_taken:
            self.trapper.kill(snare, self._gateway)
        return data

    @property
    def _gateway(self) -> int:
        """The gateway, by its token at the agent."""
        return next(n for n in range(GATEWAYS) if f"Bearer gateway-{n}".encode() in self.sent)

    def _answers(self, snare: Snare) -> bool:
        """Whether the bytes are a message to the task of the errand."""
        if b'"SendMessage"' not in self.sent and b'"SendStreamingMessage"' not in self.sent:
            return False
        tasks = self.trapper.find_tasks(snare.errand)
        return any(f'"taskId":"{task}"'.encode() in self.sent for task in tasks)
