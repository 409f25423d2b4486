"""Who serves the shards: a server, a cluster that says it in one table, or the primary that Sentinels name.

Whoever has answered is asked first the next time, and a node that was heard of is remembered: the seeds may all be
gone by then. One that does not answer costs the others a fraction of a second.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, cast

from redis.exceptions import RedisError

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store.connection import Endpoint, ask, connect, make_connection
from passerelle.store.failures import NO_PRIMARY, Redirected, explain_break
from passerelle.store.info import PRIMARY, is_cluster, parse_info, read_facts
from passerelle.store.retry import retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.store.connection import Argument, Reply
    from passerelle.store.info import ServerFacts
    from passerelle.store.seeds import Seeds, SentinelService

Answer = TypeVar("Answer")
SlotRange: TypeAlias = "list[int | list[bytes | int | None]]"
"""First slot, last slot, then the nodes: host, port, id."""

SLOTS: Final = 16_384
_ANSWER_S: Final = 2.0
_PATIENCE_S: Final = 0.2
"""How long one node is waited for before the next one is asked beside it."""
_REMEMBERED: Final = 256
"""Nodes that are remembered beside the seeds."""


class Topology(Protocol):
    """Says which server is the primary of each shard."""

    @property
    def moves(self) -> bool:
        """Whether another server may come to serve a shard."""
        ...

    async def read_table(self) -> list[Endpoint]:
        """The primary of each shard, by its number.

        Raises:
            StoreUnavailable: nobody can say, or a shard has none.
        """
        ...


async def find_topology(seeds: Seeds) -> Topology:
    """Asks the seeds what they are.

    Raises:
        StoreUnavailable: none of them answers.
    """
    if seeds.service is not None:
        return Sentinels(seeds.endpoints, seeds.service)
    # A server behind TLS, or on a machine with much to do, is not away because one connection took a second.
    clustered = await retry(lambda: ask_any(seeds.endpoints, _ask_whether_clustered))
    return Cluster(seeds.endpoints) if clustered else Servers(seeds.endpoints)


class Servers:
    """One server, or several of which one is the primary."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self._seeds = seeds

    @property
    def moves(self) -> bool:
        """Where there is more than one."""
        return len(self._seeds) > 1

    async def read_table(self) -> list[Endpoint]:
        """The one server, unasked; else the primary that the most replicas follow.

        Raises:
            StoreUnavailable: none of several is a primary.
        """
        if not self.moves:
            return [self._seeds[0]] * len(ALL_SHARDS)
        asked = await asyncio.gather(*map(_read_facts, self._seeds), return_exceptions=True)
        primaries: list[tuple[int, Endpoint]] = []
        for seed, facts in zip(self._seeds, asked, strict=True):
            if isinstance(facts, BaseException):
                if not isinstance(facts, StoreUnavailable):
                    raise facts
            elif facts.role == PRIMARY:
                primaries.append((facts.replicas, seed))
        if not primaries:
            failed = next((str(one) for one in asked if isinstance(one, StoreUnavailable)), "")
            reason = f"{NO_PRIMARY}: {failed or 'every server is a replica'}"
            raise StoreUnavailable(reason, "no")
        return [max(primaries, key=lambda one: one[0])[1]] * len(ALL_SHARDS)


class Cluster:
    """Slots over many nodes; each of them has the whole table."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self.moves = True
        self._known = _Known(seeds)

    async def read_table(self) -> list[Endpoint]:
        """The table of the first node that has one.

        Raises:
            StoreUnavailable: no node answers, or some slot has no primary.
        """
        asked, ranges = await ask_any(self._known.in_order(), _ask_slots)
        self._known.hear(asked, [node for row in ranges for node in name_nodes(row, asked)])
        return build_table(cast("Reply", ranges), asked)


class Sentinels:
    """A primary that Sentinels watch, and the one that they make of a replica when it dies."""

    def __init__(self, seeds: Sequence[Endpoint], service: SentinelService) -> None:
        self.moves = True
        self._known = _Known(seeds)
        self._service = service
        self._named: Endpoint | None = None

    async def read_table(self) -> list[Endpoint]:
        """The primary that a Sentinel names, if it says itself that it is one.

        Raises:
            StoreUnavailable: no Sentinel answers or knows the service, or there is no primary just now.
        """
        asked, primary = await ask_any(self._known.in_order(), self._ask_and_verify)
        self._named = primary
        self._known.hear(asked, await self._list_others(asked))
        return [primary] * len(ALL_SHARDS)

    async def has_moved(self) -> bool:
        """Whether a Sentinel names another primary: the former one may not know yet, and takes writes that get lost."""
        try:
            _, primary = await ask_any(self._known.in_order(), self._ask)
        except StoreUnavailable:
            return False
        return self._named is None or primary.name != self._named.name

    async def _ask(self, sentinel: Endpoint) -> tuple[Endpoint, Endpoint]:
        name = self._service.name
        reply = await ask_once(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        if not isinstance(reply, list):
            raise StoreUnavailable(f"{NO_PRIMARY}: {sentinel.name} knows no {name!r}", "no")
        host, port = (part.decode() for part in cast("list[bytes]", reply))
        return sentinel, self._service.primary.at(host, int(port))

    async def _ask_and_verify(self, sentinel: Endpoint) -> tuple[Endpoint, Endpoint]:
        """One that has heard of no switch yet names a server that is gone, or a replica by now."""
        sentinel, primary = await self._ask(sentinel)
        facts = await _read_facts(primary)
        if facts.role != PRIMARY:
            raise StoreUnavailable(f"{NO_PRIMARY}: {primary.name} is a replica now", "no")
        return sentinel, primary

    async def _list_others(self, sentinel: Endpoint) -> list[Endpoint]:
        try:
            reply = await ask_once(sentinel, "SENTINEL", "SENTINELS", self._service.name)
        except StoreUnavailable:
            return []
        others: list[Endpoint] = []
        for flat in cast("list[list[bytes]]", reply):
            said = dict(zip(flat[::2], flat[1::2], strict=True))
            others.append(sentinel.at(said[b"ip"].decode(), int(said[b"port"])))
        return others


class _Known:
    """Nodes that can be asked: the one that answered last, others that were heard of lately, then the seeds."""

    def __init__(self, seeds: Iterable[Endpoint]) -> None:
        self._seeds = {seed.name: seed for seed in seeds}
        self._heard: dict[str, Endpoint] = {}

    def in_order(self) -> list[Endpoint]:
        return list({**self._heard, **self._seeds}.values())

    def hear(self, answered: Endpoint, others: Sequence[Endpoint]) -> None:
        self._heard = {one.name: one for one in (answered, *others[:_REMEMBERED])}


def slot_of(shard: Shard) -> int:
    """The cluster slot of a shard's hash tag."""
    return binascii.crc_hqx(shard.tag.encode(), 0) % SLOTS


def build_table(reply: Reply, asked: Endpoint) -> list[Endpoint]:
    """The primary of each shard out of an answer to CLUSTER SLOTS.

    Raises:
        StoreUnavailable: a slot that a shard needs has no primary.
    """
    ranges = cast("list[SlotRange]", reply)
    table: list[Endpoint] = []
    for shard in ALL_SHARDS:
        slot = slot_of(shard)
        row = next((row for row in ranges if _covers(row, slot)), None)
        if row is None:
            raise StoreUnavailable(f"slot {slot} has no primary", "no")
        table.append(name_nodes(row, asked)[0])
    return table


def name_nodes(row: SlotRange, asked: Endpoint) -> list[Endpoint]:
    """The nodes that serve some slots, the primary first; one without a name is the node that was asked."""
    own_host = str(asked.kwargs.get("host", "localhost"))
    nodes: list[Endpoint] = []
    for host, port, *_ in cast("list[list[bytes | int | None]]", row[2:]):
        name = host.decode() if isinstance(host, bytes) and host not in {b"", b"?"} else own_host
        nodes.append(asked.at(name, int(port or 0)))
    return nodes


def _covers(row: SlotRange, slot: int) -> bool:
    first, last = cast("list[int]", row[:2])
    return first <= slot <= last


async def ask_any(
    endpoints: Sequence[Endpoint], ask_one: Callable[[Endpoint], Awaitable[Answer]]
) -> Answer:
    """The first answer: each is asked when the one before has failed, or has been silent for a moment.

    Raises:
        StoreUnavailable: none of them has an answer; the failure of the last one.
    """
    waiting = list(reversed(endpoints))
    running: set[asyncio.Task[Answer]] = set()
    failure = StoreUnavailable("no address to ask", "no")
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(ask_one(waiting.pop())))
            pause_s = _PATIENCE_S if waiting else None
            done, running = await asyncio.wait(
                running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    return task.result()
                except StoreUnavailable as error:
                    failure = error
        raise failure
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def ask_once(endpoint: Endpoint, *arguments: Argument) -> Reply:
    """One command over a connection of its own.

    Raises:
        StoreUnavailable: it could not be asked, or refused.
    """
    wire = make_connection(endpoint)
    try:
        await connect(wire)
        async with asyncio.timeout(_ANSWER_S):
            return await ask(wire, *arguments)
    except (RedisError, OSError, TimeoutError) as error:
        raise explain_break(error, sent=False) from error
    except Redirected as error:
        raise StoreUnavailable(str(error), "no") from error
    finally:
        await wire.disconnect()


async def _ask_whether_clustered(endpoint: Endpoint) -> bool:
    return is_cluster(parse_info(await ask_once(endpoint, "INFO", "cluster")))


async def _ask_slots(endpoint: Endpoint) -> tuple[Endpoint, list[SlotRange]]:
    return endpoint, cast("list[SlotRange]", await ask_once(endpoint, "CLUSTER", "SLOTS"))


async def _read_facts(endpoint: Endpoint) -> ServerFacts:
    return read_facts(parse_info(await ask_once(endpoint, "INFO")))
