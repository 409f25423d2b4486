"""What a run tells its peer to call back with: kept by the run's id, as hashes, until it can be of no use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import place
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

_SEPARATOR: Final = " "


@dataclass(frozen=True, slots=True)
class Callback:
    """The task of the run, and the SHA-256 of nonce and token in hex."""

    task: str
    nonce: str
    token: str


class RedisCallbacks:
    """Callbacks over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def keep(self, run: str, callback: Callback, ttl_ms: int) -> None:
        """Stores the callback of a run."""
        text = _SEPARATOR.join((callback.task, callback.nonce, callback.token))
        packed = pack("SET", keys.callback(place(run), run), text, "PX", ttl_ms)
        await self._nodes.update(place(run), packed)

    async def find(self, run: str) -> Callback | None:
        """The callback of a run."""
        shard = place(run)
        found = await self._nodes.query(shard, pack("GET", keys.callback(shard, run)), as_bytes)
        if found is None:
            return None
        return Callback(*found.decode().split(_SEPARATOR))
