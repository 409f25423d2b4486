"""Measures a store: keys and bytes by purpose, and the age of the sessions.

The whole store is walked by SCAN while other processes use it. So the numbers describe a period of time: a key added or
removed meanwhile may be missing, and one may count twice while the hash table grows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.chunks import in_chunks
from passerelle.core.errors import StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, parse_facade, read_minted_ms, read_shard, shard_of
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.failures import retry
from passerelle.store.replies import as_int, as_scores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from passerelle.store.info import ServerFacts
    from passerelle.store.nodes import Node, Nodes

_SCAN_COUNT: Final = 500
_SESSIONS_AT_ONCE: Final = 100
_LEAST_MS: Final = 3_600_000
"""The growth of a younger store is calculated over an hour."""
DAY_MS: Final = 86_400_000
OTHER: Final = "other"
"""Keys in the same database that are not ours."""
_KIND_OF: Final = {prefix: kind for kind, prefixes in keys.KINDS.items() for prefix in prefixes}
_OF_SESSION: Final = frozenset({"e", "s", "ts", "open", "ack", "tg"})
"""Keys that are named by their session."""


@dataclass(slots=True)
class KeyUsage:
    """Number and memory of the keys of one kind."""

    keys: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Counts one more key."""
        self.keys += 1
        self.bytes += size


@frozen
class SessionAge:
    """A session with tasks: ``ended_ms`` is its last status change, None while something is open.

    ``bytes`` are those of its history, its records and its tasks, without its threads and approvals.
    """

    session: str
    bytes: int
    ended_ms: int | None


@dataclass(slots=True)
class Inventory:
    """The result of a walk. ``now_ms`` is a time of the store."""

    now_ms: int = 0
    primaries: list[tuple[str, ServerFacts]] = field(
        default_factory=list["tuple[str, ServerFacts]"]
    )
    kinds: dict[str, KeyUsage] = field(default_factory=lambda: defaultdict(KeyUsage))
    sessions: list[SessionAge] = field(default_factory=list[SessionAge])
    tasks_ms: list[int] = field(default_factory=list[int])
    """When each task was created."""

    @property
    def total(self) -> KeyUsage:
        """All keys of the gateway."""
        ours = [one for kind, one in self.kinds.items() if kind != OTHER]
        return KeyUsage(sum(one.keys for one in ours), sum(one.bytes for one in ours))

    @property
    def used_bytes(self) -> int:
        """Total memory of the engines, including their overhead."""
        return sum(facts.used_bytes for _, facts in self.primaries)

    def find_growth(self, days: int) -> int:
        """Bytes per day: the tasks of the last ``days`` days, or since the first, each with its share of all keys."""
        if not self.tasks_ms:
            return 0
        since_ms = max(self.now_ms - days * DAY_MS, min(self.tasks_ms))
        fresh = sum(made_ms >= since_ms for made_ms in self.tasks_ms)
        mean = self.total.bytes / len(self.tasks_ms)
        return round(mean * fresh * DAY_MS / max(self.now_ms - since_ms, _LEAST_MS))

    def find_ended(self, for_ms: int) -> KeyUsage:
        """Sessions without activity for ``for_ms``, and their approximate memory.

        Threads and approvals are counted by the share of the sessions.
        """
        before_ms = self.now_ms - for_ms
        ended = [
            one.bytes
            for one in self.sessions
            if one.ended_ms is not None and one.ended_ms < before_ms
        ]
        if not ended:
            return KeyUsage()
        shared = self.kinds["threads"].bytes + self.kinds["approvals"].bytes
        return KeyUsage(len(ended), sum(ended) + shared * len(ended) // len(self.sessions))


class RedisInventory:
    """Walks a store; reads only."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def measure(self) -> Inventory:
        """Measures everything that is stored, once. The caller adds the facts of the primaries.

        Raises:
            StoreUnavailable: a node does not answer, or does not allow MEMORY USAGE.
        """
        found, own, of_task = Inventory(), defaultdict[str, int](int), dict[str, int]()
        for node in self._nodes.all:
            async for name, size in self._measure_keys(node):
                prefix, rest = keys.read_parts(name)
                found.kinds[_KIND_OF.get(prefix, OTHER)].add(size)
                if prefix in _OF_SESSION and read_shard(rest) is not None:
                    own[rest] += size
                elif prefix == "t":
                    of_task[rest] = size
        found.tasks_ms = [read_minted_ms(task) for task in of_task]
        by_shard = defaultdict[Shard, list[str]](list)
        for session in own:
            by_shard[shard_of(session)].append(session)
        for shard, sessions in by_shard.items():
            for part in in_chunks(sessions, _SESSIONS_AT_ONCE):
                found.sessions += await self._find_ages(shard, part, own, of_task)
        return found

    async def _measure_keys(self, node: Node) -> AsyncIterator[tuple[str, int]]:
        cursor = b"0"
        while True:
            scan = pack("SCAN", cursor, "COUNT", _SCAN_COUNT)
            [reply] = await retry(partial(node.reads.call, scan))
            cursor, names = cast("tuple[bytes, list[bytes]]", reply)
            if names:
                asked = b"".join(pack("MEMORY", "USAGE", name) for name in names)
                sizes = await retry(partial(node.reads.call_each, asked, len(names)))
                for name, size in zip(names, sizes, strict=True):
                    match size:
                        case int():
                            yield name.decode(errors="replace"), size
                        case StoreUnavailable():
                            raise size
                        case _:
                            continue  # it is gone, or its slot moves to another node
            if cursor == b"0":
                return

    async def _find_ages(
        self, shard: Shard, sessions: Sequence[str], own: dict[str, int], of_task: dict[str, int]
    ) -> list[SessionAge]:
        """Sessions that have tasks; others are home sessions, which end with their owners."""
        asked = [
            command
            for session in sessions
            for command in (
                pack("ZRANGE", keys.session_tasks(shard, session), 0, -1, "WITHSCORES"),
                pack("ZCARD", keys.session_open(shard, session)),
            )
        ]
        replies = await self._nodes.query_all(shard, *asked)
        ages = list[SessionAge]()
        for session, listed_reply, still_open in zip(
            sessions, replies[::2], replies[1::2], strict=True
        ):
            if listed := as_scores(listed_reply):
                tasks = {parsed[0] for facade, _ in listed if (parsed := parse_facade(facade))}
                size = own[session] + sum(of_task.get(task, 0) for task in tasks)
                ended_ms = None if as_int(still_open) else max(at_ms for _, at_ms in listed)
                ages.append(SessionAge(session, size, ended_ms))
        return ages
