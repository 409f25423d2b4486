"""Retention of inboxes by time: events that are too old leave, and acks of devices that are long away.

An inbox is a projection of sessions, and pending questions stand beside its stream: a device that was away for longer
gets a gap and a snapshot. The limit in bytes is kept where events are copied in (``advance_projection``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import format_ms
from passerelle.store import keys
from passerelle.store.acks import KEEP_MS
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.list_notes import ListNotes
from passerelle.store.replies import as_int
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.core.ids import Shard
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_TRIM_INBOX: Final = Script("trim_inbox", as_int)
_MOST: Final = 128
"""Entries of one call: it holds up its server for less than a millisecond."""


class RedisInboxes:
    """All raise StoreUnavailable where the store does not answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def list_owners(self, shards: Collection[Shard]) -> list[str]:
        """Everybody whose inbox stands in one of these shards. One that is made meanwhile may be missing."""
        return await self._list(shards, keys.EVERY_INBOX)

    async def list_followers(self, shards: Collection[Shard]) -> list[str]:
        """Everybody whose changes of lists are noted in one of these shards."""
        return await self._list(shards, keys.EVERY_NOTED_LIST)

    async def _list(self, shards: Collection[Shard], pattern: str) -> list[str]:
        wanted, found = {shard.number for shard in shards}, set[str]()
        for node in self._nodes.all:
            async for names in scan_keys(node, pattern):
                found |= {
                    key.rpartition(b":")[2].decode() for key in names if int(key[1:3], 16) in wanted
                }
        return sorted(found)

    async def trim(self, owner: str, before_ms: int, now_ms: int) -> int:
        """Takes entries of an inbox from before a time out of it; returns how many.

        Acks of devices that were not seen for a week before ``now_ms`` are forgotten.
        """
        return await self._trim(StreamRef(StreamKind.INBOX, owner), before_ms, now_ms)

    async def trim_notes(self, owner: str, before_ms: int, now_ms: int) -> int:
        """The same of notes of lists; where nobody has followed them since, they end, and a cursor in them is a gap."""
        noted = StreamRef(StreamKind.TASKS, owner)
        command = pack("HMGET", keys.head(noted), "followed", "epoch")
        [reply] = await self._nodes.query_all(noted.shard, command)
        match reply:
            case [bytes(followed), bytes(epoch)] if int(followed) < before_ms:
                await ListNotes(self._nodes).end(owner, epoch.decode())
                return 1
            case _:
                pass
        return await self._trim(noted, before_ms, now_ms)

    async def _trim(self, inbox: StreamRef, before_ms: int, now_ms: int) -> int:
        names = [keys.head(inbox), keys.entries(inbox), keys.stream_acks(inbox)]
        control: dict[str, ControlValue] = {
            "before": format_ms(before_ms),
            "unseen": str(now_ms - KEEP_MS),
            "most": _MOST,
        }
        dropped = _MOST
        total = 0
        while dropped == _MOST:
            dropped = await self._nodes.run(_TRIM_INBOX, inbox.shard, names, control)
            total += dropped
        return total
