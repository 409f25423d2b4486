"""The unit that followers yield: one frame as callers see it, with its position."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.a2a_mapping.history import cut_history
from passerelle.a2a_mapping.members import object_at
from passerelle.channels.views import read_header
from passerelle.core.events import GENERATION
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.runtime.memory.room import MemoryDraw
    from passerelle.runtime.records.long_content import LongContent

_TASK: Final = b'{"task"'


@frozen
class StreamFrame:
    """One A2A StreamResponse as JSON bytes, and the cursor after it.

    ``envelope`` is the event that contains the frame; a Task that was read as a whole has none, and sets ``seen``
    itself. ``forms`` is shared by all readers of the event. ``is_marked``: it tells how to follow its task further,
    also to a reader that has not activated the resume extension.
    """

    data: bytes
    cursor: str
    envelope: bytes = b""
    seen: int = 0
    is_marked: bool = False
    long: LongContent | None = None
    """The whole of a frame that is not in memory; then ``data`` is only its beginning."""
    history: int | None = None
    """The most messages of the history that ``load`` leaves in a long Task; None: all."""
    forms: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False, repr=False)

    @property
    def generation(self) -> int:
        """Number of events of the task that callers have seen including this one; 0 if not counted."""
        if not self.envelope:
            return self.seen
        generation = read_header(self.envelope).get(GENERATION)
        return generation if isinstance(generation, int) else 0

    async def load(self, drawn: MemoryDraw | None = None) -> StreamFrame:
        """The same frame with all of its data, for a reader that needs it whole; ``drawn`` holds the memory for it.

        Raises:
            Limited, InstanceFull: there is no room for it.
            StoreUnavailable: the content is missing or damaged, or cannot be read.
        """
        if self.long is None:
            return self
        data = await (self.long.read_whole() if drawn is None else self.long.load(drawn))
        if self.history is not None:
            data = _cut(data, self.history)
        return replace(self, data=data, long=None, history=None)

    def form(self, name: str, make: Callable[[StreamFrame], bytes]) -> bytes:
        """Another form of the frame: built for the first reader that asks, and cached for the others."""
        made = self.forms.get(name)
        if made is None:
            made = self.forms[name] = make(self)
        return made


Frames: TypeAlias = AsyncGenerator[list[StreamFrame], None]
"""Frames in order, in batches of those available at once."""


@frozen
class FollowedStream:
    """An opened follower. ``resumed``: whether a cursor was honoured; None if none was sent."""

    batches: Frames
    resumed: bool | None = None
    awaits: list[str] = field(default_factory=list[str])
    """Turns whose answer the reader waits for: if the agent refuses one, the stream ends with its error."""

    @property
    def frames(self) -> AsyncGenerator[StreamFrame, None]:
        """The frames one by one."""
        return unpack(self.batches)


def cut_stream(followed: FollowedStream, length: int | None) -> FollowedStream:
    """The stream with at most ``length`` messages in the history of each Task; None cuts nothing."""
    if length is None:
        return followed
    return replace(followed, batches=_cut_frames(followed.batches, length))


async def _cut_frames(batches: Frames, length: int) -> Frames:
    async with aclosing(batches):
        async for batch in batches:
            yield [_cut_frame(frame, length) for frame in batch]


def _cut_frame(frame: StreamFrame, length: int) -> StreamFrame:
    # The first bytes identify a Task.
    if not frame.data.startswith(_TASK):
        return frame
    if frame.long is not None:
        # Its reader loads it, and draws the memory for it.
        return replace(frame, history=length, forms={})
    return replace(frame, data=_cut(frame.data, length), forms={})


def _cut(data: bytes, length: int) -> bytes:
    task = cut_history(object_at(orjson.loads(data), "task"), length)
    return orjson.dumps({"task": task})


Followers: TypeAlias = AbstractAsyncContextManager[FollowedStream]


async def unpack(batches: Frames) -> AsyncGenerator[StreamFrame, None]:
    """The frames one by one."""
    async with aclosing(batches):
        async for batch in batches:
            for frame in batch:
                yield frame
