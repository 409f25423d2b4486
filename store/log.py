"""The event log: the one way in for facts, and every way to read them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from passerelle.core.batch import (
    Again,
    Appended,
    Conflict,
    Loaded,
    PackedBatch,
    StaleEpoch,
    Stamp,
)
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.packed_events import MOST_EVENTS, unpack_event, unpack_events
from passerelle.core.ports.log import Entry, Head, StreamKind, StreamRef
from passerelle.core.ports.projections import FeedRow, FeedTail, IndexRow
from passerelle.store import keys
from passerelle.store.append import pack_append, read_append, unpack_entities
from passerelle.store.connection import RespValue, pack
from passerelle.store.failures import Redirected, try_again
from passerelle.store.replies import as_bytes, as_hash, as_int, as_scores, as_sparse_list, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.batch import AppendResult, Batch, EntityRef
    from passerelle.core.ports.projections import RowPart
    from passerelle.store.nodes import Nodes

_MOST_ACKNOWLEDGED: Final = 512
_SEARCH_PAGES: Final = 8
_SEARCH_PAGE: Final = 256
_TAIL: Final = 32
"""Feed rows that are looked at behind an append: those of about a second."""
_OWN_FIELDS: Final = frozenset({"v", "s", "op"})
EntryRow: TypeAlias = "tuple[bytes, list[bytes]]"
"""Id and members of a stream entry, as the server says them."""
_BUMP_EPOCH: Final = Script("bump_epoch", as_int)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the store has acknowledged: the ``last`` event of an append with its chain, under an epoch of its shard.

    ``at_s`` is a time of the monotonic clock.
    """

    session: str
    last: int
    chain: str
    epoch: int
    at_s: float


@dataclass(slots=True)
class _AppendRetry:
    """Further tries of an append; ``unknown``: whether an unanswered try may have run."""

    nodes: Nodes
    shard: Shard
    call: bytes
    count: int
    unknown: bool = False

    async def go_on(
        self, failed: Redirected | StoreUnavailable, seen: int, began_s: float
    ) -> list[RespValue]:
        """After the first try, which began at a time of the monotonic clock and a generation of the nodes."""
        try:
            await self.nodes.recover(failed, seen)
            return await self._write()
        except StoreUnavailable as error:
            self.unknown = self.unknown or error.wrote == "unknown"
            return await try_again(self._write, error, began_s)

    async def _write(self) -> list[RespValue]:
        try:
            return await self.nodes.write_and_look(self.shard, self.call, self.count)
        except StoreUnavailable as error:
            self.unknown = self.unknown or error.wrote == "unknown"
            raise


class RedisFactReader:
    """``core.ports.log.FactReader`` over a server or cluster; ``ask`` is ``Nodes.query_all`` or its kin."""

    def __init__(self, ask: Callable[..., Awaitable[list[RespValue]]]) -> None:
        self._ask = ask

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        """Entities in the order asked for."""
        if not refs:
            return []
        by_shard: dict[Shard, list[EntityRef]] = {}
        for ref in dict.fromkeys(refs):
            by_shard.setdefault(ref.shard, []).append(ref)
        found: dict[EntityRef, Loaded] = {}

        async def read(shard: Shard, wanted: list[EntityRef]) -> None:
            commands = [pack("HGETALL", keys.entity(ref)) for ref in wanted]
            replies = await self._ask(shard, *commands)
            found.update(
                {ref: _loaded(ref, reply) for ref, reply in zip(wanted, replies, strict=True)}
            )

        if len(by_shard) == 1:
            await read(*by_shard.popitem())
        else:
            await asyncio.gather(*(read(shard, wanted) for shard, wanted in by_shard.items()))
        return [found[ref] for ref in refs]

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        """At most ``limit`` events with a sequence above ``after``, in order; none where there are no more."""
        if limit < 1:
            return []
        [reply] = await self._ask(stream.shard, _ask_page(stream, after, limit))
        page = read_entries(reply, stream, after, limit)
        if page:
            return page
        # There is nothing more, or what comes next lies further off: a stream begins where it was trimmed.
        [reply] = await self._ask(stream.shard, _ask_next(stream, after))
        return read_entries(reply, stream, after, limit)

    async def read_event(self, stream: StreamRef, sequence: int) -> Entry | None:
        """One event without the chain before it; None where it is not in the stream any more."""
        [reply] = await self._ask(stream.shard, _ask_page(stream, sequence - 1, 1))
        for row in as_entry_rows(reply):
            return _read_one(row, stream, sequence)
        return None


class RedisEventLog(RedisFactReader):
    """``core.ports.log.EventLog`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes.query_all)
        self._nodes = nodes
        self._epochs = [0] * len(ALL_SHARDS)
        self._acknowledged: dict[str, tuple[int, str, int, float]] = {}
        self._written_s = [-inf] * len(ALL_SHARDS)

    async def read_epochs(self) -> None:
        """Learns the epoch of every shard; done once at start."""

        async def read(shard: Shard) -> None:
            [epoch] = await self._nodes.read(shard, pack("HGET", keys.meta(shard), "epoch"))
            self._epochs[shard.number] = as_int(epoch)

        await asyncio.gather(*(read(shard) for shard in ALL_SHARDS))

    def shard_epoch(self, shard: Shard) -> int:
        """The epoch under which this process last saw the shard."""
        return self._epochs[shard.number]

    async def append(self, batch: Batch | PackedBatch) -> AppendResult:
        """Writes the batch whole, or nothing. An unknown outcome is tried again with the same operation.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when a try may have run and none was answered.
            TooLarge: more than 64 events or 256 KiB.
            ValueError: the batch names two shards, or nothing that tells a repeat from a second call.
        """
        if isinstance(batch, PackedBatch):
            packed, looks = batch, False
        else:
            packed, looks = pack_append(batch), batch.feed
        shard, call, unknown = packed.shard, packed.call, False
        if looks:
            call += _ask_tail(shard)
        nodes, began_s = self._nodes, monotonic()
        seen, node = nodes.generation, nodes.primaries[shard.number]
        try:
            replies = await node.writes.call(call, 1 + looks, linger_s=packed.within_s)
        except (Redirected, StoreUnavailable) as failed:
            attempts = _AppendRetry(nodes, shard, call, 1 + looks)
            replies = await attempts.go_on(failed, seen, began_s)
            unknown = attempts.unknown
        result = read_append(replies[0], packed)
        if isinstance(result, Appended):
            if nodes.generation == seen:
                node.time.note(result.now_ms, began_s, monotonic())
            if result.chain:
                self._keep(packed.session, result, self._epochs[shard.number], began_s)
                self._written_s[shard.number] = began_s
            return _look_behind(result, replies[1]) if looks else result
        if isinstance(result, StaleEpoch):
            self._epochs[shard.number] = result.epoch
        if unknown and isinstance(result, Conflict) and await self._has_events_of(packed):
            # One of these tries ran, and another call has written the entity since.
            return Again(None)
        return result

    def list_acknowledged(self, oldest_s: float) -> list[Acknowledged]:
        """The last append in each of the sessions that were written here since a time; older ones are forgotten."""
        kept = {name: one for name, one in self._acknowledged.items() if one[3] >= oldest_s}
        self._acknowledged = kept
        return [Acknowledged(name, *one) for name, one in kept.items()]

    def is_written(self, shard: Shard, since_s: float) -> bool:
        """Whether this process has appended to a stream of a shard since a time of the monotonic clock."""
        return self._written_s[shard.number] >= since_s

    def _keep(self, session: str, stored: Appended, epoch: int, at_s: float) -> None:
        """Runs once for each message, hence a tuple in a dictionary whose oldest rows go."""
        kept = self._acknowledged
        kept.pop(session, None)
        kept[session] = (stored.last, stored.chain, epoch, at_s)
        if len(kept) > _MOST_ACKNOWLEDGED:
            del kept[next(iter(kept))]

    def pack(self, batch: Batch) -> PackedBatch:
        """The batch as ``append`` sends it. Raises as ``append`` does of a batch that it does not take."""
        return pack_append(batch)

    def unpack(self, packed: PackedBatch, first: int) -> list[Loaded]:
        """What ``load`` reads of its entities once it is stored with its first event at ``first``."""
        return unpack_entities(packed, first)

    async def read_idempotency(self, shard: Shard, key: str) -> tuple[str, bytes] | None:
        """Digest and result of a key, while its row lives."""
        row = await self._nodes.query(shard, pack("GET", keys.idempotency(shard, key)), as_bytes)
        if row is None:
            return None
        digest, _, result = row.partition(b"\n")
        return digest.decode(), result

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head, or None when there is no such stream."""
        return await self._nodes.query(stream.shard, _ask_head(stream), _head)

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """Head, then page, in one round trip and in this order: what verifies a cursor (I8)."""
        said, page = await self._ask(
            stream.shard, _ask_head(stream), _ask_page(stream, after, limit)
        )
        head, entries = _head(said), read_entries(page, stream, after, limit)
        if not entries and head is not None and after < head.sequence:
            [page] = await self._ask(stream.shard, _ask_next(stream, after))
            entries = read_entries(page, stream, after, limit)
        return head, entries

    async def read_session_tasks(self, session: str) -> list[tuple[str, int]]:
        """Facade ids of a session with their last status time in ms, newest first."""
        shard = shard_of(session)
        command = pack("ZRANGE", keys.session_tasks(shard, session), 0, -1, "REV", "WITHSCORES")
        return await self._nodes.query(shard, command, as_scores)

    async def read_open(self, session: str) -> list[str]:
        """Ids of the open tasks and actions of a session."""
        shard = shard_of(session)
        command = pack("ZRANGE", keys.session_open(shard, session), 0, -1)
        return await self._nodes.query(shard, command, as_texts)

    async def bump_epoch(self, shard: Shard, expected: int) -> int:
        """Gives the shard a new epoch unless somebody did since ``expected`` held; returns the one that holds."""
        epoch = await self._nodes.run_once(
            _BUMP_EPOCH,
            shard,
            [keys.meta(shard), keys.shard_hints(shard)],
            {"expected": str(expected)},
        )
        self._epochs[shard.number] = epoch
        return epoch

    async def _has_events_of(self, batch: PackedBatch) -> bool:
        if not batch.first_event:
            return False
        stream = StreamRef(StreamKind.SESSION, batch.session)
        wanted = batch.first_event
        upper = "+"
        for _ in range(_SEARCH_PAGES):
            command = pack("XREVRANGE", keys.entries(stream), upper, "-", "COUNT", _SEARCH_PAGE)
            rows = await self._nodes.query(batch.shard, command, as_entry_rows)
            for row in rows:
                stored = _read_row(row, stream, 0, MOST_EVENTS, is_chained=False)
                if any(entry.event_id == wanted for entry in stored):
                    return True
            if len(rows) < _SEARCH_PAGE:
                return False
            upper = f"({rows[-1][0].decode()}"
        return False


def read_entries(reply: RespValue, stream: StreamRef, after: int, limit: int) -> list[Entry]:
    """Reads the events above a sequence, at most ``limit``, out of stream entries as XRANGE returns them."""
    entries = list[Entry]()
    for row in as_entry_rows(reply):
        entries += _read_row(row, stream, after, limit - len(entries))
        if len(entries) == limit:
            break
    return entries


def as_entry_rows(reply: RespValue) -> list[EntryRow]:
    """Ids and members, as XRANGE returns them."""
    return cast("list[EntryRow]", reply)


def read_feed_rows(reply: RespValue) -> list[FeedRow]:
    """Rows of a feed as XRANGE returns them."""
    return [_feed_row(*row) for row in cast("list[tuple[bytes, list[bytes]]]", reply)]


def _feed_row(identifier: bytes, flat: list[bytes]) -> FeedRow:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    # By their places: each task has a row.
    return FeedRow(
        identifier.decode(),
        fields[b"s"].decode(),
        int(fields[b"f"]),
        int(fields[b"t"]),
        int(fields[b"e"]),
        fields[b"l"] == b"1",
        tuple([_index_row(line) for line in fields[b"x"].decode().splitlines()]),
    )


def _index_row(line: str) -> IndexRow:
    owner, agent, facade, at_ms, part = line.split(" ")
    return IndexRow(owner, agent, facade, int(at_ms), cast("RowPart", part))


def _look_behind(stored: Appended, feed: RespValue) -> Appended:
    rows = tuple(reversed(read_feed_rows(feed)))
    return replace(stored, tail=FeedTail(rows, is_whole=len(rows) < _TAIL))


def _ask_tail(shard: Shard) -> bytes:
    return pack("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", _TAIL)


def _ask_head(stream: StreamRef) -> bytes:
    return pack("HMGET", keys.head(stream), "epoch", "seq", "chain", "first")


def _ask_page(stream: StreamRef, after: int, limit: int) -> bytes:
    """An entry has the events of one append, and its id is the sequence of the last of them."""
    upto = after + limit + MOST_EVENTS - 1
    return pack("XRANGE", keys.entries(stream), f"{after + 1}-0", f"{upto}-0", "COUNT", limit)


def _ask_next(stream: StreamRef, after: int) -> bytes:
    return pack("XRANGE", keys.entries(stream), f"{after + 1}-0", "+", "COUNT", 1)


def _head(reply: RespValue) -> Head | None:
    epoch, sequence, chain, first = as_sparse_list(reply)
    if epoch is None or chain is None:
        return None
    return Head(epoch.decode(), int(sequence or 0), chain.decode(), int(first or 1))


def _read_row(
    row: EntryRow, stream: StreamRef, after: int, limit: int, *, is_chained: bool = True
) -> list[Entry]:
    identifier, members = row
    last = int(identifier.partition(b"-")[0])
    if members[0] == b"i":
        return [_read_single(last, members)] if last > after else []
    _, previous, _, packed = members
    chain = previous.decode() if is_chained else ""
    try:
        return unpack_events(packed, stream.id, last, chain, after, limit)
    except ValueError:
        # Damaged: it continues no chain, so followers tell it as a gap and the verification names it.
        return [Entry(last, "", "", "", packed)] if last > after else []


def _read_one(row: EntryRow, stream: StreamRef, sequence: int) -> Entry | None:
    """The event at a sequence, without the chain before it."""
    identifier, members = row
    last = int(identifier.partition(b"-")[0])
    if members[0] == b"i":
        return _read_single(last, members) if last == sequence else None
    try:
        return unpack_event(members[3], stream.id, last, sequence)
    except ValueError:
        return Entry(last, "", "", "", members[3]) if last == sequence else None


def _read_single(sequence: int, members: list[bytes]) -> Entry:
    """An entry of one event with its whole envelope, as schemas up to 2 have it."""
    fields = dict(zip(members[::2], members[1::2], strict=True))
    frame = fields.get(b"w")
    facade = fields.get(b"t")
    offset, _, length = (frame or b"").partition(b",")
    return Entry(
        sequence=sequence,
        event_id=fields[b"i"].decode(),
        type=fields[b"k"].decode(),
        previous=fields[b"p"].decode(),
        data=fields[b"d"],
        frame=(int(offset), int(length)) if frame else None,
        facade=facade.decode() if facade else None,
    )


def _loaded(ref: EntityRef, reply: RespValue) -> Loaded:
    fields = as_hash(reply)
    stamp = Stamp(int(fields.get("v", b"0")), fields.get("op", b"").decode())
    rest = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    return Loaded(ref, stamp, fields.get("s", b""), rest)
