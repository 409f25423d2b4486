"""Which server is the primary of each shard: a single server, a cluster with its slot table, or Sentinels.

The setting ``redis_url`` names one address, or several of one store separated by commas: servers of one failover
group, nodes of one cluster, or Sentinels, ``redis+sentinel://user:password@host:26379,host:26379/service/0``.

The node that answered last is asked first, and discovered nodes are remembered: the configured ones may all be gone
later. A node that does not answer delays the others by a fraction of a second.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.exceptions import RedisError

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.protocol.concurrency import cancel_all
from passerelle.store.connection import Endpoint, ask, connect, make_connection, read_url
from passerelle.store.failures import NO_PRIMARY, Redirected, explain_break, retry
from passerelle.store.info import PRIMARY, is_cluster, parse_info, read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.store.connection import Argument, RespValue
    from passerelle.store.info import ServerFacts

Answer = TypeVar("Answer")
SlotRange: TypeAlias = "list[int | list[bytes | int | None]]"
"""First slot, last slot, then the nodes: host, port, id."""

SLOTS: Final = 16_384
_ANSWER_S: Final = 2.0
_PATIENCE_S: Final = 0.2
"""How long to wait for one node before the next one is asked in parallel."""
_REMEMBERED: Final = 256
"""Nodes remembered besides the seeds."""


class Topology(Protocol):
    """Determines the primary of each shard."""

    @property
    def moves(self) -> bool:
        """Whether another server may take over a shard."""
        ...

    async def read_table(self) -> list[Endpoint]:
        """The primary of each shard, by its number.

        Raises:
            StoreUnavailable: no server can name it, or a shard has none.
        """
        ...


async def find_topology(seeds: Seeds) -> Topology:
    """Asks the seeds for their topology.

    Raises:
        StoreUnavailable: none of them answers.
    """
    if seeds.service is not None:
        return Sentinels(seeds.endpoints, seeds.service)
    # A slow TLS server or a busy machine is not unavailable because one connection took a second.
    clustered = await retry(lambda: ask_any(seeds.endpoints, _ask_whether_clustered))
    return Cluster(seeds.endpoints) if clustered else Servers(seeds.endpoints)


class Servers:
    """One server, or several of which one is the primary."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self._seeds = seeds

    @property
    def moves(self) -> bool:
        """True if there is more than one."""
        return len(self._seeds) > 1

    async def read_table(self) -> list[Endpoint]:
        """The only server, unasked; else the primary with the most replicas.

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
        self._known.remember(asked, [node for row in ranges for node in name_nodes(row, asked)])
        return build_table(cast("RespValue", ranges), asked)


class Sentinels:
    """A primary watched by Sentinels, which promote a replica when it dies."""

    def __init__(self, seeds: Sequence[Endpoint], service: SentinelService) -> None:
        self.moves = True
        self._known = _Known(seeds)
        self._service = service
        self._named: Endpoint | None = None

    async def read_table(self) -> list[Endpoint]:
        """The primary that a Sentinel names, if that server confirms it.

        Raises:
            StoreUnavailable: no Sentinel answers or knows the service, or there is no primary at the moment.
        """
        asked, primary = await ask_any(self._known.in_order(), self._ask_and_verify)
        self._named = primary
        self._known.remember(asked, await self._list_others(asked))
        return [primary] * len(ALL_SHARDS)

    async def has_moved(self) -> bool:
        """Whether a Sentinel names another primary: the former one may not know yet, and its writes get lost."""
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
        """Verifies the named server: a Sentinel unaware of a failover names one that is gone, or a replica now."""
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
    """Nodes to ask: the last that answered, others discovered recently, then the seeds."""

    def __init__(self, seeds: Iterable[Endpoint]) -> None:
        self._seeds = {seed.name: seed for seed in seeds}
        self._discovered: dict[str, Endpoint] = {}

    def in_order(self) -> list[Endpoint]:
        return list({**self._discovered, **self._seeds}.values())

    def remember(self, answered: Endpoint, others: Sequence[Endpoint]) -> None:
        self._discovered = {one.name: one for one in (answered, *others[:_REMEMBERED])}


def slot_of(shard: Shard) -> int:
    """The cluster slot of a shard's hash tag."""
    return binascii.crc_hqx(shard.tag.encode(), 0) % SLOTS


def build_table(reply: RespValue, asked: Endpoint) -> list[Endpoint]:
    """The primary of each shard from a reply to CLUSTER SLOTS.

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
    """The first answer: each node is asked when the one before has failed, or is silent for a moment.

    Raises:
        StoreUnavailable: none of them answers; the failure of the last one.
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
        await cancel_all(running)


async def ask_once(endpoint: Endpoint, *arguments: Argument) -> RespValue:
    """Sends one command over a connection of its own.

    Raises:
        StoreUnavailable: it could not be sent, or was refused.
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


SETTING: Final = "redis_url"
_NEXT: Final = re.compile(r",\s*(?=[a-z+]+://)")
_SENTINEL: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_SENTINEL_PORT: Final = 26_379
_SENTINEL_FIELDS: Final = ("sentinel_username", "sentinel_password")


@frozen
class SentinelService:
    """A primary that Sentinels name: its service name, and its connection settings."""

    name: str
    primary: Endpoint


@frozen
class Seeds:
    """Addresses to ask for the topology; with a service they are those of Sentinels."""

    endpoints: tuple[Endpoint, ...]
    service: SentinelService | None = None


def read_seeds(text: str) -> Seeds:
    """The seeds from one address, or several separated by commas.

    Raises:
        ConfigInvalid: one cannot be used, or they are of different kinds.
    """
    urls = [url.strip() for url in _NEXT.split(text)]
    of_sentinels = [url.partition("://")[0] in _SENTINEL for url in urls]
    if not any(of_sentinels):
        return Seeds(tuple([read_url(url) for url in urls]))
    if not all(of_sentinels):
        raise ConfigInvalid(SETTING, "Sentinels and servers cannot be named together")
    found = [_read_sentinels(url) for url in urls]
    services = [seeds.service for seeds in found]
    if any(not _is_same(services[0], service) for service in services):
        raise ConfigInvalid(SETTING, "the Sentinels should name one service, with one credential")
    endpoints = tuple([endpoint for seeds in found for endpoint in seeds.endpoints])
    return Seeds(endpoints, services[0])


def _read_sentinels(url: str) -> Seeds:
    parts = urlsplit(url)
    scheme = _SENTINEL[parts.scheme]
    credential, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts:
        form = f"{parts.scheme}://host:{_SENTINEL_PORT}/service"
        raise ConfigInvalid(SETTING, f"Sentinels are named as {form}, with the name of the primary")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    login = {field.partition("_")[2]: query.pop(field, None) for field in _SENTINEL_FIELDS}
    rest = f"?{urlencode(query)}" if query else ""
    names = [_add_port(host) for host in hosts.split(",")]
    primary = read_url(f"{scheme}://{credential}{at}{names[0]}/{database or '0'}{rest}")
    endpoints = [read_url(f"{scheme}://{name}{rest}") for name in names]
    known = {field: value for field, value in login.items() if value}
    return Seeds(
        tuple([Endpoint({**one.kwargs, **known}, one.connection_class) for one in endpoints]),
        SentinelService(service, primary),
    )


def _add_port(host: str) -> str:
    has_port = re.search(r":\d+$", host) is not None and not host.endswith("]")
    return host if has_port else f"{host}:{_SENTINEL_PORT}"


def _is_same(one: SentinelService | None, other: SentinelService | None) -> bool:
    """Whether both name the same primary service, at any address."""
    if one is None or other is None:
        return one is other
    settings = [
        {
            name: value
            for name, value in service.primary.kwargs.items()
            if name not in {"host", "port"}
        }
        for service in (one, other)
    ]
    return one.name == other.name and settings[0] == settings[1]
