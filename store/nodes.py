"""Which primary serves a shard, and the connections to it.

One table of 64 rows, from any topology (``store.topology``); read again when a node replies MOVED or that it is a
replica, and when one does not answer. Plain connections only: a cluster client hides retries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from passerelle.core.errors import StoreUnavailable
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.store.batcher import BATCH_LIMIT, Batcher
from passerelle.store.clock import ServerTime
from passerelle.store.failures import READ_ONLY, Redirected, retry, try_again
from passerelle.store.fullness import MemoryReport
from passerelle.store.replication import ReplicationView, inherit
from passerelle.store.topology import Sentinels, find_topology

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from passerelle.core.ids import Shard
    from passerelle.store.connection import Endpoint, RespValue
    from passerelle.store.lua_script import Control, Lane, LoadedScript
    from passerelle.store.topology import Seeds, Topology

Result = TypeVar("Result")

FORGET_S: Final = 30.0
"""How long the connections to a node that serves no shard are kept: it may serve again."""
_LOOK_S: Final = 1.0
_REDIRECT_PAUSE_S: Final = 0.02
_REDIRECT_TRIES: Final = 50
_WAIT_MS: Final = 100


class Node:
    """One primary. Leases, writes, reads and acts have connections of their own, so that none delays the others.

    However many writes are queued, a lease is extended in time, and an expired one is noticed.
    """

    def __init__(self, endpoint: Endpoint, scripts: Sequence[bytes], batches: Counter[int]) -> None:
        self.endpoint = endpoint
        self.writes = Batcher(endpoint, scripts, connections=2, batches=batches)
        self.reads = Batcher(endpoint, scripts, batches=batches)
        self.leases = Batcher(endpoint, scripts, batches=batches)
        self.acts = Batcher(endpoint, scripts, wait_ms=_WAIT_MS, batches=batches)
        self.background = asyncio.Semaphore(BATCH_LIMIT)
        """Limits background calls to one batch, so that a caller's call is queued behind at most that."""
        self.time = ServerTime()
        self.replication = ReplicationView()
        self.memory = MemoryReport()
        self.loss_risk: str | None = None
        """Which of its settings can lose acknowledged writes; None: none."""
        self.acts_alone = False
        """It was promoted and has no replica: acts do not wait for one."""

    @property
    def awaits_replicas(self) -> bool:
        """Whether acts wait for a replica; at an isolated primary that has lost its replicas they still do."""
        return self.replication.has_replicas and not self.acts_alone

    async def close(self) -> None:
        """Waits for running calls, then closes all connections."""
        lanes = (self.leases, self.writes, self.reads, self.acts)
        await asyncio.gather(*(lane.close() for lane in lanes))


class Nodes:
    """The table. ``open`` reads it once; calls keep it current."""

    def __init__(
        self, topology: Topology, scripts: Sequence[bytes], batches: Counter[int] | None = None
    ) -> None:
        self.moves = topology.moves
        """Whether another node may take over a shard."""
        self._topology = topology
        self._scripts = scripts
        self._batches = Counter[int]() if batches is None else batches
        self._by_name: dict[str, Node] = {}
        self.primaries: list[Node] = []
        """The assumed primary of each shard, by its number."""
        self._reading: asyncio.Task[None] | None = None
        self.generation = 0
        """How often the table was read."""
        self._leaving: dict[Node, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._on_move: list[Callable[[], None]] = []
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, seeds: Seeds, scripts: Sequence[bytes], batches: Counter[int] | None = None
    ) -> Self:
        """Asks the servers for their topology.

        ``scripts`` are loaded into a server that does not know one. ``batches`` counts exchanges by how many calls they
        contain.

        Raises:
            StoreUnavailable: none can be reached, none is a primary, or the cluster does not serve all slots.
        """
        topology = await find_topology(seeds)
        nodes = cls(topology, scripts, batches)
        await retry(lambda: nodes.refresh(0))
        if isinstance(topology, Sentinels):
            nodes._watcher = asyncio.create_task(nodes._watch(topology), name="primaries")
        return nodes

    def on_move(self, callback: Callable[[], None]) -> None:
        """Registers a callback for when a shard has a new primary."""
        self._on_move.append(callback)

    @property
    def all(self) -> Sequence[Node]:
        """Every primary that serves a shard."""
        return tuple(dict.fromkeys(self.primaries))

    @property
    def opened(self) -> int:
        """How often a lease connection was opened: behind a reopened connection there may be another server."""
        return sum(node.leases.opened for node in self._by_name.values())

    def node(self, shard: Shard) -> Node:
        """The assumed primary of a shard."""
        return self.primaries[shard.number]

    async def query(
        self, shard: Shard, command: bytes, decode: Callable[[RespValue], Result]
    ) -> Result:
        """The decoded reply of one command that changes nothing.

        Raises:
            StoreUnavailable: every try within two seconds failed; the other retried calls raise the same.
        """
        [reply] = await self.query_all(shard, command)
        return decode(reply)

    async def query_all(self, shard: Shard, *commands: bytes) -> list[RespValue]:
        """The same for several commands, in order, in one round trip."""
        return await retry(lambda: self.read(shard, *commands))

    async def update(self, shard: Shard, command: bytes, lane: Lane = "writes") -> RespValue:
        """One command that changes something and may run twice."""
        [reply] = await retry(lambda: self._route(shard, lane, command, 1))
        return reply

    async def run(
        self,
        script: LoadedScript[Result],
        shard: Shard,
        names: Sequence[str],
        control: Control,
        values: Sequence[bytes] = (),
    ) -> Result:
        """The decoded reply of a script that may run twice, over these keys."""
        packed = script.file.pack_call(names, control, values)
        [reply] = await retry(lambda: self._route(shard, script.lane, packed, 1))
        return script.decode(reply)

    async def run_once(
        self, script: LoadedScript[Result], shard: Shard, names: Sequence[str], control: Control
    ) -> Result:
        """The same for a script that may not: after a lost reply the caller has to find out the outcome.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when it may have run.
        """
        packed = script.file.pack_call(names, control)
        [reply] = await self._route(shard, script.lane, packed, 1)
        return script.decode(reply)

    async def run_replicated(
        self, script: LoadedScript[Result], shard: Shard, names: Sequence[str], control: Control
    ) -> tuple[Result, bool]:
        """``run_once`` before an act that cannot be undone, and whether a replica has it (True without replicas)."""
        if not self.node(shard).awaits_replicas:
            return await self.run_once(script, shard, names, control), True
        packed = script.file.pack_call(names, control)
        reply, confirmed = await self.wait_for_replica(shard, packed)
        return script.decode(reply), confirmed > 0

    def run_unbatched(
        self,
        script: LoadedScript[Result],
        shard: Shard,
        names: Sequence[str],
        control: Control,
        values: Sequence[bytes] = (),
    ) -> Coroutine[None, None, Result]:
        """``run`` for a caller that has coalesced calls already: it does not linger for others.

        It is sent before it is awaited; the caller must await it in any case.
        """
        packed = script.file.pack_call(names, control, values)
        seen, began_s = self.generation, monotonic()
        first = self.node(shard).writes.call(packed, no_linger=True)
        return self._decode(script, self._follow(shard, packed, first, seen, began_s))

    async def _decode(self, script: LoadedScript[Result], asked: Awaitable[RespValue]) -> Result:
        return script.decode(await asked)

    async def write(self, shard: Shard, packed: bytes) -> RespValue:
        """One command that changes something, sent once."""
        return (await self._route(shard, "writes", packed, 1))[0]

    async def _follow(
        self,
        shard: Shard,
        packed: bytes,
        first: Awaitable[list[RespValue]],
        seen: int,
        began_s: float,
    ) -> RespValue:
        try:
            return (await first)[0]
        except Redirected:
            await self._refresh_quietly(seen)
            return await self.update(shard, packed)
        except StoreUnavailable as error:
            if self.moves:
                await self._refresh_quietly(seen)
            return await try_again(lambda: self.write(shard, packed), error, began_s)

    def write_and_read(
        self, shard: Shard, packed: bytes, count: int
    ) -> Coroutine[None, None, list[RespValue]]:
        """One command that changes something, followed by commands that read the result, in one round trip."""
        return self._route(shard, "writes", packed, count)

    async def recover(self, failed: Redirected | StoreUnavailable, seen: int) -> None:
        """Refreshes the table after a call failed that was made at generation ``seen``, so that it can be repeated.

        Raises:
            StoreUnavailable: it failed for another reason (that failure); or no server can name the primary.
        """
        if isinstance(failed, Redirected) or (self.moves and failed.reason == READ_ONLY):
            await asyncio.sleep(_REDIRECT_PAUSE_S)
            await self.refresh(seen)
            return
        if self.moves:
            await self._refresh_quietly(seen)
        raise failed

    def lease(
        self, shard: Shard, packed: bytes, count: int = 1
    ) -> Coroutine[None, None, list[RespValue]]:
        """Commands about leases and due rows, which wait for no other calls."""
        return self._route(shard, "leases", packed, count)

    async def lease_each(
        self, commands: Sequence[tuple[Shard, bytes]]
    ) -> list[RespValue | StoreUnavailable]:
        """One lease command in each of many shards, in one exchange with each node; failures are returned as values."""
        parts: dict[Node, list[tuple[Shard, bytes]]] = {}
        for shard, packed in commands:
            parts.setdefault(self.node(shard), []).append((shard, packed))
        replies = await asyncio.gather(
            *(self._lease_at(node, part) for node, part in parts.items())
        )
        answers = {shard: answer for answers in replies for shard, answer in answers.items()}
        return [answers[shard] for shard, _ in commands]

    async def _lease_at(
        self, node: Node, part: Sequence[tuple[Shard, bytes]]
    ) -> dict[Shard, RespValue | StoreUnavailable]:
        try:
            answers = await node.leases.call_each(b"".join(one for _, one in part), len(part))
        except StoreUnavailable as error:
            if self.moves:
                await self._refresh_quietly(self.generation)
            return dict.fromkeys((shard for shard, _ in part), error)
        replies: dict[Shard, RespValue | StoreUnavailable] = {}
        for (shard, packed), answer in zip(part, answers, strict=True):
            if isinstance(answer, Redirected):
                replies[shard] = await self._lease_elsewhere(shard, packed)
            else:
                replies[shard] = answer
        return replies

    async def _lease_elsewhere(self, shard: Shard, packed: bytes) -> RespValue | StoreUnavailable:
        try:
            return (await self.lease(shard, packed))[0]
        except StoreUnavailable as error:
            return error

    async def wait_for_replica(self, shard: Shard, packed: bytes) -> tuple[RespValue, int]:
        """One command that a replica has to confirm: its reply, and the number of replicas that confirmed."""
        reply, confirmed = await self._route(shard, "acts", packed, 1)
        return reply, cast("int", confirmed)

    def read(self, shard: Shard, *commands: bytes) -> Coroutine[None, None, list[RespValue]]:
        """Commands that change nothing, in order, in one round trip, sent once."""
        return self._route(shard, "reads", b"".join(commands), len(commands))

    async def query_in_background(self, shard: Shard, *commands: bytes) -> list[RespValue]:
        """``query_all`` for background work: at most one batch of it runs at each primary."""
        return await retry(lambda: self._read_in_background(shard, *commands))

    async def query_each_in_background(
        self, asked: Sequence[tuple[Shard, bytes]]
    ) -> list[RespValue]:
        """The same for one command in each of many shards, in one exchange with each primary."""
        return await retry(lambda: self._read_each(asked))

    async def update_in_background(self, shard: Shard, command: bytes) -> RespValue:
        """``update`` for background work."""
        return await retry(lambda: self._write_in_background(shard, command))

    async def _read_in_background(self, shard: Shard, *commands: bytes) -> list[RespValue]:
        async with self.node(shard).background:
            return await self.read(shard, *commands)

    async def _read_each(self, asked: Sequence[tuple[Shard, bytes]]) -> list[RespValue]:
        for _ in range(_REDIRECT_TRIES):
            seen = self.generation
            places: dict[Node, list[int]] = {}
            for place, (shard, _) in enumerate(asked):
                places.setdefault(self.node(shard), []).append(place)
            parts = [[asked[place][1] for place in own] for own in places.values()]
            try:
                replies = await asyncio.gather(*map(_read_part, places, parts))
            except (Redirected, StoreUnavailable) as failed:
                await self.recover(failed, seen)
            else:
                if len(replies) == 1:
                    return replies[0]
                found = zip(chain(*places.values()), chain(*replies), strict=True)
                return [reply for _, reply in sorted(found, key=itemgetter(0))]
        reason = "the shard is moving"
        raise StoreUnavailable(reason, "no")

    async def _write_in_background(self, shard: Shard, packed: bytes) -> RespValue:
        async with self.node(shard).background:
            return await self.write(shard, packed)

    async def refresh(self, seen: int) -> None:
        """Reads the table again, unless that was done since the caller read generation ``seen``.

        Raises:
            StoreUnavailable: no node answers, or some slot has no primary.
        """
        if self.generation != seen:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_table())
            self._reading.add_done_callback(_retrieve_failure)
        # One read for all failed calls: in an outage it takes a while and fails, too.
        await asyncio.shield(self._reading)

    async def _read_table(self) -> None:
        table = await self._topology.read_table()
        before, self.primaries = self.primaries, [self._keep(endpoint) for endpoint in table]
        self.generation += 1
        for served, serves in zip(before, self.primaries, strict=False):
            if serves not in before and not serves.replication.is_inherited:
                serves.replication = inherit(served.replication)
                serves.time = ServerTime(served.time.ahead_ms)
                serves.acts_alone = False
        if before != self.primaries:
            self._schedule_forgetting()
            for callback in self._on_move:
                callback()

    async def refresh_now(self) -> None:
        """Reads the table again.

        Raises:
            StoreUnavailable: no node answers, or some slot has no primary.
        """
        await self.refresh(self.generation)

    async def close(self) -> None:
        """Closes every connection."""
        for timer in self._leaving.values():
            timer.cancel()
        await cancel_all(task for task in (self._watcher, self._reading) if task is not None)
        await asyncio.gather(*(node.close() for node in self._by_name.values()), *self._ends)

    async def _route(self, shard: Shard, lane: Lane, packed: bytes, count: int) -> list[RespValue]:
        for _ in range(_REDIRECT_TRIES):
            seen = self.generation
            batcher: Batcher = getattr(self.primaries[shard.number], lane)
            try:
                return await batcher.call(packed, count, no_linger=lane == "reads")
            except (Redirected, StoreUnavailable) as failed:
                await self.recover(failed, seen)
        reason = "the shard is moving"
        raise StoreUnavailable(reason, "no")

    async def _refresh_quietly(self, seen: int) -> None:
        try:
            await self.refresh(seen)
        except StoreUnavailable:
            # The caller raises its own failure, which is more specific.
            return

    async def _watch(self, sentinels: Sentinels) -> None:
        """Polls the Sentinels: an isolated former primary still accepts writes, and they are lost."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with suppress(StoreUnavailable):
                if await sentinels.has_moved():
                    await self.refresh_now()

    def _schedule_forgetting(self) -> None:
        """Schedules nodes that serve no shard for removal; those that serve again are kept."""
        serving = set(self.primaries)
        for node in self._by_name.values():
            if node in serving:
                timer = self._leaving.pop(node, None)
                if timer is not None:
                    timer.cancel()
            elif node not in self._leaving:
                loop = asyncio.get_running_loop()
                self._leaving[node] = loop.call_later(FORGET_S, self._forget, node)

    def _forget(self, node: Node) -> None:
        del self._leaving[node], self._by_name[node.endpoint.name]
        keep_until_done(asyncio.create_task(node.close()), self._ends)

    def _keep(self, endpoint: Endpoint) -> Node:
        node = self._by_name.get(endpoint.name)
        if node is None:
            node = self._by_name[endpoint.name] = Node(endpoint, self._scripts, self._batches)
        return node


async def _read_part(node: Node, commands: Sequence[bytes]) -> list[RespValue]:
    async with node.background:
        return await node.reads.call(b"".join(commands), len(commands), no_linger=True)


def _retrieve_failure(read: asyncio.Task[None]) -> None:
    """Retrieves the exception: callers that waited have it, and there may be none."""
    if not read.cancelled():
        read.exception()
