"""Text deltas to one reader, and the listeners of each stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from passerelle.channels.counts import ChannelCounts
from passerelle.channels.outbox import Outbox
from passerelle.channels.texts import WINDOW_S, TextReader, Texts
from passerelle.channels.views import FullView, TaskView, View
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.deltas import TextDelta
from passerelle.core.ports.log import StreamKind, StreamRef
from tests.support.spelt_ids import compose_id
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("EVC-6")]
TASK = compose_id("task", Shard(3), 0, 1)
OTHER = compose_id("task", Shard(3), 0, 2)
STREAM = StreamRef(StreamKind.SESSION, compose_id("se", Shard(3), 0, 1))
BLOCK = f"{TASK}/poem"


@dataclass
class Box:
    """An outbox that is as full as a test sets it."""

    has_room: bool = True
    frames: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def put(self, frame: bytes) -> None:
        self.frames.append(orjson.loads(frame))

    def pieces(self) -> list[tuple[str, int, str]]:
        return [(one["blk"], one["at"], one["d"]) for one in self.frames]


def make_reader(view: View | None = None) -> tuple[TextReader, Box]:
    box = Box()
    return TextReader("session:x", view or FullView(), cast("Outbox", box), ChannelCounts()), box


async def test_first_piece_goes_at_once_and_what_follows_as_one_in_a_window() -> None:
    reader, box = make_reader()
    reader.begin([])
    for at, text in ((0, "one "), (4, "twö "), (8, "three")):
        reader.take(TextDelta(BLOCK, at, text))
    assert box.pieces() == [(BLOCK, 0, "one ")]
    await asyncio.sleep(WINDOW_S * 2)
    assert box.pieces() == [(BLOCK, 0, "one "), (BLOCK, 4, "twö three")]


async def test_deltas_of_one_window_are_sent_together() -> None:
    reader, box = make_reader()
    reader.begin([])
    reader.take(TextDelta(BLOCK, 0, "one "))
    reader.take(TextDelta(BLOCK, 4, "two"))
    reader.flush()
    assert box.pieces() == [(BLOCK, 0, "one "), (BLOCK, 4, "two")]
    reader.flush()
    assert len(box.frames) == 2


async def test_reader_gets_open_text_when_it_becomes_live() -> None:
    reader, box = make_reader()
    reader.take(TextDelta(BLOCK, 0, "before"))
    reader.begin([TextDelta(BLOCK, 0, "open")])
    reader.stop()
    reader.take(TextDelta(BLOCK, 4, " lost"))
    await asyncio.sleep(WINDOW_S * 2)
    assert box.pieces() == [(BLOCK, 0, "open")]


async def test_view_of_a_task_has_no_text_of_another() -> None:
    reader, box = make_reader(TaskView(TASK))
    reader.begin([])
    reader.take(TextDelta(f"{OTHER}/poem", 0, "theirs"))
    reader.take(TextDelta(BLOCK, 0, "ours"))
    assert box.pieces() == [(BLOCK, 0, "ours")]


async def test_slow_reader_gets_one_piece_later_and_loses_what_is_too_much() -> None:
    reader, box = make_reader()
    reader.begin([])
    box.has_room = False
    reader.take(TextDelta(BLOCK, 0, "one "))
    reader.take(TextDelta(BLOCK, 4, "two"))
    await asyncio.sleep(WINDOW_S * 2)
    assert box.frames == []
    box.has_room = True
    await wait_until(lambda: box.frames, 15, "the text that was held")
    assert box.pieces() == [(BLOCK, 0, "one two")]
    box.has_room = False
    reader.take(TextDelta(BLOCK, 7, "x" * 70_000))
    await asyncio.sleep(WINDOW_S * 3)
    box.has_room = True
    await asyncio.sleep(WINDOW_S * 2)
    assert len(box.frames) == 1


@dataclass
class Wire:
    """What is listened to; ``away`` times it cannot be."""

    away: int = 0
    open: list[TextDelta] = field(default_factory=list[TextDelta])
    listeners: dict[StreamRef, Callable[[TextDelta], None]] = field(
        default_factory=dict[StreamRef, "Callable[[TextDelta], None]"]
    )
    asked: int = 0

    async def publish(self, stream: StreamRef, event: object) -> int:
        raise AssertionError

    async def listen(self, stream: StreamRef, on_delta: Callable[[TextDelta], None]) -> None:
        await asyncio.sleep(0)
        self.asked += 1
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away", "no")
        assert stream not in self.listeners
        self.listeners[stream] = on_delta

    async def ignore(self, stream: StreamRef) -> None:
        await asyncio.sleep(0)
        del self.listeners[stream]

    def read_blocks(self, session: str) -> list[TextDelta]:
        return list(self.open)


async def test_one_listener_serves_all_readers_as_long_as_there_are_any() -> None:
    wire = Wire(open=[TextDelta(BLOCK, 0, "one ")])
    texts = Texts(wire, wire)
    (first, one), (second, two) = make_reader(), make_reader()
    texts.begin(STREAM, first)
    texts.begin(STREAM, second)
    await wait_until(lambda: wire.listeners, 15, "somebody listens")
    wire.listeners[STREAM](TextDelta(BLOCK, 4, "two"))
    first.flush()
    second.flush()
    assert one.pieces() == two.pieces() == [(BLOCK, 0, "one "), (BLOCK, 4, "two")]
    texts.end(STREAM, first)
    await asyncio.sleep(0.01)
    assert wire.listeners
    texts.end(STREAM, second)
    texts.end(STREAM, second)
    await wait_until(lambda: not wire.listeners, 15, "nobody listens")
    texts.begin(STREAM, first)
    await wait_until(lambda: wire.listeners, 15, "somebody listens again")
    texts.end(STREAM, first)
    texts.begin(STREAM, second)  # the end of the one and the beginning of the other overlap
    await asyncio.sleep(0.01)
    assert wire.listeners
    assert wire.asked <= 3
    await texts.close()


async def test_store_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("passerelle.channels.texts._RETRY_S", 0.01)
    wire = Wire(away=2, open=[TextDelta(BLOCK, 0, "open")])
    texts = Texts(wire, wire)
    reader, box = make_reader()
    texts.begin(STREAM, reader)
    await wait_until(lambda: box.frames, 15, "is told what is open")
    assert wire.asked == 3
    await texts.close()
