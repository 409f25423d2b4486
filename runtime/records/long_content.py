"""Long JSON as it is read: in chunks, so that a reader who is slow holds one of them and no more."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

from passerelle.core.errors import StoreUnavailable
from passerelle.core.wire.long_json import LongJson, Slice
from passerelle.runtime.records.missing_content import MissingContent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.memory.room import Drawn

Shape: TypeAlias = "Callable[[JsonObject], JsonObject]"

CHUNK_BYTES: Final = 65_536
_TIMES: Final = 3
"""As it is stored, as what it is read into, and as what is made of that for its reader."""


class LongTaskError(Exception):
    """The Task that is asked for is large: whoever asked so reads ``content`` piece by piece.

    ``shape`` makes of the Task what was asked for; None: it is that already.
    """

    def __init__(self, content: LongContent, shape: Shape | None = None) -> None:
        super().__init__("a large task")
        self.content = content
        self.shape = shape

    async def load(self, drawn: Drawn) -> JsonObject:
        """What was asked for, in memory; ``drawn`` has what it takes, also while it is written in some other form.

        Raises:
            Limited, InstanceFull: there is no room for it; nothing was read.
            StoreUnavailable: content is missing or damaged, or cannot be read.
        """
        drawn.take_most(_TIMES * self.content.json.size)
        task = cast("JsonObject", orjson.loads(await self.content.read_whole()))
        return task if self.shape is None else self.shape(task)


@dataclass(frozen=True, slots=True)
class LongContent:
    """Long JSON, and where its slices stand."""

    blobs: Blobs
    shard: Shard
    json: LongJson

    def wrap(self, before: bytes, behind: bytes) -> LongContent:
        """The same between other bytes."""
        return replace(self, json=LongJson((before, *self.json.pieces, behind)))

    async def require(self) -> None:
        """Looks whether all of it is there: who has begun to read to somebody cannot say any more what is missing.

        Raises:
            MissingContent: some of it is not, or is shorter than it was.
            StoreUnavailable: nobody knows.
        """
        ends: dict[str, int] = {}
        for piece in self.json.pieces:
            if isinstance(piece, Slice):
                ends[piece.blob] = max(ends.get(piece.blob, 0), piece.start + piece.size)
        for blob, end in ends.items():
            if not await self.blobs.read(self.shard, blob, max(end - 1, 0), 1):
                raise MissingContent(blob)

    async def read(self) -> AsyncGenerator[bytes]:
        """Its bytes, at most ``CHUNK_BYTES`` at a time. The last ones of a slice come once its hash has been compared.

        Raises:
            StoreUnavailable: content is missing or damaged, or cannot be read; what came until then is not whole.
        """
        for piece in self.json.pieces:
            if isinstance(piece, Slice):
                async for chunk in self._read_slice(piece):
                    yield chunk
            else:
                for start in range(0, len(piece), CHUNK_BYTES):
                    yield piece[start : start + CHUNK_BYTES]

    async def read_whole(self) -> bytes:
        """All of it in memory. Raises StoreUnavailable as ``read`` does."""
        whole = bytearray()
        async for chunk in self.read():
            whole += chunk
        return bytes(whole)

    async def _read_slice(self, piece: Slice) -> AsyncGenerator[bytes]:
        digest = hashlib.sha256()
        done = 0
        while done < piece.size:
            wanted = min(CHUNK_BYTES, piece.size - done)
            chunk = await self.blobs.read(self.shard, piece.blob, piece.start + done, wanted)
            if chunk is None:
                raise MissingContent(piece.blob)
            digest.update(chunk)
            done += len(chunk)
            is_last = done == piece.size
            if len(chunk) < wanted or (is_last and digest.hexdigest() != piece.digest):
                raise StoreUnavailable(f"blob {piece.blob[:12]} is damaged", "no")
            yield chunk
