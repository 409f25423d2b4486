"""Server-sent events: writes the frames of a follower as they arrive, with keep-alive comments in between.

Nothing is sent before the first event, so an error before it is a plain response. After some silence the stream starts
with a comment, and a later error is its last event (G12). A comment is one line without a blank line behind it:
clients read anything else as an empty event.

There is no queue: a slow reader delays only its own position in the stored stream, and of a long frame it holds one
chunk. Comments come from a timer, not from a task, so that an idle reader costs little more than its socket.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import PasserelleError
from passerelle.core.wire.sse import escape_breaks, hold_begun
from passerelle.gateway.a2a.bindings import EVENTS
from passerelle.gateway.a2a.frame_forms import PLAIN, FrameForm
from passerelle.gateway.a2a.reply import PLACEHOLDER, hide_agent_details
from passerelle.runtime.observability.logs import explain_fault
from passerelle.runtime.records.long_content import CHUNK_BYTES, MissingContent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from starlette.types import Send

    from passerelle.channels.stream_frame import Frames, StreamFrame
    from passerelle.gateway.a2a.bindings import CallBinding
    from passerelle.runtime.memory.room import MemoryDraw
    from passerelle.runtime.records.long_content import LongContent

KEEP_ALIVE_S: Final = 15.0
COMMENT: Final = b": keep-alive\n"
_HEADERS: Final = [
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx and its relatives buffer events otherwise
]


@dataclass(slots=True)
class EventStream:
    """One streaming response. ``retry_ms``: how long a client should wait before it reconnects.

    ``headers`` are further ones of the response, read when it starts; ``form`` is how each frame is written.
    """

    send: Send
    binding: CallBinding
    agent: str
    retry_ms: int
    keep_alive_s: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    form: FrameForm = PLAIN
    add_headers: Callable[[], None] | None = None
    """Called once, when the response starts; it completes ``headers``."""
    drawn: MemoryDraw | None = None
    """The memory for a long frame that is loaded."""
    is_framed: bool = False
    """Whether an event is one frame of its reader, and so has to be in memory."""
    started: bool = field(default=False, init=False)
    """Whether something was sent: from then on an error can only be an event."""
    _has_retry: bool = field(default=False, init=False)
    _is_broken: bool = field(default=False, init=False)
    """Whether an event was started and not ended: nothing can be sent after it."""
    _written_s: float = field(default=0.0, init=False)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _comment: asyncio.Task[None] | None = field(default=None, init=False)

    async def copy(self, batches: Frames) -> PasserelleError | None:
        """Writes every frame, then ends the response. Returns the error that it ended with, if any.

        Raises:
            PasserelleError: there is no first frame, and nothing has been sent yet.
        """
        with self._keep_alive():
            try:
                async with aclosing(batches):
                    async for frames in batches:
                        await self._write_frames(frames)
            except PasserelleError as error:
                failure = error
            except Exception as error:  # noqa: BLE001  the top of this worker: its reader must learn of the end
                structlog.get_logger().error("a2a.stream_fault", exc_info=error)
                failure = explain_fault("go on")
            else:
                await self.end()
                return None
        await self.fail(failure)
        return failure

    async def start(self) -> None:
        """Starts the response before the first event, for a resuming reader that may have missed nothing."""
        await self._write(COMMENT)

    async def end(self) -> None:
        """Ends the response in good order; the client has the cursor of the last event."""
        if self._is_broken:
            return
        await self._write(b"", more=False)

    async def fail(self, error: PasserelleError) -> None:
        """Ends the response with an error as its last event; raises it if nothing has been sent.

        After a partial event nothing is sent: the server closes the connection of an incomplete response.
        """
        if not self.started:
            raise error
        if self._is_broken:
            structlog.get_logger().error("a2a.stream_cut", agent=self.agent, reason=f"{error}")
            return
        if isinstance(error, MissingContent):
            structlog.get_logger().error("a2a.stream_failed", agent=self.agent, reason=error.reason)
        failure = self.binding.write_failure(hide_agent_details(error, self.agent))
        await self._write(escape_breaks(failure), more=False)

    async def _write_frames(self, frames: list[StreamFrame]) -> None:
        """Writes frames in memory together, and a long frame by itself."""
        held: list[bytes] = []
        for frame in frames:
            if frame.long is None:
                held.append(self._wrap(frame.cursor, self.form.render(frame)))
                continue
            if held:
                await self._write(b"".join(held))
                held = []
            if self.form.keeps(frame) and not self.is_framed:
                await self._write_long(frame.cursor, frame.long)
            else:
                await self._write_loaded(frame)
        if held:
            await self._write(b"".join(held))

    async def _write_long(self, cursor: str, long: LongContent) -> None:
        """Writes one event chunk by chunk: reads the next chunk when the last one has been sent.

        If it cannot be read to its end, the connection is cut, since nothing can follow a partial event. So it checks
        first that all chunks exist.
        """
        await long.require()
        head, _, tail = self._wrap(cursor, PLACEHOLDER).partition(PLACEHOLDER)
        async with self._writing:
            await self._begin()
            self._is_broken = True
            await self._send(head)
            begun = b""
            async with aclosing(long.read()) as chunks:
                async for chunk in chunks:
                    piece, begun = hold_begun(begun + chunk)
                    await self._send(escape_breaks(piece))
            await self._send(begun + tail)
            self._is_broken = False

    async def _write_loaded(self, frame: StreamFrame) -> None:
        """Writes a long frame that has to be in memory; what it draws from the budget is held until it is sent."""
        try:
            loaded = self._wrap(frame.cursor, self.form.render(await frame.load(self.drawn)))
            await self._write_slowly(loaded)
        finally:
            if self.drawn is not None:
                self.drawn.close()

    async def _write_slowly(self, content: bytes) -> None:
        """Writes a large content in chunks: the server buffers what a slow reader has not taken."""
        async with self._writing:
            await self._begin()
            self._is_broken = True
            for part in in_chunks(content, CHUNK_BYTES):
                await self._send(part)
            self._is_broken = False

    def _wrap(self, cursor: str, frame: bytes) -> bytes:
        data = escape_breaks(self.binding.wrap_event(frame))
        event = b"id: %b\ndata: %b\n\n" % (cursor.encode(), data)
        if self._has_retry:
            return event
        self._has_retry = True
        return b"retry: %d\n%b" % (self.retry_ms, event)

    async def _write(self, content: bytes, *, more: bool = True) -> None:
        async with self._writing:
            await self._begin()
            await self._send(content, more=more)

    async def _begin(self) -> None:
        if not self.started:
            self.started = True
            await self._send_head()

    async def _send(self, content: bytes, *, more: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": content, "more_body": more})
        self._written_s = asyncio.get_running_loop().time()

    async def _send_head(self) -> None:
        if self.add_headers is not None:
            self.add_headers()
        more_headers = [
            (name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()
        ]
        headers = [*_HEADERS, *more_headers]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    @contextmanager
    def _keep_alive(self) -> Generator[None]:
        """Writes a comment whenever nothing was written for a while; one timer lasts as long as the stream."""
        self._written_s = asyncio.get_running_loop().time()
        self._schedule_check(self.keep_alive_s)
        try:
            yield
        finally:
            for waiting in (self._timer, self._comment):
                if waiting is not None:
                    waiting.cancel()

    def _schedule_check(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._check_silence)

    def _check_silence(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._written_s + self.keep_alive_s - loop.time()
        if wait_s <= 0:
            wait_s = self.keep_alive_s
            if not self._writing.locked():
                self._comment = loop.create_task(self._write(COMMENT))
        self._schedule_check(wait_s)
