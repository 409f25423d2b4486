"""The event log: the only write path for facts, and all reads of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.batch import (
    ABSENT,
    Again,
    Appended,
    Conflict,
    EntityKind,
    EntityRef,
    Loaded,
    PackedBatch,
    StaleEpoch,
    Stamp,
)
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.packed_events import MOST_EVENTS
from passerelle.core.ports.log import Head, StreamKind, StreamRef
from passerelle.core.ports.projections import FeedRow, FeedTail, IndexRow
from passerelle.core.session.archived import ArchiveRef
from passerelle.core.wire.record import change
from passerelle.store import keys
from passerelle.store.acknowledged import Acknowledged, find_unproven
from passerelle.store.append import (
    IDEMPOTENCY,
    SessionArchived,
    pack_append,
    read_append,
    unpack_entities,
)
from passerelle.store.archive.frame import ARCHIVED_KINDS
from passerelle.store.archive.gone_sessions import was_forgotten
from passerelle.store.archive.restoring import restore_session
from passerelle.store.connection import RespValue, pack
from passerelle.store.failures import Redirected, try_again
from passerelle.store.replies import as_bytes, as_hash, as_int, as_scores, as_sparse_list, as_texts
from passerelle.store.scripts import Script
from passerelle.store.stream_entries import (
    as_entry_rows,
    read_entries,
    read_row,
    read_row_frame,
    read_rows,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.batch import AppendResult, Batch
    from passerelle.core.ports.log import Entry
    from passerelle.core.ports.projections import RowPart
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.reader import Archive
    from passerelle.store.nodes import Nodes

_MOST_ACKNOWLEDGED: Final = 512
_SEARCH_PAGES: Final = 8
_SEARCH_PAGE: Final = 256
_TAIL: Final = 8
"""Feed rows returned with an append: those after the relay's mark in a quiet second."""
_OWN_FIELDS: Final = frozenset({"v", "s", "op"})
_HEAD_FIELDS: Final = ("epoch", "seq", "chain", "first")
_BUMP_EPOCH: Final = Script("bump_epoch", as_int)


@dataclass(slots=True)
class _AppendRetry:
    """Further tries of an append; ``unknown``: whether an unanswered try may have run."""

    nodes: Nodes
    shard: Shard
    call: bytes
    count: int
    unknown: bool = False

    async def retry(
        self, failed: Redirected | StoreUnavailable, seen: int, began_s: float
    ) -> list[RespValue]:
        """Retries after the first try, begun at ``began_s`` (monotonic clock) and generation ``seen`` of the nodes."""
        try:
            await self.nodes.recover(failed, seen)
            return await self._write()
        except StoreUnavailable as error:
            self.unknown = self.unknown or error.wrote == "unknown"
            return await try_again(self._write, error, began_s)

    async def _write(self) -> list[RespValue]:
        try:
            return await self.nodes.write_and_read(self.shard, self.call, self.count)
        except StoreUnavailable as error:
            self.unknown = self.unknown or error.wrote == "unknown"
            raise


class RedisFactReader:
    """``core.ports.log.FactReader`` over a server or cluster; ``ask`` is ``Nodes.query_all`` or a variant.

    What is not in the engine is read from the archive, transparently.
    """

    def __init__(self, ask: Callable[..., Awaitable[list[RespValue]]], archive: Archive) -> None:
        self._ask = ask
        self._archive = archive

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        """Entities in the order of ``refs``."""
        if not refs:
            return []
        by_shard: dict[Shard, list[EntityRef]] = {}
        for ref in dict.fromkeys(refs):
            by_shard.setdefault(ref.shard, []).append(ref)
        found: dict[EntityRef, Loaded] = {}

        async def read(shard: Shard, wanted: list[EntityRef]) -> None:
            commands = [pack("HGETALL", keys.entity(ref)) for ref in wanted]
            replies = await self._ask(shard, *commands)
            missing = list[EntityRef]()
            for ref, reply in zip(wanted, replies, strict=True):
                one = found[ref] = _loaded(ref, reply)
                if one.stamp == ABSENT and ref.kind in ARCHIVED_KINDS:
                    missing.append(ref)
            if missing:
                found.update(await self._load_archived(shard, missing))

        if len(by_shard) == 1:
            await read(*by_shard.popitem())
        else:
            await asyncio.gather(*(read(shard, wanted) for shard, wanted in by_shard.items()))
        return [found[ref] for ref in refs]

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        """At most ``limit`` events with a sequence above ``after``, in order; empty at the end."""
        if limit < 1:
            return []
        [reply] = await self._ask(stream.shard, _pack_page_query(stream, after, limit))
        page = read_entries(reply, stream, after, limit)
        if page:
            return page
        # The end is reached, or the next event is further off: a stream begins where it was trimmed.
        archived, reply = await self._look_up(stream, _pack_next_query(stream, after))
        if archived is not None:
            return read_rows(archived.entries, stream, after, limit)
        return read_entries(reply, stream, after, limit)

    async def read_frame(self, stream: StreamRef, sequence: int) -> bytes:
        """The A2A frame of one event; empty if it has none, or is no longer in the stream."""
        [reply] = await self._ask(stream.shard, _pack_page_query(stream, sequence - 1, 1))
        rows = as_entry_rows(reply)
        if not rows:
            archived, reply = await self._look_up(stream, _pack_page_query(stream, sequence - 1, 1))
            rows = as_entry_rows(reply) if archived is None else archived.entries
        for row in rows:
            if int(row[0].partition(b"-")[0]) >= sequence:
                return read_row_frame(row, stream, sequence)
        return b""

    async def _load_archived(
        self, shard: Shard, refs: Sequence[EntityRef]
    ) -> dict[EntityRef, Loaded]:
        """Entities that are archived, or were restored since they were missing in the engine."""
        asked = [
            command
            for ref in refs
            for command in (
                self._archive.ask_row(shard, ref.id),
                pack("HGETALL", keys.entity(ref)),
            )
        ]
        replies = await self._ask(shard, *asked)

        async def read(ref: EntityRef, row: RespValue, reply: RespValue) -> Loaded:
            frame = await self._archive.read(shard, ref.id, row)
            if frame is None:
                return _loaded(ref, reply)
            return _loaded_from(frame, ref)

        rows = zip(refs, replies[::2], replies[1::2], strict=True)
        loaded = await asyncio.gather(*(read(*row) for row in rows))
        return {one.ref: one for one in loaded}

    async def _look_up(
        self, stream: StreamRef, command: bytes
    ) -> tuple[SessionFrame | None, RespValue]:
        """The session of a stream if it is archived; else the engine's reply to ``command``, read in the same call."""
        if stream.kind in keys.OF_OWNERS:
            [reply] = await self._ask(stream.shard, command)
            return None, reply
        row, reply = await self._ask(
            stream.shard, self._archive.ask_row(stream.shard, stream.id), command
        )
        return await self._archive.read(stream.shard, stream.id, row), reply


class RedisEventLog(RedisFactReader):
    """``core.ports.log.EventLog`` over a server or cluster."""

    def __init__(self, nodes: Nodes, archive: Archive) -> None:
        super().__init__(nodes.query_all, archive)
        self._nodes = nodes
        self._epochs = [0] * len(ALL_SHARDS)
        self._acknowledged: dict[str, tuple[int, str, int, float]] = {}
        self._left: dict[str, tuple[int, str, bytes]] = {}
        self._written_s = [-inf] * len(ALL_SHARDS)

    async def read_epochs(self) -> None:
        """Reads the epoch of every shard, once at start."""

        async def read(shard: Shard) -> None:
            [epoch] = await self._nodes.read(shard, pack("HGET", keys.meta(shard), "epoch"))
            self._epochs[shard.number] = as_int(epoch)

        await asyncio.gather(*(read(shard) for shard in ALL_SHARDS))

    def shard_epoch(self, shard: Shard) -> int:
        """The epoch under which this process last saw the shard."""
        return self._epochs[shard.number]

    async def append(self, batch: Batch | PackedBatch) -> AppendResult:
        """Writes the batch completely, or nothing. An unknown outcome is retried with the same operation.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when a try may have run and none was answered.
            TooLarge: more than 64 events or 256 KiB.
            ValueError: the batch names two shards, or nothing by which a repeat can be recognized.
        """
        if isinstance(batch, PackedBatch):
            packed, looks = batch, False
        else:
            packed, looks = pack_append(batch), batch.feed
        shard, call, unknown = packed.shard, packed.call, False
        if looks:
            call += _pack_tail_query(shard)
        nodes, began_s = self._nodes, monotonic()
        seen, node = nodes.generation, nodes.primaries[shard.number]
        try:
            replies = await node.writes.call(call, 1 + looks, linger_s=packed.within_s)
        except (Redirected, StoreUnavailable) as failed:
            attempts = _AppendRetry(nodes, shard, call, 1 + looks)
            replies = await attempts.retry(failed, seen, began_s)
            unknown = attempts.unknown
        result = read_append(replies[0], packed)
        if isinstance(result, Appended):
            if nodes.generation == seen:
                node.time.note(result.now_ms, began_s, monotonic())
            if result.chain:
                self._keep(packed.session, result, self._epochs[shard.number], began_s)
                self._written_s[shard.number] = began_s
            return _attach_feed_tail(result, replies[1]) if looks else result
        return await self._settle(result, batch, packed, unknown=unknown)

    async def _settle(
        self,
        result: AppendResult | SessionArchived,
        batch: Batch | PackedBatch,
        packed: PackedBatch,
        *,
        unknown: bool,
    ) -> AppendResult:
        """The outcome of an append that was not stored; an archived session is restored and the append repeated."""
        for name in _list_missing(result, packed):
            if await self.restore(packed.shard, name):
                return await self.append(batch)
        if isinstance(result, SessionArchived):
            # Another call has restored it in the meantime.
            return await self.append(batch)
        if isinstance(result, StaleEpoch):
            self._epochs[packed.shard.number] = result.epoch
        if unknown and isinstance(result, Conflict) and await self._has_events_of(packed):
            # One of these tries ran, and another call has written the entity since.
            return Again(None)
        return result

    async def restore(self, shard: Shard, name: str) -> bool:
        """Restores the session of an id from the archive; returns whether it was there.

        Raises:
            StoreUnavailable: it cannot be read, or the engine does not take it.
        """
        return await restore_session(self._nodes, self._archive, shard, name)

    async def was_forgotten(self, session: str) -> bool:
        """Whether a session was forgotten recently. Raises StoreUnavailable."""
        return await was_forgotten(self._nodes, shard_of(session), session)

    def list_acknowledged(self, oldest_s: float) -> list[Acknowledged]:
        """The last append to each session written here since a time; older ones are dropped."""
        kept = {name: one for name, one in self._acknowledged.items() if one[3] >= oldest_s}
        self._acknowledged = kept
        self._left = {name: one for name, one in self._left.items() if name in kept}
        found = list[Acknowledged]()
        for name, one in kept.items():
            last, chain, row = self._left.get(name, (0, "", None))
            found.append(Acknowledged(name, *one, row if (last, chain) == one[:2] else None))
        return found

    async def find_unproven(self, found: Sequence[Acknowledged]) -> list[Acknowledged]:
        """Those that have to be verified by reading the stream. Raises StoreUnavailable."""
        return await find_unproven(self._nodes, found)

    def note_left(self, session: str, last: int, chain: str, row: bytes) -> None:
        """Records that a session was archived with this last event and archive row."""
        if session in self._acknowledged:
            self._left[session] = last, chain, row

    def is_written(self, shard: Shard, since_s: float) -> bool:
        """Whether this process has appended to a stream of a shard since a time of the monotonic clock."""
        return self._written_s[shard.number] >= since_s

    def _keep(self, session: str, stored: Appended, epoch: int, at_s: float) -> None:
        """Runs once for each message, hence a plain tuple in a dictionary that drops its oldest entries."""
        kept = self._acknowledged
        kept.pop(session, None)
        kept[session] = (stored.last, stored.chain, epoch, at_s)
        if len(kept) > _MOST_ACKNOWLEDGED:
            del kept[next(iter(kept))]

    def pack(self, batch: Batch) -> PackedBatch:
        """The batch as ``append`` sends it. Raises as ``append`` does for an invalid batch."""
        return pack_append(batch)

    def unpack(self, packed: PackedBatch, first: int) -> list[Loaded]:
        """What ``load`` reads of its entities once it is stored with its first event at ``first``."""
        return unpack_entities(packed, first)

    async def read_idempotency(self, shard: Shard, key: str) -> tuple[str, bytes] | None:
        """Digest and result of a key, while its row exists."""
        row = await self._nodes.query(shard, pack("GET", keys.idempotency(shard, key)), as_bytes)
        if row is None:
            return None
        digest, _, result = row.partition(b"\n")
        return digest.decode(), result

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head, or None if there is no such stream."""
        [said] = await self._ask(stream.shard, _pack_head_query(stream))
        if (head := _head(said)) is not None:
            return head
        archived, said = await self._look_up(stream, _pack_head_query(stream))
        return _head(said) if archived is None else _head_of(archived)

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """The head, then a page, in one round trip and in this order: what verifies a cursor (I8)."""
        said, page = await self._ask(
            stream.shard, _pack_head_query(stream), _pack_page_query(stream, after, limit)
        )
        head, entries = _head(said), read_entries(page, stream, after, limit)
        if head is None:
            archived, said = await self._look_up(stream, _pack_head_query(stream))
            if archived is not None:
                return _head_of(archived), read_rows(archived.entries, stream, after, limit)
            head = _head(said)
            # It was restored in the meantime, and the page was read before that.
            return (
                (None, []) if head is None else (head, await self.read_page(stream, after, limit))
            )
        if not entries and after < head.sequence:
            [page] = await self._ask(stream.shard, _pack_next_query(stream, after))
            entries = read_entries(page, stream, after, limit)
        return head, entries

    async def read_session_tasks(self, session: str) -> list[tuple[str, int]]:
        """Facade ids of a session with their last status time in ms, newest first."""
        shard = shard_of(session)
        command = pack("ZRANGE", keys.session_tasks(shard, session), 0, -1, "REV", "WITHSCORES")
        if tasks := await self._nodes.query(shard, command, as_scores):
            return tasks
        stream = StreamRef(StreamKind.SESSION, session)
        archived, reply = await self._look_up(stream, command)
        return as_scores(reply) if archived is None else as_scores(archived.tasks)[::-1]

    async def read_open(self, session: str) -> list[str]:
        """Ids of the open tasks and actions of a session."""
        shard = shard_of(session)
        command = pack("ZRANGE", keys.session_open(shard, session), 0, -1)
        return await self._nodes.query(shard, command, as_texts)

    async def bump_epoch(self, shard: Shard, expected: int) -> int:
        """Gives the shard a new epoch unless it changed since ``expected`` was read; returns the current one."""
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
                stored = read_row(row, stream, 0, MOST_EVENTS, is_chained=False)
                if any(entry.event_id == wanted for entry in stored):
                    return True
            if len(rows) < _SEARCH_PAGE:
                return False
            upper = f"({rows[-1][0].decode()}"
        return False


def _list_missing(result: AppendResult | SessionArchived, packed: PackedBatch) -> list[str]:
    """Ids of entities that an append misses though it was to change them: they may be archived."""
    match result:
        case SessionArchived():
            return [packed.session]
        case Conflict(entity, stored) if stored == ABSENT and entity != IDEMPOTENCY:
            return [packed.session, entity]
        case _:
            return []


def read_feed_rows(reply: RespValue) -> list[FeedRow]:
    """Rows of a feed as XRANGE returns them."""
    return [_feed_row(*row) for row in cast("list[tuple[bytes, list[bytes]]]", reply)]


def _feed_row(identifier: bytes, flat: list[bytes]) -> FeedRow:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    # Read by index: each task has a row.
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


def _attach_feed_tail(stored: Appended, feed: RespValue) -> Appended:
    is_whole = len(cast("list[RespValue]", feed)) < _TAIL
    return change(stored, tail=FeedTail(lambda: read_feed_rows(feed)[::-1], is_whole))


def _pack_tail_query(shard: Shard) -> bytes:
    return pack("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", _TAIL)


def _pack_head_query(stream: StreamRef) -> bytes:
    return pack("HMGET", keys.head(stream), *_HEAD_FIELDS)


def _pack_page_query(stream: StreamRef, after: int, limit: int) -> bytes:
    """An entry has the events of one append, and its id is the sequence of the last of them."""
    upto = after + limit + MOST_EVENTS - 1
    return pack("XRANGE", keys.entries(stream), f"{after + 1}-0", f"{upto}-0", "COUNT", limit)


def _pack_next_query(stream: StreamRef, after: int) -> bytes:
    return pack("XRANGE", keys.entries(stream), f"{after + 1}-0", "+", "COUNT", 1)


def _head(reply: RespValue) -> Head | None:
    epoch, sequence, chain, first = as_sparse_list(reply)
    if epoch is None or chain is None:
        return None
    return Head(
        epoch.decode(),
        _read_number("seq", sequence or b"0"),
        chain.decode(),
        _read_number("first", first or b"1"),
    )


def _head_of(archived: SessionFrame) -> Head | None:
    fields = as_hash(archived.hashes[EntityRef(EntityKind.SESSION, archived.session)])
    return _head([fields.get(name) for name in _HEAD_FIELDS])


def _loaded_from(archived: SessionFrame, ref: EntityRef) -> Loaded:
    loaded, head = _loaded(ref, archived.hashes.get(ref, [])), _head_of(archived)
    archive = ArchiveRef(archived.session, head.sequence) if head else None
    return replace(loaded, archive=str(archive) if archive else None)


def _loaded(ref: EntityRef, reply: RespValue) -> Loaded:
    fields = as_hash(reply)
    stamp = Stamp(_read_number("v", fields.get("v", b"0")), fields.get("op", b"").decode())
    rest = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    return Loaded(ref, stamp, fields.get("s", b""), rest)


def _read_number(name: str, value: bytes) -> int:
    """Raises ValueError, which names the field, if a stored number is none."""
    try:
        return int(value)
    except ValueError:
        message = f"the stored field {name!r} is {value[:20]!r} and no number"
        raise ValueError(message) from None
