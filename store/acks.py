"""Acknowledged positions of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.ports.channels import Acked
from passerelle.store import keys
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.log import read_hash
from passerelle.store.retry import retry
from passerelle.store.scripts import read_script

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from passerelle.core.ports.channels import AckResult
    from passerelle.core.ports.log import StreamRef
    from passerelle.store.connection import Reply
    from passerelle.store.nodes import Nodes

_Row: TypeAlias = tuple[str, str, str | bool, str, str, str]
"""Device, generation, whole cursor or False, epoch and sequence of it, when the device was seen."""

KEEP_MS: Final = 7 * 24 * 3600 * 1000
"""An ack holds its stream for a week after the device was last seen; one unseen for longer is forgotten."""
TAB_KEEP_MS: Final = 3600 * 1000
"""One of several tabs: most of them never come back."""


class RedisAcks:
    """``core.ports.channels.Acks`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._rows: Coalescer[StreamRef, _Row, AckResult] = Coalescer(self._store)

    def store_ack(
        self, stream: StreamRef, device: str, generation: int, cursor: str, now_ms: int
    ) -> Awaitable[AckResult]:
        """Moves the acknowledged cursor forward, never back (CHN-5).

        ``cursor`` reads ``<epoch>.<sequence>.<chain>``; an empty one sets the generation only.
        """
        epoch, sequence = "", "0"
        if cursor:
            epoch, sequence, _ = cursor.split(".")
        row = (device, str(generation), cursor or False, epoch, sequence, str(now_ms))
        return self._rows.call(stream, row)

    def _store(self, stream: StreamRef, rows: list[_Row]) -> Awaitable[list[AckResult]]:
        packed = read_script("ack").pack_call(
            [keys.stream_acks(stream), keys.head(stream)], {"keep": str(KEEP_MS), "rows": rows}
        )
        return _read_results(self._nodes.write_now(stream.shard, packed))

    async def read_ack(self, stream: StreamRef, device: str) -> str | None:
        """The cursor that a device acknowledged last."""
        command = pack("HGET", keys.stream_acks(stream), device)
        [row] = await retry(lambda: self._nodes.read(stream.shard, command))
        if not isinstance(row, bytes):
            return None
        return row.split(b"|")[1].decode() or None

    async def list_acks(self, stream: StreamRef) -> list[Acked]:
        """Every device that is remembered, the one that was seen last first."""
        command = pack("HGETALL", keys.stream_acks(stream))
        [reply] = await retry(lambda: self._nodes.read(stream.shard, command))
        rows = [_read_row(device, row) for device, row in read_hash(reply).items()]
        return sorted(rows, key=lambda row: row.seen_ms, reverse=True)


async def _read_results(asked: Awaitable[Reply]) -> list[AckResult]:
    return [cast("AckResult", word.decode()) for word in cast("list[bytes]", await asked)]


def _read_row(device: str, row: bytes) -> Acked:
    generation, cursor, seen_ms = row.decode().split("|")
    return Acked(device, int(generation), cursor or None, int(seen_ms))
