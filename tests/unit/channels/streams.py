"""The hub's dependencies in memory: reads that wait at a gate, hints that the test delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard, derive_id
from passerelle.core.ports.log import Entry, Head, StreamKind, StreamRef
from tests.unit.channels.history import History

STREAM = StreamRef(StreamKind.SESSION, derive_id("se", Shard(3), "test"))
TASK = "task_one"


class GatedLog:
    """Reads of a History that wait at a gate before the head and between head and page."""

    def __init__(self, history: History, page_events: int = 7) -> None:
        self.history = history
        self.page_events = page_events
        self.gated = False
        self.fails = False
        self.waiting: list[asyncio.Future[None]] = []
        self.reads = 0

    async def _pass_gate(self) -> None:
        if self.gated:
            gate = asyncio.get_running_loop().create_future()
            self.waiting.append(gate)
            await gate
        if self.fails:
            raise StoreUnavailable("made to fail", "no")

    def open_gate(self) -> None:
        """Lets those through that wait now."""
        waiting, self.waiting = self.waiting, []
        for gate in waiting:
            if not gate.done():
                gate.set_result(None)

    async def read_head(self, stream: StreamRef) -> Head | None:
        await self._pass_gate()
        head = self.history.head
        await self._pass_gate()
        return head

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        self.reads += 1
        await self._pass_gate()
        head = self.history.head
        await self._pass_gate()
        return head, self.history.page(after, min(limit, self.page_events))


class HeldHints:
    """Hints that the test hands over when and as often as it likes."""

    def __init__(self) -> None:
        self.on_hint: Callable[[bytes], None] | None = None
        self.held: list[bytes] = []
        self.subscribed = 0
        self.lost: Callable[[], None] = lambda: None
        self.on_new_epoch: Callable[[bytes], None] | None = None

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        assert self.on_hint is None, "one subscription per stream at a time"
        self.subscribed += 1
        await asyncio.sleep(0)
        self.on_hint = on_hint

    async def unsubscribe(self, stream: StreamRef) -> None:
        await asyncio.sleep(0)
        self.on_hint = None
        self.held.clear()

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        self.on_new_epoch = on_hint
        await asyncio.sleep(0)

    def on_loss(self, callback: Callable[[], None]) -> None:
        self.lost = callback

    def publish(self, raw: bytes) -> None:
        """Keeps a hint until it is handed over; without a subscriber it is lost, as in life."""
        if self.on_hint is not None:
            self.held.append(raw)

    def deliver(self, place: int = 0, *, keep: bool = False) -> None:
        """Hands over one hint, if it is still held; must run inside the event loop."""
        if place >= len(self.held):
            return
        raw = self.held[place] if keep else self.held.pop(place)
        if self.on_hint is not None:
            self.on_hint(raw)
