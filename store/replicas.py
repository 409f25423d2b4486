"""Replicas of the primaries: whether there are any, and whether one of them has what was written.

A failover loses what no replica has. So an act that nothing undoes waits until one has what was stored before it.
Which primaries have replicas is what this process has seen since it started: a primary that was cut off from them is
not taken for one that never had any.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.info import parse_info, read_facts

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.nodes import Node, Nodes

_MARK_MS: Final = 5_000


class RedisReplicas:
    """``core.ports.leases.Replicas`` over a server or cluster. ``counts`` False: replicas are nothing to wait for."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.counts = True
        self._missing: set[Node] = set()

    @property
    def are_missing(self) -> bool:
        """Whether acts wait: a primary whose last write before an act was confirmed by nobody."""
        return bool(self._missing)

    def are_seen(self, shard: Shard) -> bool:
        """Whether the shard's primary has had a replica since this process started."""
        return self._nodes.primaries[shard.number].has_replicas

    async def have_all(self, shard: Shard) -> bool:
        """Whether a replica has everything that the shard's primary has acknowledged so far.

        Replication is in order, so a mark that is written behind it stands for all. False also while the store is away.
        """
        node = self._nodes.node(shard)
        mark = pack("SET", keys.probe(shard), "1", "PX", _MARK_MS)
        try:
            _, replicas = await self._nodes.act(shard, mark)
            confirmed = replicas > 0
        except StoreUnavailable:
            confirmed = False
        (self._missing.discard if confirmed else self._missing.add)(node)
        return confirmed

    async def look(self) -> None:
        """Takes note of replicas that have come since.

        Raises:
            StoreUnavailable: a primary does not answer.
        """
        ask = pack("INFO", "replication")
        nodes = self._nodes.all
        answers = await asyncio.gather(*(node.reads.call(ask) for node in nodes))
        for node, answer in zip(nodes, answers, strict=True):
            if read_facts(parse_info(answer[0])).replicas:
                self.note(node)

    def note(self, node: Node) -> None:
        """A primary has a replica."""
        node.has_replicas = self.counts
