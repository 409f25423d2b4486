"""Recently forgotten sessions: a writer that misses one of them does not report a data loss."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Nodes

_KEEP_MS: Final = 300_000
"""Longer than an instance compares acknowledged writes with the store."""
_NOTE: Final = Script("note_gone", as_int)


async def note_gone(nodes: Nodes, shard: Shard, sessions: Iterable[str]) -> None:
    """Records that these sessions are about to be forgotten. Raises StoreUnavailable."""
    names = [_key(shard, session) for session in sessions]
    if names:
        await nodes.run(_NOTE, shard, names, {"keep": _KEEP_MS})


async def was_forgotten(nodes: Nodes, shard: Shard, session: str) -> bool:
    """Whether a session was forgotten recently. Raises StoreUnavailable."""
    return await nodes.query(shard, pack("EXISTS", _key(shard, session)), as_int) > 0


def _key(shard: Shard, session: str) -> str:
    # Forgotten ids must not be stored (FGT-1), so the key has a digest.
    return keys.gone(shard, hashlib.sha256(session.encode()).hexdigest()[:32])
