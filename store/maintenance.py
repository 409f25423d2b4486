"""Whole-store reads and repairs outside of requests: keys found by SCAN, due rows, derived sets.

Each repair is one repeatable command. The caller reads the records again after its writes, because a gateway may have
written in the meantime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from passerelle.core.batch import EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.ports.projections import PARTS
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.failures import retry
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_hash, as_int, as_ms, as_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from passerelle.core.ids import Shard
    from passerelle.core.payloads.approval import ClosingState
    from passerelle.core.ports.projections import IndexPart, IndexRow
    from passerelle.store.nodes import Node, Nodes

_SCAN_COUNT: Final = 1_000
_CHANCE_BITS: Final = 64


@frozen
class DriverSet:
    """The set of what an instance drives in a shard, as stored with its lease."""

    number: int
    """Its incarnation."""
    gone: bool
    tasks: frozenset[str]
    seen: int
    """The shard epoch since which the instance has compared what it drives with this set."""
    is_living: bool
    """Whether its lease is valid: the duty owner empties a set whose lease has expired."""


class RedisInspection:
    """Reads of a store outside of requests."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def list_entities(self) -> list[EntityRef]:
        """Every entity of the store, unordered. An entity created meanwhile may be missing.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        found: set[EntityRef] = set()
        async for name in self._list_keys():
            if (ref := keys.read_entity(name)) is not None:
                found.add(ref)
        return list(found)

    async def draw_sessions(
        self, shards: Collection[Shard], count: int, draw: Callable[[int], int]
    ) -> list[str]:
        """``count`` uniformly drawn sessions of these shards, or all of them; ``draw(bits)`` is the random source.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        wanted, seen, drawn = {shard.number for shard in shards}, 0, list[str]()
        for node in self._nodes.all:
            async for names in scan_keys(node, keys.EVERY_SESSION):
                for name in names:
                    if int(name[1:3], 16) not in wanted:
                        continue
                    seen += 1
                    place = draw(_CHANCE_BITS) % seen
                    if len(drawn) < count:
                        drawn.append(name.decode())
                    elif place < count:
                        drawn[place] = name.decode()
        return [name.rpartition(":")[2] for name in dict.fromkeys(drawn)]

    async def list_views(self) -> tuple[set[keys.OwnerList], set[str]]:
        """Every task list of an owner, and every owner with pending approvals.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        lists: set[keys.OwnerList] = set()
        owners: set[str] = set()
        async for name in self._list_keys():
            if (one := keys.read_owner_list(name)) is not None:
                lists.add(one)
            elif (owner := keys.read_inbox_owner(name)) is not None:
                owners.add(owner)
        return lists, owners

    async def list_open_sessions(self) -> set[str]:
        """Every session with an open task or approval.

        Raises:
            StoreUnavailable: a node does not answer.
        """
        named = [keys.read_open_session(name) async for name in self._list_keys()]
        return {session for session in named if session is not None}

    async def _list_keys(self) -> AsyncIterator[str]:
        """The name of every key, some of them twice."""
        for node in self._nodes.all:
            cursor = b"0"
            while True:
                cursor, names = await self._scan(node, cursor)
                for name in names:
                    yield name.decode(errors="replace")
                if cursor == b"0":
                    break

    async def read_due(self, shard: Shard) -> list[str]:
        """Members of the due set of a shard, the next one first."""
        command = pack("ZRANGE", keys.due(shard), 0, -1)
        return await self._nodes.query(shard, command, as_texts)

    async def read_driver_set(self, shard: Shard, instance: str) -> DriverSet | None:
        """What an instance drives in a shard; None if it has no lease, not even an expired one."""
        commands = (pack("HGETALL", keys.own(shard, instance)), pack("TIME"))
        reply, time = await self._nodes.query_all(shard, *commands)
        fields = as_hash(reply)
        if "inc" not in fields:
            return None
        runs = [value.decode() for name, value in fields.items() if name.startswith("r:")]
        seen = int(fields.get("seen", b"0"))
        is_gone, is_living = "gone" in fields, int(fields.get("until", b"0")) > as_ms(time)
        return DriverSet(
            int(fields["inc"]), is_gone, frozenset(runs), seen, is_living and not is_gone
        )

    async def read_epoch(self, shard: Shard) -> int:
        """The stored epoch of a shard."""
        return await self._nodes.query(shard, pack("HGET", keys.meta(shard), "epoch"), as_int)

    @staticmethod
    async def _scan(node: Node, cursor: bytes) -> tuple[bytes, list[bytes]]:
        packed = pack("SCAN", cursor, "COUNT", _SCAN_COUNT)
        [reply] = await retry(lambda: node.reads.call(packed))
        following, names = cast("tuple[bytes, list[bytes]]", reply)
        return following, names


class RedisViews:
    """Repairs of derived sets. All raise StoreUnavailable if the write fails."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open_in_session(self, session: str, names: Iterable[str]) -> None:
        """Adds tasks and approvals to the open set of their session."""
        shard = shard_of(session)
        for name in names:
            key = keys.session_open(shard, session)
            await self._nodes.update(shard, pack("ZADD", key, "NX", 0, name))

    async def close_in_session(self, session: str, names: Iterable[str]) -> None:
        """Removes them from the open set."""
        shard = shard_of(session)
        for name in names:
            await self._nodes.update(shard, pack("ZREM", keys.session_open(shard, session), name))

    async def list_in_session(self, session: str, facade: str, at_ms: int) -> None:
        """Adds a task to the list of its session, by the time of its status."""
        shard = shard_of(session)
        key = keys.session_tasks(shard, session)
        await self._nodes.update(shard, pack("ZADD", key, "GT", at_ms, facade))

    async def unlist_in_session(self, session: str, facade: str) -> None:
        """Removes a task from the list of its session."""
        shard = shard_of(session)
        await self._nodes.update(shard, pack("ZREM", keys.session_tasks(shard, session), facade))

    async def put_row(self, row: IndexRow) -> None:
        """Adds a task to one part of its owner's list and removes it from all others; ``gone``: from all."""
        shard = shard_of(row.owner)
        for part in PARTS:
            key = keys.owner_index(shard, row.owner, row.agent, part)
            if part == row.part:
                await self._nodes.update(shard, pack("ZADD", key, "GT", row.at_ms, row.facade))
            else:
                await self._nodes.update(shard, pack("ZREM", key, row.facade))

    async def drop_row(self, place_of: keys.OwnerList, facade: str) -> None:
        """Removes a task from a list."""
        shard = shard_of(place_of.owner)
        await self._nodes.update(shard, pack("ZREM", keys.owner_index(shard, *place_of), facade))

    async def drop_question(self, owner: str, action: str) -> None:
        """Removes an approval from a person's pending ones."""
        shard = shard_of(owner)
        await self._nodes.update(shard, pack("HDEL", keys.inbox_open(shard, owner), action))
        await self._nodes.update(shard, pack("ZREM", keys.inbox_order(shard, owner), action))

    async def list_closed(self, owner: str, state: ClosingState, action: str, at_ms: int) -> None:
        """Adds an approval to a person's closed ones with this state."""
        shard = shard_of(owner)
        key = keys.inbox_closed(shard, owner, state)
        await self._nodes.update(shard, pack("ZADD", key, at_ms, action))

    async def find_parts(self, owner: str, agent: str, facade: str) -> frozenset[IndexPart]:
        """The parts of an owner's list that contain a task."""
        shard = shard_of(owner)
        asked = [
            pack("ZSCORE", keys.owner_index(shard, owner, agent, part), facade) for part in PARTS
        ]
        scores = await self._nodes.query_all(shard, *asked)
        return frozenset(part for part, at in zip(PARTS, scores, strict=True) if at is not None)
