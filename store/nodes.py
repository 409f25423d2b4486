"""Which primary serves a shard, and the connections to it.

A cluster is one table of 64 rows, read from CLUSTER SLOTS and read again when a node says MOVED; a
standalone server is one node. Plain connections only: a cluster client hides retries.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Final, Self, cast

from redis.exceptions import RedisError

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store.batcher import Batcher
from passerelle.store.connection import Endpoint, ask, connect, make_connection
from passerelle.store.failures import Redirected, explain_break
from passerelle.store.info import is_cluster, parse_info
from passerelle.store.retry import retry, try_again
from passerelle.store.scripts import read_all_scripts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from passerelle.store.connection import Argument, Reply

SLOTS: Final = 16_384
_REDIRECT_PAUSE_S: Final = 0.02
_REDIRECT_TRIES: Final = 50
_WAIT_MS: Final = 100


def slot_of(shard: Shard) -> int:
    """The cluster slot of a shard's hash tag."""
    return binascii.crc_hqx(shard.tag.encode(), 0) % SLOTS


class Node:
    """One primary. Leases, writes, reads and acts have connections of their own, so that none delays the others.

    However much waits to be written, a lease is extended in time, and one that has run out is seen.
    """

    def __init__(self, endpoint: Endpoint, batches: Counter[int]) -> None:
        scripts = read_all_scripts()
        self.endpoint = endpoint
        self.writes = Batcher(endpoint, scripts, connections=2, batches=batches)
        self.reads = Batcher(endpoint, scripts, batches=batches)
        self.leases = Batcher(endpoint, scripts, batches=batches)
        self.acts = Batcher(endpoint, scripts, wait_ms=_WAIT_MS, batches=batches)
        self.has_replicas = False
        """What was seen since the start: an isolated primary that has lost its replicas still waits for them."""

    async def close(self) -> None:
        """Waits for what is under way, then closes all connections."""
        lanes = (self.leases, self.writes, self.reads, self.acts)
        await asyncio.gather(*(lane.close() for lane in lanes))


class Nodes:
    """The table. ``open`` reads it once; calls keep it fresh."""

    def __init__(
        self,
        seed: Endpoint,
        *,
        clustered: bool,
        batches: Counter[int] | None = None,
    ) -> None:
        self.clustered = clustered
        self._batches = Counter[int]() if batches is None else batches
        self._seed = seed
        self._by_name: dict[str, Node] = {}
        self.primaries: list[Node] = []
        """The primary that is thought to serve each shard, by its number."""
        self._refresh_lock = asyncio.Lock()
        self.generation = 0
        """How often they were read."""

    @classmethod
    async def open(cls, seed: Endpoint, batches: Counter[int] | None = None) -> Self:
        """Asks the server what it is. ``batches`` counts exchanges by how many calls they carry.

        Raises:
            StoreUnavailable: it cannot be reached, or the cluster does not serve all slots.
        """
        # A server behind TLS, or on a machine with much to do, is not away because one connection took a second.
        info = parse_info(await retry(lambda: ask_once(seed, "INFO", "cluster")))
        nodes = cls(seed, clustered=is_cluster(info), batches=batches)
        await nodes.refresh(0)
        return nodes

    @property
    def all(self) -> Sequence[Node]:
        """Every primary that serves a shard."""
        return tuple(dict.fromkeys(self.primaries))

    def node(self, shard: Shard) -> Node:
        """The primary that is thought to serve a shard."""
        return self.primaries[shard.number]

    async def write(self, shard: Shard, packed: bytes) -> Reply:
        """One command that changes something."""
        return (await self._route(shard, "writes", packed, 1))[0]

    def write_now(self, shard: Shard, packed: bytes) -> Coroutine[None, None, Reply]:
        """The same for who has gathered what goes together: it waits for no others, and is tried again like ``retry``.

        It has begun before it is awaited, which is to be done in any case.
        """
        seen, began_s = self.generation, monotonic()
        first = self.node(shard).writes.call(packed, alone=True)
        return self._follow(shard, packed, first, seen, began_s)

    async def _follow(
        self,
        shard: Shard,
        packed: bytes,
        first: Awaitable[list[Reply]],
        seen: int,
        began_s: float,
    ) -> Reply:
        try:
            return (await first)[0]
        except Redirected:
            await self._refresh_quietly(seen)
            return await retry(lambda: self.write(shard, packed))
        except StoreUnavailable as error:
            if self.clustered:
                await self._refresh_quietly(seen)
            return await try_again(lambda: self.write(shard, packed), error, began_s)

    def write_and_look(
        self, shard: Shard, packed: bytes, count: int
    ) -> Coroutine[None, None, list[Reply]]:
        """One command that changes something, and commands that look at what it left, in one round trip."""
        return self._route(shard, "writes", packed, count)

    async def recover(self, failed: Redirected | StoreUnavailable, seen: int) -> None:
        """Finds out who serves a shard where a call failed that was made at generation ``seen``, to be made again then.

        Raises:
            StoreUnavailable: it failed for another reason, that one; or nobody can say who serves it.
        """
        if isinstance(failed, Redirected):
            await asyncio.sleep(_REDIRECT_PAUSE_S)
            await self.refresh(seen)
            return
        if self.clustered:
            await self._refresh_quietly(seen)
        raise failed

    def lease(
        self, shard: Shard, packed: bytes, count: int = 1
    ) -> Coroutine[None, None, list[Reply]]:
        """Commands about leases and what is due, which wait for nothing else."""
        return self._route(shard, "leases", packed, count)

    async def lease_each(
        self, commands: Sequence[tuple[Shard, bytes]]
    ) -> list[Reply | StoreUnavailable]:
        """One command about a lease in each of many shards, in one exchange with each node; failures are values."""
        parts: dict[Node, list[tuple[Shard, bytes]]] = {}
        for shard, packed in commands:
            parts.setdefault(self.node(shard), []).append((shard, packed))
        told = await asyncio.gather(*(self._lease_at(node, part) for node, part in parts.items()))
        answers = {shard: answer for answers in told for shard, answer in answers.items()}
        return [answers[shard] for shard, _ in commands]

    async def _lease_at(
        self, node: Node, part: Sequence[tuple[Shard, bytes]]
    ) -> dict[Shard, Reply | StoreUnavailable]:
        try:
            answers = await node.leases.call_each(b"".join(one for _, one in part), len(part))
        except StoreUnavailable as error:
            if self.clustered:
                await self._refresh_quietly(self.generation)
            return dict.fromkeys((shard for shard, _ in part), error)
        told: dict[Shard, Reply | StoreUnavailable] = {}
        for (shard, packed), answer in zip(part, answers, strict=True):
            if isinstance(answer, Redirected):
                told[shard] = await self._lease_elsewhere(shard, packed)
            else:
                told[shard] = answer
        return told

    async def _lease_elsewhere(self, shard: Shard, packed: bytes) -> Reply | StoreUnavailable:
        try:
            return (await self.lease(shard, packed))[0]
        except StoreUnavailable as error:
            return error

    async def act(self, shard: Shard, packed: bytes) -> tuple[Reply, int]:
        """One command whose effect has to be on a replica: its reply, and on how many it is."""
        reply, confirmed = await self._route(shard, "acts", packed, 1)
        return reply, cast("int", confirmed)

    async def write_before_act(self, shard: Shard, packed: bytes) -> tuple[Reply, bool]:
        """One command before an act that cannot be undone, and whether a replica has it, where there are replicas."""
        if not self.node(shard).has_replicas:
            return await self.write(shard, packed), True
        reply, confirmed = await self.act(shard, packed)
        return reply, confirmed > 0

    def read(self, shard: Shard, *commands: bytes) -> Coroutine[None, None, list[Reply]]:
        """Commands that change nothing, in order, in one round trip."""
        return self._route(shard, "reads", b"".join(commands), len(commands))

    async def refresh(self, seen: int) -> None:
        """Reads the table again, unless somebody has since the caller looked (``seen`` = generation).

        Raises:
            StoreUnavailable: no node answers, or some slot has no primary.
        """
        async with self._refresh_lock:
            if self.generation != seen:
                return
            table = await self._read_table() if self.clustered else [self._seed] * len(ALL_SHARDS)
            self.primaries = [self._keep(endpoint) for endpoint in table]
            self.generation += 1

    async def refresh_now(self) -> None:
        """Reads the table again.

        Raises:
            StoreUnavailable: no node answers, or some slot has no primary.
        """
        await self.refresh(self.generation)

    async def close(self) -> None:
        """Closes every connection."""
        await asyncio.gather(*(node.close() for node in self._by_name.values()))

    async def _route(self, shard: Shard, lane: str, packed: bytes, count: int) -> list[Reply]:
        for _ in range(_REDIRECT_TRIES):
            seen = self.generation
            batcher: Batcher = getattr(self.primaries[shard.number], lane)
            try:
                return await batcher.call(packed, count, alone=lane == "reads")
            except (Redirected, StoreUnavailable) as failed:
                await self.recover(failed, seen)
        reason = "the shard is moving"
        raise StoreUnavailable(reason, "no")

    async def _refresh_quietly(self, seen: int) -> None:
        try:
            await self.refresh(seen)
        except StoreUnavailable:
            # The caller is told of its own failure, which is the better one.
            return

    async def _read_table(self) -> list[Endpoint]:
        known = [node.endpoint for node in self._by_name.values()]
        failure = StoreUnavailable("no node of the cluster answers", "no")
        for endpoint in (*known, self._seed):
            try:
                return build_table(await ask_once(endpoint, "CLUSTER", "SLOTS"), endpoint)
            except StoreUnavailable as error:
                failure = error
        raise failure

    def _keep(self, endpoint: Endpoint) -> Node:
        node = self._by_name.get(endpoint.name)
        if node is None:
            node = self._by_name[endpoint.name] = Node(endpoint, self._batches)
        return node


def build_table(reply: Reply, asked: Endpoint) -> list[Endpoint]:
    """The primary of each shard out of an answer to CLUSTER SLOTS.

    Raises:
        StoreUnavailable: a slot that a shard needs has no primary.
    """
    ranges = cast("list[tuple[int, int, list[bytes | int | None]]]", reply)
    table: list[Endpoint] = []
    for shard in ALL_SHARDS:
        slot = slot_of(shard)
        primary = next((row[2] for row in ranges if row[0] <= slot <= row[1]), None)
        if primary is None:
            raise StoreUnavailable(f"slot {slot} has no primary", "no")
        host, port = primary[0], primary[1]
        own_host = str(asked.kwargs.get("host", "localhost"))
        name = host.decode() if isinstance(host, bytes) and host not in {b"", b"?"} else own_host
        table.append(asked.at(name, int(port or 0)))
    return table


async def ask_once(endpoint: Endpoint, *arguments: Argument) -> Reply:
    """One command over a connection of its own.

    Raises:
        StoreUnavailable: it could not be asked, or refused.
    """
    wire = make_connection(endpoint)
    try:
        await connect(wire)
        async with asyncio.timeout(2.0):
            return await ask(wire, *arguments)
    except (RedisError, OSError, TimeoutError) as error:
        raise explain_break(error, sent=False) from error
    except Redirected as error:
        raise StoreUnavailable(str(error), "no") from error
    finally:
        await wire.disconnect()
