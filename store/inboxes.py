"""Retention of inboxes by time: drops events that are too old, and acks of devices that are gone for long.

An inbox is a projection of sessions, and its pending approvals are stored outside of its stream: a device that was away
for longer gets a gap and a snapshot. The limit in bytes is applied where events are copied in (``advance_projection``).
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
"""Entries of one call: it blocks its server for less than a millisecond."""


class RedisInboxes:
    """All raise StoreUnavailable where the store does not answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def list_owners(self, shards: Collection[Shard]) -> list[str]:
        """All owners with an inbox in one of these shards. An inbox created meanwhile may be missing."""
        return await self._list(shards, keys.EVERY_INBOX)

    async def list_followers(self, shards: Collection[Shard]) -> list[str]:
        """All owners whose list changes are noted in one of these shards."""
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
        """Drops inbox entries from before a time; returns how many.

        Acks of devices not seen in the week before ``now_ms`` are deleted.
        """
        return await self._trim(StreamRef(StreamKind.INBOX, owner), before_ms, now_ms)

    async def trim_notes(self, owner: str, before_ms: int, now_ms: int) -> int:
        """The same for notes of lists; notes not followed since then end, and a cursor in them becomes a gap."""
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
