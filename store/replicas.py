"""Replicas of the primaries: whether there are any, and whether one of them has what was written.

A failover loses what no replica has. So an act that cannot be undone waits until a replica has what was stored before
it. Which primaries have replicas is what this process has seen since it started: a primary isolated from its replicas
is not mistaken for one without any. Only a server that this process saw promoted, and that has no replicas, continues
without one after a while (``store.replication``).
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.fullness import read_memory_report
from passerelle.store.info import find_loss_risk, parse_info, read_facts
from passerelle.store.replication import acts_alone, observe, read_report

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.info import StoreDurability
    from passerelle.store.nodes import Node, Nodes

ALONE_AFTER_S: Final = 30.0
_MARK_MS: Final = 5_000


class RedisReplicas:
    """``core.ports.leases.Replicas`` over a server or cluster. ``counts`` False: acts never wait for replicas.

    ``alone_after_s``: how long acts wait at a promoted server without a replica, in seconds; None: until it has one.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.counts = True
        self.durability: StoreDurability = "aof"
        self.alone_after_s: float | None = ALONE_AFTER_S
        self._missing: set[Node] = set()

    @property
    def are_missing(self) -> bool:
        """Whether acts wait: no replica confirmed a primary's last write before an act."""
        return any(node.awaits_replicas for node in self._missing)

    @property
    def alone(self) -> tuple[str, ...]:
        """Addresses of promoted primaries without a replica at which acts continue."""
        return tuple(node.endpoint.name for node in self._nodes.all if node.acts_alone)

    @property
    def loss_risks(self) -> tuple[str, ...]:
        """The settings of primaries that can lose acknowledged writes, a sentence for each."""
        return tuple(node.loss_risk for node in self._nodes.all if node.loss_risk is not None)

    def are_seen(self, shard: Shard) -> bool:
        """Whether acts in a shard wait for a replica of its primary."""
        return self._nodes.primaries[shard.number].awaits_replicas

    async def have_all(self, shard: Shard) -> bool:
        """Whether a replica has everything that the shard's primary has acknowledged so far.

        Replication is in order, so the confirmation of a later mark covers all. False also while the store is away.
        """
        node = self._nodes.node(shard)
        mark = pack("SET", keys.probe(shard), "1", "PX", _MARK_MS)
        try:
            _, replicas = await self._nodes.wait_for_replica(shard, mark)
            confirmed = replicas > 0
        except StoreUnavailable:
            confirmed = False
        (self._missing.discard if confirmed else self._missing.add)(node)
        return confirmed

    async def look(self) -> None:
        """Reads INFO of every primary: its role, clock, memory, replicas, and the settings by which it keeps data.

        Raises:
            StoreUnavailable: a primary does not answer.
        """
        ask = pack("INFO", "server", "replication", "stats", "memory", "persistence")
        nodes, sent_s = self._nodes.all, monotonic()
        answers = await asyncio.gather(*(node.reads.call(ask) for node in nodes))
        now_s = monotonic()
        for node, answer in zip(nodes, answers, strict=True):
            info = parse_info(answer[0])
            if (micros := info.get("server_time_usec")) is not None:
                node.time.note(int(micros) // 1000, sent_s, now_s)
            node.memory = read_memory_report(info)
            node.loss_risk = find_loss_risk(read_facts(info), node.endpoint.name, self.durability)
            if self.counts:
                node.replication = observe(node.replication, read_report(info), now_s)
                node.acts_alone = acts_alone(node.replication, self.alone_after_s, now_s)
