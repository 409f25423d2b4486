"""What the store has acknowledged to this process, and whether it can be seen at a glance that it still has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.ids import shard_of
from passerelle.store import keys
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the store has acknowledged: the ``last`` event of an append with its chain, under an epoch of its shard.

    ``at_s`` is a time of the monotonic clock.
    """

    session: str
    last: int
    chain: str
    epoch: int
    at_s: float
    row: bytes | None = None
    """What its row in the archive says, where it has left the engine with this as its last event."""


async def find_unproven(nodes: Nodes, found: Sequence[Acknowledged]) -> list[Acknowledged]:
    """Those of which neither the head nor the row says that they are there: whoever wants to know reads on.

    A head ends with the event and its chain. A row leads to the very frame that was written with it.

    Raises:
        StoreUnavailable: a node does not answer.
    """
    asked = list[tuple["Shard", bytes]]()
    for one in found:
        shard = shard_of(one.session)
        asked += (
            (shard, pack("HMGET", keys.session_head(shard, one.session), "seq", "chain")),
            (shard, pack("HGET", *place_row(shard, one.session))),
        )
    replies = await nodes.query_each_in_background(asked)
    told = zip(found, replies[::2], replies[1::2], strict=True)
    return [one for one, head, row in told if not _is_proven(one, head, row)]


def _is_proven(one: Acknowledged, head: RespValue, row: RespValue) -> bool:
    if one.row is not None and row == one.row:
        return True
    return head == [b"%d" % one.last, one.chain.encode()]
