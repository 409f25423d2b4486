"""Large or missing content: large content is read in chunks, missing content is reported by its hash.

Large JSON is read in chunks, so that a slow reader holds one chunk in memory at most.

A task with a missing blob can still be read. Its reader gets the rest, a placeholder part for what is missing, and the
list of missing hashes in the task's metadata; a list of tasks never fails because of one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

from passerelle.a2a_mapping import states
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.task.status import Status
from passerelle.core.wire.long_json import LongJson, Slice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.memory.room import MemoryDraw

Shape: TypeAlias = "Callable[[JsonObject], JsonObject]"

CHUNK_BYTES: Final = 65_536
_TIMES: Final = 3
"""Factor for memory: the stored form, the parsed form, and the form rendered for the reader."""


class LongTaskError(Exception):
    """The requested Task is large: the caller reads ``content`` piece by piece.

    ``shape`` turns the Task into what was requested; None: the Task is what was requested.
    """

    def __init__(self, content: LongContent, shape: Shape | None = None) -> None:
        super().__init__("a large task")
        self.content = content
        self.shape = shape

    async def load(self, drawn: MemoryDraw) -> JsonObject:
        """Loads what was requested into memory; ``drawn`` holds the memory for it, also while it is rendered.

        Raises:
            Limited, InstanceFull: there is no room for it; nothing was read.
            StoreUnavailable: content is missing or damaged, or cannot be read.
        """
        task = cast("JsonObject", orjson.loads(await self.content.load(drawn)))
        return task if self.shape is None else self.shape(task)


@frozen
class LongContent:
    """Long JSON, and the blobs that its slices are in."""

    blobs: Blobs
    shard: Shard
    json: LongJson

    def wrap(self, before: bytes, behind: bytes) -> LongContent:
        """The same content between a prefix and a suffix."""
        return replace(self, json=LongJson((before, *self.json.pieces, behind)))

    async def require(self) -> None:
        """Checks that all content exists: once a response has begun, missing content can no longer be reported.

        Raises:
            MissingContent: some of it is missing or shorter than expected.
            StoreUnavailable: the blob store does not answer.
        """
        ends: dict[str, int] = {}
        for piece in self.json.pieces:
            if isinstance(piece, Slice):
                ends[piece.blob] = max(ends.get(piece.blob, 0), piece.start + piece.size)
        for blob, end in ends.items():
            if not await self.blobs.read(self.shard, blob, max(end - 1, 0), 1):
                raise MissingContent(blob)

    async def read(self) -> AsyncGenerator[bytes]:
        """Its bytes, at most ``CHUNK_BYTES`` at a time. The last chunk of a slice follows once its hash is verified.

        Raises:
            StoreUnavailable: content is missing or damaged, or cannot be read; the chunks so far are incomplete.
        """
        for piece in self.json.pieces:
            if isinstance(piece, Slice):
                async for chunk in self._read_slice(piece):
                    yield chunk
            else:
                for part in in_chunks(piece, CHUNK_BYTES):
                    yield part

    async def load(self, drawn: MemoryDraw) -> bytes:
        """The same; ``drawn`` holds the memory for it, also while it is converted and sent.

        Raises:
            Limited, InstanceFull: there is no room for it; nothing was read.
            StoreUnavailable: as ``read`` does.
        """
        drawn.take_most(_TIMES * self.json.size)
        return await self.read_whole()

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


MISSING: Final = "urn:passerelle:missing"
"""Key in the metadata of a part, and of its task: ``sha256`` of the missing content, or a list of these."""
_TEXT: Final = "This content is missing: the blob store does not have it any more."
_ENDS: Final[dict[Status, str]] = {
    Status.COMPLETED: states.COMPLETED,
    Status.CANCELLED: states.CANCELED,
    Status.FAILED: states.FAILED,
    Status.TIMED_OUT: states.FAILED,
    Status.LOST: states.FAILED,
}
_ENDED: Final = frozenset({*_ENDS.values(), states.REJECTED})


class MissingContent(StoreUnavailable):
    """The blob store answers, but does not have content that a fact names."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"blob {sha256[:12]} is missing", "no")
        self.sha256 = sha256


def mark_part(sha256: str) -> JsonObject:
    """The placeholder part for missing content."""
    return {"text": _TEXT, "metadata": {MISSING: {"sha256": sha256}}}


def mark_message(sha256: str, message_id: str) -> JsonObject:
    """A message whose content is missing."""
    return {"messageId": message_id, "role": "ROLE_USER", "parts": [mark_part(sha256)]}


def mark_task(
    task: JsonObject | None, facade: str, record: TaskRecord, missing: list[str]
) -> JsonObject:
    """A task with missing frames: with every artifact of its record, and its recorded final state."""
    if task is None:
        context = record.scope.context_id
        task = {"id": facade, "contextId": context, "status": {"state": states.WORKING}}
    artifacts = objects_at(task, "artifacts")
    present = {text_at(one, "artifactId") for one in artifacts}
    lost: list[JsonObject] = [
        {"artifactId": one.name_at_peer, "parts": [mark_part(one.sha256)]}
        for one in record.artifacts
        if one.name_at_peer not in present
    ]
    artifacts += lost
    status = object_at(task, "status")
    if status.get("state") not in _ENDED and record.status in _ENDS:
        status = {**status, "state": _ENDS[record.status]}
    marked = as_list([{"sha256": sha256} for sha256 in missing])
    return {
        **task,
        "status": status,
        **({"artifacts": as_list(artifacts)} if artifacts else {}),
        "metadata": {**object_at(task, "metadata"), MISSING: marked},
    }
