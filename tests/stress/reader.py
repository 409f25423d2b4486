"""One device under stress: it follows, stalls, reloads and takes over, and keeps what an application would.

Each event is checked on arrival: within one history it follows the previous one and is no duplicate. At the end the
state is compared with the store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from passerelle.client.channel import ChannelClient, ChannelStopped, StreamClosed
from passerelle.client.cursor_stores import MemoryCursors
from passerelle.client.items import (
    Connected,
    Event,
    Gap,
    GapChoice,
    Item,
    LinkStatus,
    Offline,
    Snapshot,
)
from passerelle.protocol.closing import CloseCode
from tests.support.waiting import wait_until

AGAIN_S: Final = 0.1
TAKES_OVER_S: Final = 60.0
"""No guarantee limits the time of a welcome on a machine with other work."""
_GONE: Final = frozenset({"gone", "not_found"})


@dataclass
class Reader:
    """A device of Ada's and the stream that it follows. ``faults`` are sentences about violations."""

    url: str
    device: str
    stream: str
    dice: Random
    cursors: MemoryCursors = field(default_factory=MemoryCursors)
    events: list[str] = field(default_factory=list[str])
    known: set[str] = field(default_factory=set[str])
    sequence: int | None = None
    gaps: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[int] = field(default_factory=Counter[int])
    faults: list[str] = field(default_factory=list[str])
    stalls: float = 0.0
    superseded: int = 0
    is_linked: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        """Runs until ``done``: connects, stays for a while, and reconnects."""
        while not self.done.is_set():
            try:
                async with asyncio.timeout(None) as reload:
                    await self._follow(reload)
            except TimeoutError:
                continue  # a reload of the page
            except ChannelStopped as stopped:
                if stopped.code != CloseCode.SUPERSEDED:
                    self.faults.append(f"{self.device} was stopped with {stopped.code}")
                    return
                self.superseded += 1
            except StreamClosed as closed:
                if closed.code not in _GONE:
                    self.faults.append(f"{self.device}: the stream was closed as {closed.code}")
                self.forget()
            await asyncio.sleep(AGAIN_S)

    async def take_over(self) -> None:
        """Opens a second connection of the same device and tab: the first one has to close.

        It reconnects as soon as all others: at a person's pace its pauses alone would take half a minute.
        """
        async with ChannelClient(
            self.url,
            token="ada-token",
            device=self.device,
            jitter=lambda: self.dice.random() / 20,
            on_status=self._note_status,
        ) as usurper:
            try:
                await wait_until(
                    lambda: usurper.welcome is not None or self.done.is_set(),
                    TAKES_OVER_S,
                    f"a second connection of {self.device} is welcomed",
                )
            except AssertionError as error:
                self.faults.append(f"{error}, {usurper.status}")

    def forget(self) -> None:
        """Discards the state: the next connection starts from the beginning."""
        self.cursors = MemoryCursors()
        self.sequence = None

    async def _follow(self, reload: asyncio.Timeout) -> None:
        async with ChannelClient(
            self.url,
            token="ada-token",
            device=self.device,
            cursors=self.cursors,
            on_gap=self._take_gap,
            on_status=self._note_own_status,
            jitter=lambda: self.dice.random() / 20,
        ) as client:
            async for item in client.stream(self.stream):
                self._take(item)
                if self.stalls and reload.when() is None:  # not before an event has arrived
                    held_s = self.dice.uniform(1, 4)
                    reload.reschedule(asyncio.get_running_loop().time() + held_s)
                if not isinstance(item, Gap):
                    await item.ack()
                if self.stalls and self.dice.random() < self.stalls:
                    await asyncio.sleep(self.dice.uniform(0.05, 0.4))
                if self.done.is_set():
                    return

    async def _take_gap(self, gap: Gap) -> GapChoice:
        self.gaps[gap.why.value] += 1
        self.sequence = None
        return "snapshot"

    def _take(self, item: Item) -> None:
        """Stores state and cursor in one step, as an application with persistence does."""
        if not isinstance(item, Gap):
            self.cursors.save(self.stream, item.cursor)
        match item:
            case Event(sequence=sequence, data=data):
                name = str(data["eventId"])
                if self.sequence is not None and sequence != self.sequence + 1:
                    self.faults.append(f"{self.device}: {sequence} came after {self.sequence}")
                if name in self.known:
                    self.faults.append(f"{self.device}: event {sequence} came twice")
                self.sequence = sequence
                self.events.append(name)
                self.known.add(name)
            case Snapshot(data=data, cursor=cursor):
                held, first = data["events"], data["first"]
                assert isinstance(held, list)
                assert isinstance(first, int)
                self.sequence = int(cursor.split(".")[1])
                # The state is read after its cursor: events stored in between arrive once more.
                kept = max(0, self.sequence - first + 1)
                self.events = [str(name) for name in held[:kept]]
                self.known = set(self.events)
            case _:
                return

    def _note_own_status(self, status: LinkStatus) -> None:
        self.is_linked = isinstance(status, Connected)
        self._note_status(status)

    def _note_status(self, status: LinkStatus) -> None:
        if isinstance(status, Offline) and status.code is not None:
            self.codes[status.code] += 1
