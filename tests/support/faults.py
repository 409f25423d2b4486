"""Fault injection between the product and the store: a log and blobs that fail, or run a hook at a chosen moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from passerelle.core.batch import AppendResult, Batch, EntityRef, Loaded, PackedBatch
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.ports.blobs import Copies
from passerelle.core.ports.log import Entry, EventLog, Head, StreamRef
from tests.support.packed import read_packed

Moment = Callable[[Batch], Awaitable[None]]


@dataclass(slots=True)
class FaultyLog:
    """An event log. ``refuses_writes``: nothing is written and the caller gets an error.

    ``before_append`` and ``after_append`` run around each successful append: a test blocks the write there, inspects
    state, or lets another writer go first. ``stored`` contains every batch that was written.
    """

    log: EventLog
    refuses_writes: bool = False
    before_append: Moment | None = None
    after_append: Moment | None = None
    stored: list[Batch] = field(default_factory=list[Batch])
    refused: int = 0
    entries_read: int = 0
    loads: int = 0
    """How many times records were read."""

    def shard_epoch(self, shard: Shard) -> int:
        return self.log.shard_epoch(shard)

    def pack(self, batch: Batch) -> PackedBatch:
        return self.log.pack(batch)

    def unpack(self, packed: PackedBatch, first: int) -> list[Loaded]:
        return self.log.unpack(packed, first)

    async def append(self, batch: Batch | PackedBatch) -> AppendResult:
        seen = read_packed(batch)
        if self.before_append is not None:
            await self.before_append(seen)
        if self.refuses_writes:
            self.refused += 1
            raise StoreUnavailable("the test took it away", "no")
        result = await self.log.append(batch)
        self.stored.append(seen)
        if self.after_append is not None:
            await self.after_append(seen)
        return result

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        self.loads += 1
        return await self.log.load(refs)

    async def read_idempotency(self, shard: Shard, key: str) -> tuple[str, bytes] | None:
        return await self.log.read_idempotency(shard, key)

    async def read_head(self, stream: StreamRef) -> Head | None:
        return await self.log.read_head(stream)

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        entries = await self.log.read_page(stream, after, limit)
        self.entries_read += len(entries)
        return entries

    async def read_frame(self, stream: StreamRef, sequence: int) -> bytes:
        frame = await self.log.read_frame(stream, sequence)
        self.entries_read += bool(frame)
        return frame

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        return await self.log.read_resume(stream, after, limit)

    async def read_session_tasks(self, session: str) -> list[tuple[str, int]]:
        return await self.log.read_session_tasks(session)

    async def read_open(self, session: str) -> list[str]:
        return await self.log.read_open(session)


@dataclass(slots=True)
class FaultyBlobs:
    """A blob store that can be unavailable; ``refused`` counts rejected writes."""

    blobs: Copies
    away: bool = False
    refused: int = 0

    async def put(self, shard: Shard, content: bytes) -> str:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the blobs are away", "no")
        return await self.blobs.put(shard, content)

    async def put_pieces(self, shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the blobs are away", "no")
        await self.blobs.put_pieces(shard, sha256, pieces)

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        return await self.blobs.get(shard, sha256)

    async def read(self, shard: Shard, sha256: str, start: int, size: int) -> bytes | None:
        return await self.blobs.read(shard, sha256, start, size)

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        return await self.blobs.expire(shard, sha256, before_ms)
