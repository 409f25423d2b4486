"""Lists, inboxes and marks are updated after the appends: waits for the last updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import ALL_SHARDS
from passerelle.runtime.records.lag import RELAY
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.store.store import Store


async def await_relayed(store: Store) -> None:
    """Waits until the relay has processed every row of every feed.

    Raises:
        AssertionError: rows are left after 30 s.
    """

    async def is_relayed() -> bool:
        for shard in ALL_SHARDS:
            mark = await store.projections.read_mark(shard, RELAY)
            after = mark.partition(".")[2] if mark else None
            if await store.projections.read_feed(shard, after, 1):
                return False
        return True

    await wait_until(is_relayed, 30, "every row of the feeds is passed on")
