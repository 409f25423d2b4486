"""Surveys many lists of owners at once: the length of each, and its oldest members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.ports.projections import ListSurvey
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.projections import ListedTasks
    from passerelle.store.nodes import Nodes


@frozen
class RedisListSurveys:
    """``core.ports.projections.ListSurveys`` over a server or cluster."""

    nodes: Nodes

    async def survey_open(self, lists: Sequence[ListedTasks], oldest: int) -> list[ListSurvey]:
        """The open tasks of each list, with at most ``oldest`` of the oldest."""
        named = [(shard_of(one.owner), one) for one in lists]
        return await self._survey(
            [
                (shard, keys.owner_index(shard, one.owner, one.agent, "open"))
                for shard, one in named
            ],
            oldest,
        )

    async def survey_pending(self, owners: Sequence[str], oldest: int) -> list[ListSurvey]:
        """The pending approvals of each owner, with at most ``oldest`` of the oldest."""
        shards = map(shard_of, owners)
        return await self._survey(
            [
                (shard, keys.inbox_order(shard, owner))
                for shard, owner in zip(shards, owners, strict=True)
            ],
            oldest,
        )

    async def _survey(self, names: Sequence[tuple[Shard, str]], oldest: int) -> list[ListSurvey]:
        if not names:
            return []
        counts = [(shard, pack("ZCARD", name)) for shard, name in names]
        rows = [(shard, pack("ZRANGE", name, 0, oldest - 1, "WITHSCORES")) for shard, name in names]
        replies = await self.nodes.query_each_in_background([*counts, *rows])
        return [
            ListSurvey(as_int(count), tuple(as_scores(found)))
            for count, found in zip(replies[: len(names)], replies[len(names) :], strict=True)
        ]
