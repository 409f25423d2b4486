"""Removes references to sessions: lists, inboxes, results of commands, due rows, content.

Each removal may run twice, and removes nothing that belongs only to other sessions.
"""

from __future__ import annotations

import asyncio
import re
from time import monotonic
from typing import TYPE_CHECKING, Final, get_args

from passerelle.core.chunks import in_chunks
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, read_shard, shard_of
from passerelle.core.payloads.approval import ClosingState
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import order_feed_id
from passerelle.store import keys
from passerelle.store.archive.owner_survey import find_digests
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.list_registry import ListRegistry
from passerelle.store.replies import as_bytes, as_hash, as_int, as_texts
from passerelle.store.scripts import Script
from passerelle.store.stream_entries import as_entry_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable

    from passerelle.store.archive.owner_survey import SessionFinder, SessionTraces
    from passerelle.store.blobs import BlobStore
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_ID: Final = re.compile(rb"[a-z]{2,5}_[0-3][0-9a-f][0-9a-z]{26}")
_AT_ONCE: Final = 500
_MOST: Final = 128
"""Inbox entries removed in one call: it blocks its server for less than a millisecond."""
_RELAY_S: Final = 10.0
"""How long to wait for a lagging relay; without a working relay nothing moves."""
_LOOK_S: Final = 0.05
_NEVER_MS: Final = 1 << 52
"""Later than any put."""
_FORGET_IN_INBOX: Final = Script("forget_in_inbox", as_int)


@frozen
class TraceRemoval:
    """Removes references to sessions. All raise StoreUnavailable; partial removals stay."""

    nodes: Nodes
    finder: SessionFinder
    content: tuple[BlobStore, ...]
    """Where content is stored: content of facts, and copies of files."""

    async def remove_rows(self, traces: SessionTraces) -> None:
        """Removes sessions and their entities from lists, inboxes, results of commands, and due rows."""
        for owner in traces.owners:
            await self._clean_lists(owner, traces.ids)
        async for owner in self._list_inboxes():
            await self._clean_inbox(owner, traces.ids)
        for pattern in (keys.EVERY_RESULT, keys.EVERY_CALLBACK):
            await self._clean_values(pattern, traces.ids)
        for shard in {shard_of(name) for name in traces.ids}:
            await self._clean_due(shard, traces.ids)
            await self._clean_feed(shard, traces.ids)

    async def wait_for_relay(self, traces: SessionTraces) -> None:
        """Returns once the feed rows of these sessions are in the lists, or no relay carried them there in time."""
        until_s = monotonic() + _RELAY_S
        for shard in {shard_of(name) for name in traces.ids}:
            while True:
                if await self._is_relayed(shard) or monotonic() > until_s:
                    break
                await asyncio.sleep(_LOOK_S)

    async def _is_relayed(self, shard: Shard) -> bool:
        """Whether the whole feed is in the lists, or no instance has the duty to carry it."""
        last, marks, until = await self.nodes.query_in_background(
            shard,
            pack("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", 1),
            pack("HGETALL", keys.meta(shard)),
            pack("HGET", keys.duty(shard), "until"),
        )
        rows = as_entry_rows(last)
        if not rows or as_int(until) < self.nodes.node(shard).time.now_ms():
            return True
        ends = [
            value.partition(b".")[2]
            for name, value in as_hash(marks).items()
            if name.startswith(keys.MARK)
        ]
        return bool(ends) and min(order_feed_id(one.decode()) for one in ends) >= order_feed_id(
            rows[0][0].decode()
        )

    async def remove_content(self, traces: SessionTraces) -> None:
        """Deletes content that these sessions name and no other session does."""
        for shard, digests in traces.digests.items():
            own = await self.find_stored(shard, digests)
            if not own:
                continue
            async for frame in self.finder.list_others(shard, traces.ids):
                own -= find_digests(frame)
            for digest in own:
                for place in self.content:
                    await place.expire(shard, digest, _NEVER_MS)

    async def find_stored(self, shard: Shard, digests: Iterable[str]) -> set[str]:
        """The digests for which there is content."""
        return {one for one in digests if await self._is_stored(shard, one)}

    async def _is_stored(self, shard: Shard, digest: str) -> bool:
        for place in self.content:
            if await place.read(shard, digest, 0, 1) is not None:
                return True
        return False

    async def _clean_lists(self, owner: str, ids: set[str]) -> None:
        shard = shard_of(owner)
        async for names in scan_keys(self.nodes.node(shard), keys.every_list_of(shard, owner)):
            for name in names:
                listed = await self._list_members(shard, name.decode())
                gone = [one for one in listed if one.partition("~")[0] in ids]
                await self._remove(shard, name.decode(), gone)
        await ListRegistry(self.nodes).forget(owner)

    async def _list_inboxes(self) -> AsyncIterator[str]:
        for node in self.nodes.all:
            async for names in scan_keys(node, keys.EVERY_INBOX):
                for name in names:
                    owner = name.decode().rpartition(":")[2]
                    if read_shard(owner) is not None:
                        yield owner

    async def _clean_inbox(self, owner: str, ids: set[str]) -> None:
        inbox, shard = StreamRef(StreamKind.INBOX, owner), shard_of(owner)
        names = [
            keys.head(inbox),
            keys.entries(inbox),
            keys.inbox_open(shard, owner),
            keys.inbox_order(shard, owner),
            *(keys.inbox_closed(shard, owner, state) for state in get_args(ClosingState)),
        ]
        actions = set[str]()
        for name in names[3:]:
            actions.update(await self._list_members(shard, name))
        [views] = await self.nodes.query_in_background(shard, pack("HKEYS", names[2]))
        actions.update(as_texts(views))
        upto = await self._find_last(inbox, ids)
        gone = sorted(actions & ids)
        if not gone and not upto:
            return
        control: dict[str, ControlValue] = {"upto": upto, "most": _MOST, "actions": gone}
        while await self.nodes.run(_FORGET_IN_INBOX, shard, names, control) == _MOST:
            control = {**control, "actions": []}

    async def _find_last(self, inbox: StreamRef, ids: set[str]) -> int:
        """The sequence of the last event of an inbox that names one of these; 0 if none does."""
        command = pack("XRANGE", keys.entries(inbox), "-", "+")
        [reply] = await self.nodes.query_in_background(inbox.shard, command)
        for name, members in reversed(as_entry_rows(reply)):
            if _names_one(b" ".join(members), ids):
                return int(name.partition(b"-")[0])
        return 0

    async def _clean_values(self, pattern: str, ids: set[str]) -> None:
        """Removes string values that name one of these."""
        for node in self.nodes.all:
            async for names in scan_keys(node, pattern):
                by_shard = dict[Shard, list[str]]()
                for key in names:
                    by_shard.setdefault(ALL_SHARDS[int(key[1:3], 16)], []).append(key.decode())
                for shard, some in by_shard.items():
                    values = await self.nodes.query_in_background(
                        shard, *(pack("GET", name) for name in some)
                    )
                    for name, value in zip(some, values, strict=True):
                        if _names_one(as_bytes(value) or b"", ids):
                            await self.nodes.update(shard, pack("UNLINK", name))

    async def _clean_feed(self, shard: Shard, ids: set[str]) -> None:
        """Removes feed rows: a feed sent again after a loss would write rows of forgotten sessions."""
        command = pack("XRANGE", keys.feed(shard), "-", "+")
        [reply] = await self.nodes.query_in_background(shard, command)
        gone = [
            name.decode()
            for name, members in as_entry_rows(reply)
            if _names_one(b" ".join(members), ids)
        ]
        for some in in_chunks(gone, _AT_ONCE):
            await self.nodes.update(shard, pack("XDEL", keys.feed(shard), *some))

    async def _clean_due(self, shard: Shard, ids: set[str]) -> None:
        due = keys.due(shard)
        rows = await self._list_members(shard, due)
        await self._remove(shard, due, [row for row in rows if _names_one(row.encode(), ids)])

    async def _list_members(self, shard: Shard, name: str) -> list[str]:
        [reply] = await self.nodes.query_in_background(shard, pack("ZRANGE", name, 0, -1))
        return as_texts(reply)

    async def _remove(self, shard: Shard, name: str, members: Iterable[str]) -> None:
        every = [*members]
        for part in in_chunks(every, _AT_ONCE):
            await self.nodes.update(shard, pack("ZREM", name, *part))


def _names_one(words: bytes, ids: Collection[str]) -> bool:
    return any(one.decode() in ids for one in _ID.findall(words))
