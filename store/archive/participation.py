"""Finds an owner's participation in other owners' sessions: tasks transferred to it, approvals it was asked for.

Its messages there belong to these sessions, and are forgotten with them. Its lists and its inbox name these tasks and
approvals. One that it has transferred on, and that is in neither any more, is not found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, get_args

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard, shard_of
from passerelle.core.payloads.approval import ClosingState
from passerelle.store import keys
from passerelle.store.archive.frame import read_owner
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_bytes, as_texts

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.archive.reader import Archive
    from passerelle.store.nodes import Nodes

_SESSION: Final = re.compile(rb'"sessionId":"(se_[0-3][0-9a-f][0-9a-z]{26})"')
_KINDS: Final = {"task": EntityKind.TASK, "act": EntityKind.ACTION}


@frozen
class ParticipationFinder:
    """Reads lists and inbox of an owner, and the entities that these name. All raise StoreUnavailable."""

    nodes: Nodes
    archive: Archive

    async def find(self, owner: str, own: Collection[str]) -> list[str]:
        """Other owners' sessions in which an owner takes part; ``own`` are the ids of its own entities."""
        found = set[str]()
        for name in sorted(await self._list_names(owner) - {*own}):
            whose, session = await self._find_session(name)
            found |= {session} if session and whose != owner else set[str]()
        return sorted(found)

    async def _list_names(self, owner: str) -> set[str]:
        """Tasks and approvals named by the lists and the inbox of an owner."""
        shard, names = shard_of(owner), set[str]()
        async for lists in scan_keys(self.nodes.node(shard), keys.every_list_of(shard, owner)):
            names |= {
                name.partition("~")[0]
                for name in await self._list_members(shard, (one.decode() for one in lists))
            }
        states = get_args(ClosingState)
        inbox = [
            keys.inbox_order(shard, owner),
            *(keys.inbox_closed(shard, owner, one) for one in states),
        ]
        names |= await self._list_members(shard, inbox)
        [views] = await self.nodes.query_in_background(
            shard, pack("HKEYS", keys.inbox_open(shard, owner))
        )
        return names | set(as_texts(views))

    async def _list_members(self, shard: Shard, lists: Iterable[str]) -> set[str]:
        asked = (pack("ZRANGE", name, 0, -1) for name in lists)
        replies = await self.nodes.query_in_background(shard, *asked)
        return {one for reply in replies for one in as_texts(reply)}

    async def _find_session(self, name: str) -> tuple[str | None, str | None]:
        """The owner and the session of a task or approval; None if it no longer exists."""
        kind, shard = _KINDS.get(name.partition("_")[0]), read_shard(name)
        if kind is None or shard is None:
            return None, None
        said = _SESSION.search(await self._read(EntityRef(kind, name)))
        if said is not None:
            session = said[1].decode()
            record = await self._read(EntityRef(EntityKind.SESSION, session))
            return read_owner([b"s", record]), session
        frame = await self.archive.find(shard, name)
        return (None, None) if frame is None else (frame.find_owner(), frame.session)

    async def _read(self, ref: EntityRef) -> bytes:
        """The record of an entity in the engine; empty if there is none."""
        command = pack("HGET", keys.entity(ref), "s")
        [record] = await self.nodes.query_in_background(ref.shard, command)
        return as_bytes(record) or b""
