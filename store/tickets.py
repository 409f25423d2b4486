"""Values that can be taken once: what a ticket of a browser stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import derive_shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes


class RedisTickets:
    """Sealed values by name; each goes away when it is taken, or by itself."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def put(self, name: str, value: bytes, keep_ms: int) -> None:
        """Keeps a value for ``keep_ms``. Raises StoreUnavailable."""
        shard = derive_shard("ticket", name)
        command = pack("SET", keys.ticket(shard, name), value, "PX", keep_ms)
        await self._nodes.update(shard, command)

    async def take(self, name: str) -> bytes | None:
        """The value, for the first one who asks. Raises StoreUnavailable; the value may be gone then."""
        shard = derive_shard("ticket", name)
        return as_bytes(await self._nodes.write(shard, pack("GETDEL", keys.ticket(shard, name))))
