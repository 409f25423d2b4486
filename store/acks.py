"""Acknowledged positions of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ports.channels import Acked
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from passerelle.core.ports.channels import AckResult
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.archive.reader import Archive
    from passerelle.store.nodes import Nodes

_Row: TypeAlias = tuple[str, str, str | bool, str, str, str]
"""Device, generation, cursor or False, its epoch and sequence, time the device was last seen (ms)."""

KEEP_MS: Final = 7 * 24 * 3600 * 1000
"""An ack holds its stream for a week after the device was last seen; later it is deleted."""
TAB_KEEP_MS: Final = 3600 * 1000
"""The same for one of several tabs: most of them never reconnect."""
_ACK: Final = Script("ack", lambda reply: cast("list[AckResult]", as_texts(reply)))


class RedisAcks:
    """``core.ports.channels.Acks`` over a server or cluster."""

    def __init__(self, nodes: Nodes, archive: Archive) -> None:
        self._nodes = nodes
        self._archive = archive
        self._rows: Coalescer[StreamRef, _Row, AckResult] = Coalescer(self._store)

    def store_ack(
        self, stream: StreamRef, device: str, generation: int, cursor: str, now_ms: int
    ) -> Awaitable[AckResult]:
        """Moves the acknowledged cursor forward, never back (CHN-5).

        ``cursor`` reads ``<epoch>.<sequence>.<chain>``; an empty one only sets the generation.
        """
        epoch, sequence = "", "0"
        if cursor:
            epoch, sequence, _ = cursor.split(".")
        row = (device, str(generation), cursor or False, epoch, sequence, str(now_ms))
        return self._rows.call(stream, row)

    def _store(self, stream: StreamRef, rows: list[_Row]) -> Awaitable[list[AckResult]]:
        asked = self._send(stream, rows)
        return asked if stream.kind in keys.OF_OWNERS else self._check(stream, rows, asked)

    def _send(
        self, stream: StreamRef, rows: list[_Row], top: Sequence[str] = ()
    ) -> Coroutine[None, None, list[AckResult]]:
        return self._nodes.run_unbatched(
            _ACK,
            stream.shard,
            [keys.stream_acks(stream), keys.head(stream)],
            {"keep": str(KEEP_MS), "rows": rows, "top": top or False},
        )

    async def _check(
        self, stream: StreamRef, rows: list[_Row], asked: Awaitable[list[AckResult]]
    ) -> list[AckResult]:
        """Stores acks of an archived session as well: its followers acknowledge what they read from the archive."""
        results = await asked
        if "ack_epoch" not in results:
            return results
        frame = await self._archive.find(stream.shard, stream.id)
        if frame is None:
            return results
        head = as_hash(frame.hashes[EntityRef(EntityKind.SESSION, stream.id)])
        return await self._send(stream, rows, (head["epoch"].decode(), head["seq"].decode()))

    async def read_ack(self, stream: StreamRef, device: str) -> str | None:
        """The last cursor that a device acknowledged."""
        command = pack("HGET", keys.stream_acks(stream), device)
        row = await self._nodes.query(stream.shard, command, as_bytes)
        return None if row is None else _read_row(device, row).cursor

    async def list_acks(self, stream: StreamRef) -> list[Acked]:
        """Every stored device, the most recently seen first."""
        command = pack("HGETALL", keys.stream_acks(stream))
        found = await self._nodes.query(stream.shard, command, as_hash)
        rows = [_read_row(device, row) for device, row in found.items()]
        return sorted(rows, key=lambda row: row.seen_ms, reverse=True)


def _read_row(device: str, row: bytes) -> Acked:
    generation, cursor, seen_ms = row.decode().split("|")
    return Acked(device, int(generation), cursor or None, int(seen_ms))
