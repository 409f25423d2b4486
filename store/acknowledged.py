"""The last acknowledged append per session, and a cheap check whether the store still has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.store import keys
from passerelle.store.archive.locator import place_row
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes


@frozen
class Acknowledged:
    """An acknowledged append: its ``last`` event with the chain, under an epoch of its shard.

    ``at_s`` is a time of the monotonic clock.
    """

    session: str
    last: int
    chain: str
    epoch: int
    at_s: float
    row: bytes | None = None
    """The session's archive row, if the session was archived with this as its last event."""


async def find_unproven(nodes: Nodes, found: Sequence[Acknowledged]) -> list[Acknowledged]:
    """Returns the appends that neither head nor archive row proves; the caller has to read the stream for these.

    A head proves an append if it ends with its event and chain. An archive row proves it if that append wrote it.

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
    rows = zip(found, replies[::2], replies[1::2], strict=True)
    return [one for one, head, row in rows if not _is_proven(one, head, row)]


def _is_proven(one: Acknowledged, head: RespValue, row: RespValue) -> bool:
    if one.row is not None and row == one.row:
        return True
    return head == [b"%d" % one.last, one.chain.encode()]
