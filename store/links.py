"""Facts that are owed about device links: several of one kind within a minute are told as one (EXT-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.ids import place
from passerelle.core.ports.channels import OwedLink
from passerelle.store import keys
from passerelle.store.channels import KEEP_MS
from passerelle.store.coalescer import Coalescer
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_sparse_list, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.store.nodes import Nodes

WINDOW_MS: Final = 60_000
LISTED: Final = 16
"""Payloads of one kind that are kept where each of them counts; the number counts all."""


_Row: TypeAlias = tuple[str, str, int, int, str | bool]
"""Channel, kind, milliseconds until the first of a kind is told, payloads that are listed, generation."""
_OWE_LINK: Final = Script("owe_link", lambda reply: [None] * len(as_texts(reply)))
_SETTLE_LINK: Final = Script("settle_link", as_text)


class RedisLinks:
    """``core.ports.channels.Links`` over a server or cluster."""

    def __init__(self, nodes: Nodes, window_ms: int = WINDOW_MS) -> None:
        self._nodes = nodes
        self._window_ms = window_ms
        self._owed: Coalescer[tuple[Shard, str | None], tuple[_Row, bytes], None] = Coalescer(
            self._owe
        )

    def owe(
        self,
        channel: str,
        generation: int,
        kind: str,
        payload: bytes,
        *,
        listed: bool = False,
        leaves: str | None = None,
        wait_ms: int = 0,
    ) -> asyncio.Future[None]:
        """Begins to note a fact; a row of the due set tells it, after ``wait_ms`` or a minute after the last one.

        ``listed``: each payload counts, not only that of the newest generation. ``leaves``: the instance whose
        connection has ended. Tried again after a lost reply: a fact too many is counted then.
        """
        most = LISTED if listed else 0
        row = (channel, kind, wait_ms, most, str(generation))
        return self._owed.call((place(channel), leaves), (row, payload))

    async def lose(self, channel: str, payload: bytes, instance: str) -> None:
        """Notes that a link has ended with its instance, unless the device is connected elsewhere already."""
        row = (channel, "disconnected", 0, 0, False)
        await self._owed.call((place(channel), instance), (row, payload))

    async def read_owed(self, channel: str, kind: str) -> OwedLink | None:
        """What is owed; None where the record is gone."""
        shard = place(channel)
        wanted = ("s", f"o:{kind}", f"n:{kind}", f"t:{kind}")
        command = pack("HMGET", keys.channel(shard, channel), *wanted)
        found = await self._nodes.query(shard, command, as_sparse_list)
        record, payloads, total, told = found
        if record is None or payloads is None:
            return None
        return OwedLink(record, payloads, int(total or 0), int(told or 0))

    async def settle(self, row: DueRow, kind: str, owed: OwedLink, *, listed: bool) -> None:
        """What was read has been told."""
        shard = place(row.entity)
        await self._nodes.run(
            _SETTLE_LINK,
            shard,
            [keys.channel(shard, row.entity), keys.due(shard)],
            {
                "channel": row.entity,
                "kind": kind,
                "told": str(owed.total),
                "before": str(owed.told),
                "bytes": len(owed.payloads) if listed else 0,
                "token": row.token,
                "window": self._window_ms,
            },
        )

    async def read_all(self, channel: str) -> dict[str, bytes]:
        """Every field of a channel's record; nothing where there is none."""
        shard = place(channel)
        command = pack("HGETALL", keys.channel(shard, channel))
        return await self._nodes.query(shard, command, as_hash)

    def _owe(
        self, where: tuple[Shard, str | None], owed: list[tuple[_Row, bytes]]
    ) -> Awaitable[list[None]]:
        shard, instance = where
        names = [keys.due(shard), *(keys.channel(shard, row[0]) for row, _ in owed)]
        if instance is not None:
            names.append(keys.own(shard, instance))
        return self._nodes.run_unbatched(
            _OWE_LINK,
            shard,
            names,
            {
                "window": self._window_ms,
                "keep": str(KEEP_MS),
                "leaves": instance is not None,
                "rows": [row for row, _ in owed],
            },
            [payload for _, payload in owed],
        )
