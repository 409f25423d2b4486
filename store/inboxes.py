"""Retention of inboxes by time: events that are too old leave, and acks of devices that are long away.

An inbox is a projection of sessions, and pending questions stand beside its stream: a device that was away for longer
gets a gap and a snapshot. The limit in bytes is kept where events are copied in (``advance_projection``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.times import format_ms
from passerelle.store import keys
from passerelle.store.acks import KEEP_MS
from passerelle.store.key_scan import scan_keys
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
        wanted, found = {shard.number for shard in shards}, set[str]()
        for node in self._nodes.all:
            async for names in scan_keys(node, keys.EVERY_INBOX):
                found |= {
                    key.rpartition(b":")[2].decode() for key in names if int(key[1:3], 16) in wanted
                }
        return sorted(found)

    async def trim(self, owner: str, before_ms: int, now_ms: int) -> int:
        """Takes entries of an inbox from before a time out of it; returns how many.

        Acks of devices that were not seen for a week before ``now_ms`` are forgotten.
        """
        inbox = StreamRef(StreamKind.INBOX, owner)
        names = [keys.head(inbox), keys.entries(inbox), keys.stream_acks(inbox)]
        control: dict[str, ControlValue] = {
            "before": format_ms(before_ms),
            "unseen": str(now_ms - KEEP_MS),
            "most": _MOST,
        }
        dropped = _MOST
        total = 0
        while dropped == _MOST:
            dropped = await self._nodes.run(_TRIM_INBOX, shard_of(owner), names, control)
            total += dropped
        return total
