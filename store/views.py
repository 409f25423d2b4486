"""What is derived from records, looked at and written beside appends and the relay: for verification and repairs.

Each write is one command that may be repeated. Whoever repairs reads the records again behind its writes, since a
gateway may have written meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import place
from passerelle.core.ports.projections import PARTS
from passerelle.store import keys
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.payloads.approval import ClosingState
    from passerelle.core.ports.projections import IndexRow, Part
    from passerelle.store.nodes import Nodes


class RedisViews:
    """All raise StoreUnavailable where the store does not take it."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open_in_session(self, session: str, names: Iterable[str]) -> None:
        """Tasks and questions keep the stream of their session."""
        shard = place(session)
        for name in names:
            key = keys.session_open(shard, session)
            await self._nodes.update(shard, pack("ZADD", key, "NX", 0, name))

    async def close_in_session(self, session: str, names: Iterable[str]) -> None:
        """They do no more."""
        shard = place(session)
        for name in names:
            await self._nodes.update(shard, pack("ZREM", keys.session_open(shard, session), name))

    async def list_in_session(self, session: str, facade: str, at_ms: int) -> None:
        """A task stands in the list of its session, by the time of its status."""
        shard = place(session)
        key = keys.session_tasks(shard, session)
        await self._nodes.update(shard, pack("ZADD", key, "GT", at_ms, facade))

    async def unlist_in_session(self, session: str, facade: str) -> None:
        """It stands there no more."""
        shard = place(session)
        await self._nodes.update(shard, pack("ZREM", keys.session_tasks(shard, session), facade))

    async def put_row(self, row: IndexRow) -> None:
        """A task stands in one part of its owner's list and in no other; in none where it is ``gone``."""
        shard = place(row.owner)
        for part in PARTS:
            key = keys.owner_index(shard, row.owner, row.agent, part)
            if part == row.part:
                await self._nodes.update(shard, pack("ZADD", key, "GT", row.at_ms, row.facade))
            else:
                await self._nodes.update(shard, pack("ZREM", key, row.facade))

    async def drop_row(self, place_of: keys.OwnerList, facade: str) -> None:
        """A task stands in a list no more."""
        shard = place(place_of.owner)
        await self._nodes.update(shard, pack("ZREM", keys.owner_index(shard, *place_of), facade))

    async def drop_question(self, owner: str, action: str) -> None:
        """A question does not wait for a person any more."""
        shard = place(owner)
        await self._nodes.update(shard, pack("HDEL", keys.inbox_open(shard, owner), action))
        await self._nodes.update(shard, pack("ZREM", keys.inbox_order(shard, owner), action))

    async def list_closed(self, owner: str, state: ClosingState, action: str, at_ms: int) -> None:
        """A question stands among those of a person that ended so."""
        shard = place(owner)
        key = keys.inbox_closed(shard, owner, state)
        await self._nodes.update(shard, pack("ZADD", key, at_ms, action))

    async def find_parts(self, owner: str, agent: str, facade: str) -> frozenset[Part]:
        """The parts of an owner's list in which a task stands."""
        shard = place(owner)
        asked = [
            pack("ZSCORE", keys.owner_index(shard, owner, agent, part), facade) for part in PARTS
        ]
        scores = await self._nodes.query_all(shard, *asked)
        return frozenset(part for part, at in zip(PARTS, scores, strict=True) if at is not None)
