"""The hub under every interleaving: what a reader applied is the log, or it saw a gap (I3, I8).

The model is a stream in memory whose reads wait at a gate, so that writes, trims and losses can come
between a head and its page; hints can be delivered, lost, doubled and reordered.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from passerelle.channels.hub import From, Hub, HubSettings, Start
from passerelle.channels.pages import Page
from passerelle.channels.position import CursorGap, Position, ReplayBounds, ReplayEnd
from passerelle.channels.ring import RingBounds
from passerelle.channels.views import FullView, PlainView, TaskView, View, shows
from passerelle.core.ports.log import Entry
from passerelle.protocol.cursor import Cursor, GapReason
from tests.unit.channels.history import History
from tests.unit.channels.streams import STREAM, TASK, GatedLog, HeldHints


@dataclass
class Reader:
    """One reader with what it applied; ``start`` is where it began."""

    view: View
    start: Cursor
    task: asyncio.Task[None] | None = None
    applied: list[Entry] = field(default_factory=list[Entry])
    cursor: Cursor | None = None
    told: int = 0
    gap: CursorGap | None = None
    lives: int = 0

    async def follow(self, hub: Hub, start: From, bounds: ReplayBounds | None) -> None:
        async with hub.open(STREAM, self.view, start, bounds) as position:
            if position.cursor is not None and isinstance(start, Start):
                self.start = position.cursor
            self.told = self.start.sequence
            await self._apply(position)

    async def _apply(self, position: Position) -> None:
        async for item in position:
            match item:
                case Page(entries, previous, cursor):
                    assert previous <= self.told, "a false gap at the client"
                    for linked in entries:
                        assert linked.entry.sequence > self.told
                        self.applied.append(linked.entry)
                        self.told = linked.entry.sequence
                    self.cursor = cursor
                case ReplayEnd(cursor, _):
                    self.lives += 1
                    self.cursor = cursor
                    self.told = max(self.told, cursor.sequence)
                case CursorGap():
                    self.gap = item


class HubModel(RuleBasedStateMachine):
    """Writers, damage, hints and readers in any order."""

    @initialize(length=st.integers(0, 12), ring=st.integers(1, 12))
    def begin(self, length: int, ring: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.history = History()
        self.written: list[list[Entry]] = [[]]
        self.readers: list[Reader] = []
        self.log, self.hints = GatedLog(self.history), HeldHints()
        self.epochs = 1
        self.cursors = list[Cursor]()
        hub_settings = HubSettings(
            jitter=lambda: 0.5,
            audit_s=3600,
            linger_s=0,
            retry_s=0,
            hint_s=0,
            bounds=RingBounds(events=ring),
        )
        self.lost: list[GapReason] = []
        self.hub = Hub(
            self.log, self.hints, hub_settings, lambda _stream, why: self.lost.append(why)
        )
        self.stack = AsyncExitStack()
        self.loop.run_until_complete(self.stack.enter_async_context(self.hub))
        if length:
            self.history.append(length)

    def spin(self, turns: int = 12) -> None:
        async def turn() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    def hand_over(self, place: int, *, keep: bool) -> None:
        async def inside_the_loop() -> None:
            self.hints.deliver(place, keep=keep)

        self.loop.run_until_complete(inside_the_loop())

    @rule(count=st.integers(1, 4), reasoning=st.booleans(), of_task=st.booleans())
    def append(self, count: int, *, reasoning: bool, of_task: bool) -> None:
        if self.history.exists:
            kind = "reasoning.delta" if reasoning else "run.progress"
            self.hints.publish(self.history.append(count, kind, TASK if of_task else None))

    @rule(part=st.floats(0, 1), keep=st.booleans())
    @precondition(lambda self: bool(self.hints.held))
    def deliver_a_hint(self, part: float, *, keep: bool) -> None:
        self.hand_over(int(part * (len(self.hints.held) - 1)), keep=keep)
        self.spin(2)

    @rule()
    @precondition(lambda self: bool(self.hints.held))
    def deliver_hints_in_order(self) -> None:
        while self.hints.held:
            self.hand_over(0, keep=False)

    @rule()
    @precondition(lambda self: bool(self.hints.held))
    def lose_hints(self) -> None:
        self.hints.held.clear()

    @rule(up_to=st.integers(0, 30))
    def trim(self, up_to: int) -> None:
        self.history.trim(min(up_to, self.history.top))

    @rule(count=st.integers(1, 3), again=st.integers(0, 4))
    def lose_the_tail(self, count: int, again: int) -> None:
        self.history.lose_tail(count)
        if again and self.history.exists:
            self.hints.publish(self.history.append(again))

    @rule(die=st.integers(0, 7))
    def make_anew(self, die: int) -> None:
        if die == 0 or not self.history.exists:
            self.epochs += 1
            self.history.recreate(f"{self.epochs:08x}")

    @rule(die=st.integers(0, 15))
    def lose_everything(self, die: int) -> None:
        if die == 0:
            self.history.flush()

    @rule()
    def remember_the_end(self) -> None:
        self.cursors.append(self.history.end)

    @rule()
    def hold_reads(self) -> None:
        self.log.gated = True

    @rule()
    def let_reads_go(self) -> None:
        self.log.gated = False
        self.log.open_gate()
        self.spin()

    @rule()
    def let_one_step_of_reads_go(self) -> None:
        self.log.open_gate()
        self.spin(2)

    @rule(
        view=st.sampled_from([FullView(), PlainView(), TaskView(TASK)]),
        back=st.integers(0, 12),
        start=st.sampled_from(["cursor", "old cursor", "live", "beginning"]),
    )
    def open_reader(self, view: View, back: int, start: str) -> None:
        if not self.history.exists or len(self.readers) >= 8:
            return
        cursor = self.history.at(max(self.history.top - back, self.history.first - 1))
        old = self.cursors[back % len(self.cursors)] if self.cursors else cursor
        starts: dict[str, From] = {
            "cursor": cursor,
            "old cursor": old,
            "live": Start.LIVE,
            "beginning": Start.BEGINNING,
        }
        chosen = starts[start]
        reader = Reader(view, chosen if isinstance(chosen, Cursor) else cursor)
        reader.task = self.loop.create_task(reader.follow(self.hub, chosen, None))
        self.readers.append(reader)
        self.spin(2)

    @rule(part=st.floats(0, 1))
    @precondition(lambda self: bool(self.readers))
    def close_reader(self, part: float) -> None:
        reader = self.readers.pop(int(part * (len(self.readers) - 1)))
        assert reader.task is not None
        reader.task.cancel()
        self.spin()

    @rule()
    def audit(self) -> None:
        self.hub.audit_soon()
        self.spin()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.log.gated = False
        for _ in range(6):
            self.log.open_gate()
            self.hub.audit_soon()
            self.spin(60)
        try:
            for reader in self.readers:
                self.check(reader)
        finally:
            for reader in self.readers:
                if reader.task is not None:
                    reader.task.cancel()
            self.spin()
            self.loop.run_until_complete(self.stack.aclose())
            self.spin()
            assert not asyncio.all_tasks(self.loop), "a task was left"
            self.loop.close()

    def check(self, reader: Reader) -> None:
        assert reader.task is not None
        if reader.task.done() and reader.gap is None:
            reader.task.result()
        if reader.gap is not None:
            return
        assert self.history.exists
        assert reader.start.epoch == self.history.epoch
        if reader.start.sequence + 1 >= self.history.first:
            assert reader.start == self.history.at(reader.start.sequence)
        truth = [
            entry
            for entry in self.history.entries
            if entry.sequence > reader.start.sequence and shows(reader.view, entry)
        ]
        held = [entry for entry in reader.applied if entry.sequence >= self.history.first]
        assert held == truth
        assert reader.lives > 0


HubModel.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestReaderAppliesTheLogOrSeesAGap = pytest.mark.requirement("I3", "I8", "CHN-4")(HubModel.TestCase)
