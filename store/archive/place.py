"""Whether an instance uses the same archive storage as all others, which have to find what it archives.

The first instance stores a file there, and its hash in the store.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_text

if TYPE_CHECKING:
    from passerelle.core.ports.blobs import Blobs
    from passerelle.store.nodes import Nodes

_HOME: Final = Shard(0)
_FIELD: Final = "place"


async def is_shared_place(nodes: Nodes, segments: Blobs) -> bool:
    """Whether the file named by the store is in this storage; while nothing is archived, any storage is accepted.

    Raises:
        StoreUnavailable: the engine or the archive storage does not answer.
    """
    key = keys.meta(_HOME)
    [named] = await nodes.query_all(_HOME, pack("HGET", key, _FIELD))
    if named is not None:
        if await segments.get(_HOME, as_text(named)) is not None:
            return True
        if await _has_segments(nodes):
            return False
        await nodes.update(_HOME, pack("HDEL", key, _FIELD))
    digest = await segments.put(_HOME, f"archive {secrets.token_hex(16)}\n".encode())
    await nodes.update(_HOME, pack("HSETNX", key, _FIELD, digest))
    [named] = await nodes.query_all(_HOME, pack("HGET", key, _FIELD))
    return await segments.get(_HOME, as_text(named)) is not None


async def _has_segments(nodes: Nodes) -> bool:
    for shard in ALL_SHARDS:
        [count] = await nodes.query_all(shard, pack("ZCARD", keys.segments(shard)))
        if as_int(count):
            return True
    return False
