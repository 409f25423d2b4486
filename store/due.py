"""The due set of a shard: deadlines and pending actions (I9), and the poll for the heads of many shards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import SHARDS, Shard
from passerelle.core.ports.due import ClaimedRows, DueRow, ShardHeads
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

LEASE_ROWS: Final = "own:"
LEASE_BACK_MS: Final = 500
_UNCLAIMED: Final = "unclaimed"
_CLAIM_DUE: Final = Script("claim_due", as_texts, lane="leases")
_EXTEND_CLAIM: Final = Script("extend_claim", as_text)
_HASTEN: Final = Script("hasten_due", as_int)


@frozen
class LongClaim:
    """A row that stays claimed; None: it was settled, or another instance has claimed it.

    ``confirmed``: a replica has this claim and everything written before it, or there are no replicas.
    """

    row: DueRow | None
    confirmed: bool


class RedisDueRows:
    """``core.ports.due.DueRows`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def claim(
        self, shard: Shard, limit: int, visibility_ms: int, skip_prefix: str = ""
    ) -> ClaimedRows:
        """Claims lease rows that are due, then up to ``limit`` others; none that begins with ``skip_prefix``.

        Not retried here: a claim whose reply was lost comes due again after the visibility time.
        ``skip_prefix`` is ``LEASE_ROWS`` for one lease period after an outage, so that living owners extend first.
        Lease rows come due again soon, because runs wait for them: their handlers must be repeatable.
        """
        now, following, *flat = await self._nodes.run_once(
            _CLAIM_DUE,
            shard,
            [keys.due(shard), keys.lessees(shard)],
            {
                "limit": limit,
                "visibility": visibility_ms,
                "first": LEASE_ROWS,
                "back": min(visibility_ms, LEASE_BACK_MS),
                "skip_prefix": skip_prefix,
            },
        )
        return ClaimedRows(
            rows=tuple(
                DueRow(member, token) for member, token in zip(flat[::2], flat[1::2], strict=True)
            ),
            now_ms=int(now),
            next_ms=float(following) if following else None,
        )

    async def extend_claim(self, shard: Shard, row: DueRow, hold_ms: int) -> LongClaim:
        """Keeps a claimed row for ``hold_ms`` from now, for an act that takes longer than the visibility time.

        Not retried here, like a claim. A failover must not undo the claim of the act that follows.
        """
        answer, confirmed = await self._nodes.run_replicated(
            _EXTEND_CLAIM,
            shard,
            [keys.due(shard)],
            {"member": row.member, "token": row.token, "hold": hold_ms},
        )
        return LongClaim(None if answer == _UNCLAIMED else replace(row, token=answer), confirmed)

    async def hasten(self, shard: Shard, after_ms: Mapping[str, int]) -> int:
        """Makes existing rows due in the given ms if they would be due later; returns how many, by the last try."""
        control: dict[str, ControlValue] = {
            "members": [*after_ms],
            "after": [*after_ms.values()],
        }
        return await self._nodes.run(_HASTEN, shard, [keys.due(shard)], control)


class RedisShardPoll:
    """``core.ports.shard_poll.ShardPoll`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def read_heads(self, shards: Sequence[Shard]) -> list[ShardHeads | StoreUnavailable]:
        """Two commands for each shard and no script: this runs every second, whether anything is due or not."""
        due, feed = await asyncio.gather(
            self._nodes.lease_each([(shard, _pack_due(shard)) for shard in shards]),
            self._nodes.lease_each([(shard, _pack_feed(shard)) for shard in shards]),
        )
        return [
            next((one for one in found if isinstance(one, StoreUnavailable)), None)
            or _read_heads(cast("tuple[list[bytes], list[list[bytes]]]", found))
            for found in zip(due, feed, strict=True)
        ]


@lru_cache(SHARDS)
def _pack_due(shard: Shard) -> bytes:
    return pack("ZRANGE", keys.due(shard), 0, 0, "WITHSCORES")


@lru_cache(SHARDS)
def _pack_feed(shard: Shard) -> bytes:
    return pack("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", 1)


def _read_heads(found: tuple[list[bytes], list[list[bytes]]]) -> ShardHeads:
    due, feed = found
    return ShardHeads(tuple(due), feed[0][0] if feed else b"")
