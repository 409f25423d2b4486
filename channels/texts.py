"""Text deltas, from the driver of a run to readers: stored nowhere, and may be lost at any time (I1).

One listener per stream serves all readers of an instance, as long as there are any. A live reader gets deltas in
windows, with the pieces of one block merged. Deltas that a reader cannot take are dropped, since the event that closes
the block has the whole text. On the instance that drives the run, a late reader gets each open block from its start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from passerelle.channels.views import TaskView
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import parse_facade
from passerelle.core.ports.deltas import TextDelta
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.protocol.frames import Volatile
from passerelle.protocol.wire import encode_server

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.outbox import Outbox
    from passerelle.channels.views import View
    from passerelle.core.ports.deltas import Deltas, OpenText
    from passerelle.core.ports.log import StreamRef

WINDOW_S: Final = 0.02
_RETRY_S: Final = 1.0
_WAITING: Final = 65_536
"""Characters that may wait for a slow reader; more are dropped."""


class TextReader:
    """The text deltas of one subscription."""

    def __init__(self, name: str, view: View, outbox: Outbox, counts: ChannelCounts) -> None:
        """``name`` is the client's name for the stream."""
        self._name = name
        self._task = view.task if isinstance(view, TaskView) else None
        self._outbox = outbox
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._is_live = False
        self._waiting: dict[str, TextDelta] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = float("-inf")

    def begin(self, blocks: list[TextDelta]) -> None:
        """The reader is live: it gets the open blocks, and then new deltas."""
        self._is_live = True
        self._waiting.clear()
        for block in blocks:
            self.take(block)

    def stop(self) -> None:
        """The reader is no longer live: the events that it will read contain the text."""
        self._is_live = False
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, delta: TextDelta) -> None:
        """Takes one delta; the first is sent at once, later ones at the end of a window."""
        if not self._is_live or not self._shows(delta):
            return
        before = self._waiting.get(delta.block)
        if before is not None and delta.at == before.at + len(before.text):
            delta = TextDelta(before.block, before.at, before.text + delta.text)
        self._waiting[delta.block] = delta
        if self._timer is None:
            left_s = self._sent_s + WINDOW_S - self._loop.time()
            if left_s <= 0:
                self.flush()
            else:
                self._timer = self._loop.call_later(left_s, self.flush)

    def flush(self) -> None:
        """Sends what waits, before anything that is stored after it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        if not self._outbox.has_room:
            self._retry_later()
            return
        self._sent_s = self._loop.time()
        self._counts.deliveries["text"] += len(self._waiting)
        for delta in self._waiting.values():
            frame = Volatile(self._name, delta.block, delta.at, delta.text)
            self._outbox.put(encode_server(frame))
        self._waiting.clear()

    def _retry_later(self) -> None:
        if sum(len(delta.text) for delta in self._waiting.values()) > _WAITING:
            self._waiting.clear()
        else:
            self._timer = self._loop.call_later(WINDOW_S, self.flush)

    def _shows(self, delta: TextDelta) -> bool:
        if self._task is None:
            return True
        parsed = parse_facade(delta.facade)
        return parsed is not None and parsed[0] == self._task


@dataclass(slots=True, eq=False)
class _TextStream:
    """One stream: its readers, and whether it is subscribed."""

    readers: set[TextReader] = field(default_factory=set[TextReader])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_subscribed: bool = False


class Texts:
    """The text of all streams for the readers of one instance. All methods run in one event loop."""

    def __init__(self, deltas: Deltas, open_text: OpenText) -> None:
        self._deltas = deltas
        self._open_text = open_text
        self._streams: dict[StreamRef, _TextStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stream: StreamRef, reader: TextReader) -> None:
        """The reader is live: it gets deltas once the stream is subscribed. May be called again."""
        followed = self._streams.setdefault(stream, _TextStream())
        followed.readers.add(reader)
        if followed.is_subscribed:
            reader.begin(self._open_text.read_blocks(stream.id))
        else:
            self._spawn(self._listen(stream, followed))

    def end(self, stream: StreamRef, reader: TextReader) -> None:
        """The reader is no longer live."""
        reader.stop()
        followed = self._streams.get(stream)
        if followed is None or reader not in followed.readers:
            return
        followed.readers.discard(reader)
        if not followed.readers:
            self._spawn(self._ignore(stream, followed))

    async def close(self) -> None:
        """Cancels what is in progress."""
        await cancel_all(self._tasks)

    async def _listen(self, stream: StreamRef, followed: _TextStream) -> None:
        async with followed.turn:
            while followed.readers and not followed.is_subscribed:
                try:
                    await self._deltas.listen(stream, partial(self._take, followed))
                    followed.is_subscribed = True
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_S)
                    continue
                # Subscribe first, read second: a delta in between arrives twice, and is recognized by its position.
                blocks = self._open_text.read_blocks(stream.id)
                for reader in followed.readers:
                    reader.begin(blocks)

    async def _ignore(self, stream: StreamRef, followed: _TextStream) -> None:
        async with followed.turn:
            if followed.readers:
                return
            if followed.is_subscribed:
                followed.is_subscribed = False
                await self._deltas.ignore(stream)
            if not followed.readers and self._streams.get(stream) is followed:
                del self._streams[stream]

    def _take(self, followed: _TextStream, delta: TextDelta) -> None:
        for reader in followed.readers:
            reader.take(delta)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        keep_until_done(asyncio.create_task(work), self._tasks)
