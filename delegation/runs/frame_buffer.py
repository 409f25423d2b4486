"""Frames of a peer's stream that are read and not stored yet, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from passerelle.core.peer import Answered

if TYPE_CHECKING:
    from passerelle.core.peer import StreamOutcome

_BUFFERED_FRAMES: Final = 256
_BUFFERED_BYTES: Final = 8_388_608
"""Frames read ahead of the store, or one larger frame; then reading stops, which slows the peer down."""


class FrameBuffer:
    """A bounded queue of frames; when it is full, the reader of the stream waits."""

    def __init__(self) -> None:
        self._frames: deque[tuple[StreamOutcome, int]] = deque()
        self._bytes = 0
        self._chunks = 0
        self._taken = asyncio.Event()
        self.is_closed = False
        """Whether no more frames are accepted: the stream is left once the present ones are taken."""

    def __len__(self) -> int:
        """The number of frames."""
        return len(self._frames)

    @property
    def size(self) -> int:
        """The bytes of all frames together."""
        return self._bytes

    def has_only_chunks(self) -> bool:
        """Whether every frame is a piece of an unfinished artifact, and so may wait for others."""
        return self._chunks == len(self._frames)

    async def put(self, outcome: StreamOutcome, size: int = 0) -> None:
        """Adds a frame of ``size`` bytes once there is room; waits for ever if the buffer is closed."""
        while self.is_closed or (self._frames and self._is_full(size)):
            self._taken.clear()
            await self._taken.wait()
        self._frames.append((outcome, size))
        self._bytes += size
        self._chunks += _is_chunk(outcome)

    def _is_full(self, size: int) -> bool:
        return len(self._frames) >= _BUFFERED_FRAMES or self._bytes + size > _BUFFERED_BYTES

    def collect(self, most: int, most_bytes: int) -> tuple[list[StreamOutcome], int]:
        """Takes one to ``most`` frames, and returns their bytes: frames within one round trip share an append."""
        batch: list[StreamOutcome] = []
        total = 0
        while self._frames and len(batch) < most:
            outcome, size = self._frames[0]
            if batch and total + size > most_bytes:
                break
            self._frames.popleft()
            batch.append(outcome)
            total += size
            self._chunks -= _is_chunk(outcome)
            if not isinstance(outcome, Answered):
                break
        self._bytes -= total
        self._taken.set()
        return batch, total


def _is_chunk(outcome: StreamOutcome) -> bool:
    if not isinstance(outcome, Answered) or "artifactUpdate" not in outcome.result:
        return False
    update = outcome.result["artifactUpdate"]
    return isinstance(update, dict) and not update.get("lastChunk")
