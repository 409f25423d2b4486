"""Server-sent events: the frames of a follower written as they come, with a sign of life in between.

Nothing is sent before the first event is there, so an error before it is a plain answer. After a time of silence the
stream begins with a comment, and a later error is its last event (G12). A comment is one line without a blank line
behind it: clients make an empty event of anything else.

The follower is read by a task of its own, so the wait for a frame can be given up for a comment without losing it. The
queue in between is short: a reader that is slow slows only its own position in what is stored.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.resume import mark_frame
from passerelle.core.errors import PasserelleError
from passerelle.gateway.a2a.refusals import veil

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from starlette.types import Send

    from passerelle.gateway.a2a.bindings import Binding
    from passerelle.gateway.control.stream_frame import StreamFrame

KEEP_ALIVE_S: Final = 15.0
COMMENT: Final = b": keep-alive\n"
_AHEAD: Final = 8
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies of that family hold events back otherwise
]
_Item: TypeAlias = "StreamFrame | PasserelleError | None"


@dataclass(slots=True)
class EventStream:
    """One response that is a stream. ``retry_ms``: how long a client should wait before it comes back.

    ``headers`` are further ones of the response, as they stand when it begins. ``marks``: each Task and event says its
    generation and cursor in its metadata (resume.md R11).
    """

    send: Send
    binding: Binding
    agent: str
    retry_ms: int
    keep_alive_s: float = KEEP_ALIVE_S
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    marks: bool = False
    started: bool = field(default=False, init=False)
    """Whether something was sent: from then on an error can only be an event."""
    _said: bool = field(default=False, init=False)

    async def copy(self, frames: AsyncIterator[StreamFrame]) -> PasserelleError | None:
        """Writes every frame, then ends the response; the error that it ended with, if any.

        Raises:
            PasserelleError: there is no first frame, and nothing has been sent yet.
        """
        async with _read_ahead(frames) as items:
            while True:
                try:
                    async with asyncio.timeout(self.keep_alive_s):
                        batch = await _take(items)
                except TimeoutError:
                    await self._write(COMMENT)
                    continue
                if batch.frames:
                    await self._write(b"".join(map(self._dress, batch.frames)))
                if batch.error is not None:
                    await self._fail(batch.error)
                    return batch.error
                if batch.is_last:
                    await self.end()
                    return None

    async def greet(self) -> None:
        """Begins the response before there is an event: for a reader that may have missed nothing."""
        await self._write(COMMENT)

    async def end(self) -> None:
        """Ends the response in good order; the client has the cursor of the last event."""
        await self._write(b"", more=False)

    async def _fail(self, error: PasserelleError) -> None:
        if not self.started:
            raise error
        await self._write(self.binding.write_failure(veil(error, self.agent)), more=False)

    def _dress(self, frame: StreamFrame) -> bytes:
        data = self.binding.wrap_event(
            frame.form(RESUME, write_marked) if self.marks else frame.data
        )
        event = b"id: %b\ndata: %b\n\n" % (frame.cursor.encode(), data)
        if self._said:
            return event
        self._said = True
        return b"retry: %d\n%b" % (self.retry_ms, event)

    async def _write(self, content: bytes, *, more: bool = True) -> None:
        if not self.started:
            self.started = True
            more_headers = [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in self.headers.items()
            ]
            headers = [*_HEADERS, *more_headers]
            start = {"type": "http.response.start", "status": 200, "headers": headers}
            await self.send(start)
        await self.send({"type": "http.response.body", "body": content, "more_body": more})


def write_marked(frame: StreamFrame) -> bytes:
    """The data of a frame with its generation and cursor, for readers with the resume extension."""
    return mark_frame(frame.data, frame.generation, frame.cursor)


@dataclass(slots=True)
class _Batch:
    """What was there at once: frames, and perhaps how it ended."""

    frames: list[StreamFrame] = field(default_factory=list["StreamFrame"])
    error: PasserelleError | None = None
    is_last: bool = False


async def _take(items: asyncio.Queue[_Item]) -> _Batch:
    """Waits for the next item, and takes what has come with it."""
    batch = _Batch()
    item = await items.get()
    while True:
        if item is None:
            batch.is_last = True
        elif isinstance(item, PasserelleError):
            batch.error = item
        else:
            batch.frames.append(item)
        if items.empty():
            return batch
        item = items.get_nowait()


@asynccontextmanager
async def _read_ahead(
    frames: AsyncIterator[StreamFrame],
) -> AsyncGenerator[asyncio.Queue[_Item]]:
    items: asyncio.Queue[_Item] = asyncio.Queue(_AHEAD)
    reader = asyncio.create_task(_read(frames, items))
    try:
        yield items
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(frames: AsyncIterator[StreamFrame], items: asyncio.Queue[_Item]) -> None:
    try:
        async for frame in frames:
            await items.put(frame)
        await items.put(None)
    except PasserelleError as error:
        await items.put(error)
    except Exception as error:  # noqa: BLE001  the top of this worker: its reader must hear of the end
        structlog.get_logger().error("a2a.stream_fault", exc_info=error)
        await items.put(PasserelleError("the gateway failed to go on; its log says why"))
