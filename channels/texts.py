"""Text that is on its way, from whoever drives a run to whoever looks on: stored nowhere, and lost at any time (I1).

One listener per stream serves all readers of an instance, as long as there are any. A reader is told while it is live,
in windows, with the pieces of one block put together. What a reader cannot take is dropped, as the event that closes
the block has all of it. On the instance that drives the run a late reader is given each open block from its beginning.
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
"""Characters that may wait for a slow reader; what is more is dropped."""


class TextReader:
    """What one subscription tells of a stream's text."""

    def __init__(self, name: str, view: View, outbox: Outbox, counts: ChannelCounts) -> None:
        """``name`` is that of the stream as the client has it."""
        self._name = name
        self._task = view.task if isinstance(view, TaskView) else None
        self._outbox = outbox
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._is_live = False
        self._waiting: dict[str, TextDelta] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = float("-inf")

    def begin(self, blocks: list[TextDelta]) -> None:
        """The reader is live: it is given what is open, and told what comes from now on."""
        self._is_live = True
        self._waiting.clear()
        for block in blocks:
            self.take(block)

    def stop(self) -> None:
        """The reader is not live any more, or gone: what it misses is in the events that it will read."""
        self._is_live = False
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, delta: TextDelta) -> None:
        """One piece; the first at once, what follows at the end of a window."""
        if not self._is_live or not self._shows(delta):
            return
        before = self._waiting.get(delta.block)
        if before is not None and delta.at == before.at + len(before.text):
            delta = TextDelta(before.block, before.at, before.text + delta.text)
        self._waiting[delta.block] = delta
        if self._timer is None:
            left_s = self._told_s + WINDOW_S - self._loop.time()
            if left_s <= 0:
                self.flush()
            else:
                self._timer = self._loop.call_later(left_s, self.flush)

    def flush(self) -> None:
        """Tells what waits, before anything that is stored after it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        if not self._outbox.has_room:
            self._hold()
            return
        self._told_s = self._loop.time()
        self._counts.deliveries["text"] += len(self._waiting)
        for delta in self._waiting.values():
            frame = Volatile(self._name, delta.block, delta.at, delta.text)
            self._outbox.put(encode_server(frame))
        self._waiting.clear()

    def _hold(self) -> None:
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
class _Heard:
    """One stream: who is told of it, and whether anything is heard."""

    readers: set[TextReader] = field(default_factory=set[TextReader])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_heard: bool = False


class Texts:
    """The text of all streams for the readers of one instance. All methods run in one event loop."""

    def __init__(self, deltas: Deltas, open_text: OpenText) -> None:
        self._deltas = deltas
        self._open_text = open_text
        self._heard: dict[StreamRef, _Heard] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stream: StreamRef, reader: TextReader) -> None:
        """A reader is live: it is told of a stream's text from when the stream is heard. May be called again."""
        heard = self._heard.setdefault(stream, _Heard())
        heard.readers.add(reader)
        if heard.is_heard:
            reader.begin(self._open_text.read_blocks(stream.id))
        else:
            self._spawn(self._listen(stream, heard))

    def end(self, stream: StreamRef, reader: TextReader) -> None:
        """A reader is live no more."""
        reader.stop()
        heard = self._heard.get(stream)
        if heard is None or reader not in heard.readers:
            return
        heard.readers.discard(reader)
        if not heard.readers:
            self._spawn(self._ignore(stream, heard))

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, stream: StreamRef, heard: _Heard) -> None:
        async with heard.turn:
            while heard.readers and not heard.is_heard:
                try:
                    await self._deltas.listen(stream, partial(self._take, heard))
                    heard.is_heard = True
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_S)
                    continue
                # Listen first, read then: what is said between the two comes twice, and its place tells.
                blocks = self._open_text.read_blocks(stream.id)
                for reader in heard.readers:
                    reader.begin(blocks)

    async def _ignore(self, stream: StreamRef, heard: _Heard) -> None:
        async with heard.turn:
            if heard.readers:
                return
            if heard.is_heard:
                heard.is_heard = False
                await self._deltas.ignore(stream)
            if not heard.readers and self._heard.get(stream) is heard:
                del self._heard[stream]

    def _take(self, heard: _Heard, delta: TextDelta) -> None:
        for reader in heard.readers:
            reader.take(delta)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
