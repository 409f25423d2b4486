"""Reads the store without proxies and product code: drivers of runs, due rows, leftovers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, cast

import redis

from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.store import keys

_LEASE_ROW: Final = "own:"
_RUN: Final = b"r:"
_TIMED: Final = re.compile(r"\{..\}:(?:idem|cb|hab|lim|c|duty|probe):?.*")


@dataclass(slots=True)
class StoreView:
    """One separate connection."""

    url: str
    _client: redis.Redis = field(init=False)

    def __post_init__(self) -> None:
        self._client = redis.Redis.from_url(self.url)  # pyright: ignore[reportUnknownMemberType]

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def list_instances(self) -> list[str]:
        """Every instance with a recent heartbeat."""
        (names,) = self._ask([("ZRANGE", keys.instances(), 0, -1)])
        return [name.decode() for name in cast("list[bytes]", names)]

    def list_driven(self, instances: Iterable[str]) -> dict[str, int]:
        """The tasks in the run sets of these instances, and the end of each lease, in ms."""
        wanted = [keys.own(shard, name) for name in instances for shard in ALL_SHARDS]
        found: dict[str, int] = {}
        for fields in self._ask([("HGETALL", key) for key in wanted]):
            pairs = cast("dict[bytes, bytes]", fields)
            tasks = (task.decode() for key, task in pairs.items() if key.startswith(_RUN))
            found |= dict.fromkeys(tasks, int(pairs.get(b"until", 0)))
        return found

    def list_rows(self) -> dict[str, int]:
        """Due rows without leases, each with its due time in ms of the store's clock."""
        found = self._ask(
            [("ZRANGE", keys.due(shard), 0, -1, "WITHSCORES") for shard in ALL_SHARDS]
        )
        rows: dict[str, int] = {}
        for pairs in cast("list[list[tuple[bytes, float]]]", found):
            for member, score in pairs:
                if not member.startswith(_LEASE_ROW.encode()):
                    rows[member.decode()] = int(float(score))
        return rows

    def read_time(self) -> int:
        """The store's clock, in ms."""
        [parts] = self._ask([("TIME",)])
        seconds, micros = cast("tuple[bytes, bytes]", parts)
        return int(seconds) * 1000 + int(micros) // 1000

    def hasten(self, row: str) -> None:
        """Makes a row due now, if it still exists."""
        shard = shard_of(row.split(":")[1])
        self._ask([("ZADD", keys.due(shard), "XX", 1, row)])

    def count_unstored(self, channel: str, kind: str) -> int:
        """Number of facts of one kind about a device's connections that are not in an event yet."""
        names = (f"n:{kind}", f"t:{kind}")
        [counts] = self._ask([("HMGET", keys.channel(shard_of(channel), channel), *names)])
        ever, stored = (int(one or 0) for one in cast("list[bytes | None]", counts))
        return ever - stored

    def find_leaks(self) -> list[str]:
        """Leftovers once everything has ended: due rows, runs in sets, keys without an expiry."""
        rows = self._ask([("ZRANGE", keys.due(shard), 0, -1) for shard in ALL_SHARDS])
        members = [row.decode() for found in rows for row in cast("list[bytes]", found)]
        leaks = [f"due row {row}" for row in members if not row.startswith(_LEASE_ROW)]
        (names,) = self._ask([("KEYS", "*")])
        known = [name.decode() for name in cast("list[bytes]", names)]
        lasting = self._ask([("PTTL", name) for name in known])
        for name, left in zip(known, lasting, strict=True):
            if left == -1 and (not keys.PERMANENT.fullmatch(name) or _TIMED.fullmatch(name)):
                leaks.append(f"key without an end {name}")
        sets = [name.rpartition(":")[2] for name in known if ":own:" in name]
        leaks += [f"run of {task} in a set" for task in self.list_driven(set(sets))]
        return leaks

    def _ask(self, commands: list[tuple[str | int, ...]]) -> list[object]:
        with self._client.pipeline(transaction=False) as pipeline:  # pyright: ignore[reportUnknownMemberType]
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # its types are partial
            return cast("list[object]", pipeline.execute())
