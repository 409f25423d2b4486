"""Content uploaded by agents: noted in the shard of the agent's name, and stored next to the copies for a day.

The note is written first, so content without a note is never left behind. A due row for each agent schedules the
deletion (I9).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.chunks import in_chunks
from passerelle.core.ids import derive_shard
from passerelle.core.ports.blobs import Uploaded
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash, as_ms, as_text
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Copies
    from passerelle.core.ports.due import DueRow
    from passerelle.store.nodes import Nodes

ROW: Final = "upload"
KEEP_MS: Final = 24 * 3600 * 1000
_FORGET_MS: Final = 30 * 24 * 3600 * 1000
"""Longer than any row stays unprocessed."""
_MOST: Final = 1_000
_AGAIN_MS: Final = 60_000
"""Delay until content uploaded again in the meantime (by the clock of its storage) is checked again."""
_AT_ONCE: Final = 32
"""Contents that are removed in parallel; their notes are removed before the next ones."""
_NO_TOKEN: Final = ""
"""The token of no claim: the row stays as it is."""
_FORGET_UPLOADS: Final = Script("forget_uploads", as_text)
_NOTE_UPLOAD: Final = Script("note_upload", lambda reply: reply == b"noted")


class RedisUploads:
    """``core.ports.blobs.Uploads`` over a server or cluster, and a place for content."""

    def __init__(self, nodes: Nodes, contents: Copies, keep_ms: int = KEEP_MS) -> None:
        self._nodes = nodes
        self._contents = contents
        self._keep_ms = keep_ms

    async def put(
        self, agent: str, sha256: str, content: bytes, media_type: str, room_bytes: int
    ) -> bool:
        """Stores content, unless the agent would exceed ``room_bytes`` or the maximum count.

        Raises:
            StoreUnavailable: it may be stored or not; the same call again is safe.
        """
        shard = _place(agent)
        is_noted = await self._nodes.run(
            _NOTE_UPLOAD,
            shard,
            [keys.agent_uploads(shard, agent), keys.due(shard)],
            {
                "row": f"{ROW}:{agent}",
                "sha256": sha256,
                "size": len(content),
                "type": media_type,
                "keep": self._keep_ms,
                "forget": self._keep_ms + _FORGET_MS,
                "room": room_bytes,
                "most": _MOST,
            },
        )
        if is_noted:
            await self._contents.put(shard, content)
        return is_noted

    async def get(self, agent: str, sha256: str) -> Uploaded | None:
        """Content that the agent has uploaded; None if there is none.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        shard = _place(agent)
        command = pack("HGET", keys.agent_uploads(shard, agent), sha256)
        note = await self._nodes.query(shard, command, as_bytes)
        if note is None:
            return None
        content = await self._contents.get(shard, sha256)
        return None if content is None else Uploaded(content, note.decode().split(" ", 2)[2])

    async def expire(self, row: DueRow) -> None:
        """Removes content first and its note then: a second try finds the rest.

        Raises:
            StoreUnavailable: it is retried.
        """
        agent, shard = row.entity, _place(row.entity)
        uploads = keys.agent_uploads(shard, agent)
        notes, time = await self._nodes.query_all(shard, pack("HGETALL", uploads), pack("TIME"))
        before_ms = as_ms(time) - self._keep_ms
        old = [one for one in as_hash(notes).items() if _read_ms(one[1]) <= before_ms]
        for some in in_chunks(old, _AT_ONCE):
            went = await asyncio.gather(
                *(self._contents.expire(shard, sha256, before_ms) for sha256, _ in some)
            )
            gone = [
                (sha256, note.decode())
                for (sha256, note), is_gone in zip(some, went, strict=True)
                if is_gone
            ]
            # If it is interrupted after this, these are done and the rest is still pending.
            await self._forget(agent, row.member, _NO_TOKEN, gone)
        await self._forget(agent, row.member, row.token, [])

    async def _forget(self, agent: str, row: str, token: str, gone: list[tuple[str, str]]) -> None:
        shard = _place(agent)
        await self._nodes.run(
            _FORGET_UPLOADS,
            shard,
            [keys.agent_uploads(shard, agent), keys.due(shard)],
            {
                "row": row,
                "token": token,
                "gone": gone,
                "keep": self._keep_ms,
                "again": _AGAIN_MS,
            },
        )


def _read_ms(note: bytes) -> int:
    return int(note.split(b" ", 1)[0])


def _place(agent: str) -> Shard:
    return derive_shard("agent", agent)
