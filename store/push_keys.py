"""The one key pair of this runtime towards push services, sealed: made by whoever needs it first, the same for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes


class RedisPushKeys:
    """Keeps one value that is written once."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def read(self) -> bytes | None:
        """The stored value. Raises StoreUnavailable."""
        return await self._nodes.query(Shard(0), pack("GET", keys.push_key()), as_bytes)

    async def keep(self, value: bytes) -> bytes:
        """The value that is kept: this one, or the one that somebody else was faster with. Raises StoreUnavailable."""
        command = pack("SET", keys.push_key(), value, "NX")
        await self._nodes.update(Shard(0), command)
        return await self.read() or value
