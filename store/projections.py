"""Views in other shards, written at least once and applied once: decided by the mark of each source."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard, shard_of
from passerelle.core.packed_events import MOST_EVENTS, pack_copy
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import (
    NONE_TAKEN,
    PARTS,
    Behind,
    FeedRow,
    InboxRow,
    IndexRow,
    NoteRow,
    RelayPosition,
    Taken,
    order_feed_id,
)
from passerelle.core.read_models.list_rows import note_row
from passerelle.store import keys
from passerelle.store.append import Arguments
from passerelle.store.connection import pack
from passerelle.store.list_notes import ListNotes, pack_notes, read_watched
from passerelle.store.list_registry import ListRegistry, name_list
from passerelle.store.log import read_feed_rows
from passerelle.store.owner_lists import OwnerIndex, PendingApprovals, read_page
from passerelle.store.replies import as_hash, as_int, as_texts
from passerelle.store.scripts import read_script
from passerelle.store.stream_entries import as_entry_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping, Sequence

    from passerelle.core.events import EncodedEvent
    from passerelle.core.payloads.approval import ClosingState
    from passerelle.core.ports.projections import IndexPart, ListedTasks, ProjectionRow
    from passerelle.store.log import RedisEventLog
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

KEEP_BEHIND_MS: Final = 15 * 60 * 1000
"""A target shard can lose its tail, mark and rows together: the feed keeps rows this far behind the mark."""
KEEP_AT_LEAST_MS: Final = 60 * 1000
KEEP_ROWS: Final = 512
"""Rows of about 100 bytes, in each shard. A larger feed keeps a shorter time behind the mark, at least a minute."""
INBOX_BYTES: Final = 8 * 1024 * 1024
"""Events that an inbox keeps for devices that were away; pending approvals are stored separately."""
_TRIM_EVERY_S: Final = 30.0
_MARK: Final = keys.MARK
_TAKEN: Final = "taken:"
_DROPPED: Final = "dropped"
"""The feed has no rows below this id."""
_EPOCH_TRIES: Final = 3
_NO_FEED_ID: Final = ""
"""The feed id of rows that do not come from the feed."""
NOTES_SUFFIX: Final = "+"
"""Suffix of the source for notes of tenants: they follow the rows of the same feed part, under another mark."""


class RedisProjections:
    """``core.ports.projections.Projections`` over a server or cluster; the relay's instance has ``yields``."""

    def __init__(self, nodes: Nodes, log: RedisEventLog, *, yields: bool = False) -> None:
        self._nodes = nodes
        self._ask = nodes.query_in_background if yields else nodes.query_all
        self._update = nodes.update_in_background if yields else nodes.update
        self._log = log
        self._index = OwnerIndex(nodes)
        # Every task is listed along with an append.
        self._pending = PendingApprovals(nodes)
        self._registry = ListRegistry(nodes)
        self._notes = ListNotes(nodes)
        self._epochs: dict[Shard, int] = {}
        self._trimmed_at: dict[Shard, float] = {}
        self.inbox_bytes = INBOX_BYTES
        self._seen: dict[Shard, dict[str, bytes]] = {}
        """The marks of a shard as read with the last page of its feed."""

    async def read_feed(self, shard: Shard, after: str | None, limit: int = 128) -> list[FeedRow]:
        """Feed rows of a shard above an id, or from the oldest one that is kept."""
        start = "-" if after is None else f"({after}"
        page = pack("XRANGE", keys.feed(shard), start, "+", "COUNT", limit)
        reply, marks = await self._ask(shard, page, pack("HGETALL", keys.meta(shard)))
        rows = read_feed_rows(reply)
        if rows:
            # A consumer that reads rows is about to move its mark.
            self._seen[shard] = as_hash(marks)
        return rows

    async def read_mark(self, shard: Shard, consumer: str) -> str | None:
        """The position of a consumer in the feed of a shard, as ``<shard epoch>.<feed id>``."""
        [mark] = await self._ask(shard, pack("HGET", keys.meta(shard), _MARK + consumer))
        return mark.decode() if isinstance(mark, bytes) else None

    async def read_position(self, shard: Shard, consumer: str) -> RelayPosition:
        """The mark of a consumer, and what each target had applied when it was moved."""
        fields = await self._read_marks(shard)
        mark = fields.get(_MARK + consumer)
        taken = {
            Shard(int(name.removeprefix(_TAKEN), 16)): _read_taken(value.decode())
            for name, value in fields.items()
            if name.startswith(_TAKEN)
        }
        return RelayPosition(mark.decode() if mark else None, taken)

    async def read_taken(self, source: Shard, target: Shard) -> str:
        """The mark that a target has for a source, as ``<epoch of the source>.<feed id>``; "" if it has none."""
        [mark] = await self._ask(target, pack("HGET", keys.marks(target), source.tag))
        return mark.decode() if isinstance(mark, bytes) else ""

    async def reaches_back(self, shard: Shard, feed_id: str | None) -> bool:
        """Whether the feed of a shard still has every row above an id, or every row."""
        [dropped] = await self._ask(shard, pack("HGET", keys.meta(shard), _DROPPED))
        if not isinstance(dropped, bytes):
            return True
        return order_feed_id(feed_id or "0-0") >= order_feed_id(dropped.decode())

    async def advance(
        self,
        source: Shard,
        target: Shard,
        feed_id: str,
        rows: Sequence[ProjectionRow],
        known: str = "",
    ) -> Taken | Behind:
        """Applies the rows unless ``target`` has them from this source already; returns the mark that it has then.

        ``known`` is the mark that it had before. If it has a lower one of the same epoch of the source, it has lost
        rows, and nothing is applied.

        Raises:
            StoreUnavailable: the target did not apply them.
            ValueError: a row belongs to another shard.
        """
        for _ in range(_EPOCH_TRIES):
            epoch = self._epochs.get(target, self._log.shard_epoch(target))
            packed = self._pack_rows(source, target, feed_id, rows, epoch, known)
            reply = as_texts(await self._update(target, packed))
            match reply:
                case ["ok", mark, watched]:
                    return Taken(mark, epoch, read_watched(watched))
                case ["behind", mark]:
                    return Behind(mark)
                case [_, current]:
                    self._epochs[target] = int(current)
                case other:
                    message = f"advance_projection answered {other!r}"
                    raise TypeError(message)
        reason = "the shard's epoch keeps changing"
        raise StoreUnavailable(reason, "no")

    async def put_anew(self, source: Shard, target: Shard, rows: Sequence[ProjectionRow]) -> None:
        """Applies rows that were rebuilt from the streams: no mark is compared or moved.

        Raises:
            StoreUnavailable: the target did not apply them.
            ValueError: a row belongs to another shard.
        """
        await self.advance(source, target, _NO_FEED_ID, rows)

    async def move_mark(
        self, shard: Shard, consumer: str, feed_id: str, taken: Mapping[Shard, Taken] = NONE_TAKEN
    ) -> None:
        """Moves a consumer's mark forward, stores the targets' marks, and drops feed rows that are no longer needed."""
        fields = self._seen.pop(shard, None) or await self._read_marks(shard)
        name = _MARK + consumer
        epoch = fields.get("epoch", b"0").decode()
        stored = fields.get(name, b"").decode()
        if stored.partition(".")[0] == epoch and order_feed_id(
            stored.partition(".")[2]
        ) >= order_feed_id(feed_id):
            return
        values = [f"{epoch}.{feed_id}"]
        for target, mark in taken.items():
            values += (_TAKEN + target.tag, f"{mark.mark} {mark.epoch}")
        await self._update(shard, pack("HSET", keys.meta(shard), name, *values))
        others = [
            value.decode().partition(".")[2]
            for field, value in fields.items()
            if field.startswith(_MARK) and field != name
        ]
        await self._trim_feed(shard, min((feed_id, *others), key=order_feed_id))

    async def _read_marks(self, shard: Shard) -> dict[str, bytes]:
        [reply] = await self._ask(shard, pack("HGETALL", keys.meta(shard)))
        return as_hash(reply)

    async def index_now(self, row: IndexRow) -> None:
        """Writes an owner-index row, so that callers see their own writes."""
        await self._index.add(row)

    def post_index(self, row: IndexRow, within_s: float) -> Awaitable[bool]:
        """Sends such a row along with an append of this linger budget; the awaitable returns whether it was written."""
        return self._index.post(row, within_s)

    async def read_index(
        self,
        owner: str,
        agent: str,
        before: tuple[int, str] | None,
        limit: int,
        parts: Sequence[IndexPart] = PARTS,
    ) -> list[tuple[str, int]]:
        """Facade ids of an owner at an agent with their times, newest first, strictly below ``before`` = (time, id)."""
        return await self._index.read(owner, agent, before, limit, parts)

    async def count_index(
        self, owner: str, agent: str, after_ms: int | None, parts: Sequence[IndexPart] = PARTS
    ) -> int:
        """The number of tasks, or of tasks with a later time than ``after_ms``."""
        return await self._index.count(owner, agent, after_ms, parts)

    async def open_rows(self, owner: str, now_ms: int) -> None:
        """Notes changes in an owner's lists from now on, for followers."""
        await self._notes.open(owner, now_ms)

    async def watch_tenant(self, tenant: str, now_ms: int) -> None:
        """The same for the lists of all owners of a tenant, by its key."""
        await self._notes.watch(tenant, now_ms)

    async def restart_notes(self, tenant: str) -> None:
        """Restarts the stream of a tenant's changes after a loss; each cursor in it becomes a gap."""
        await self._notes.restart(tenant)

    async def list_lists(self) -> list[ListedTasks]:
        """Every task list of any owner."""
        return await self._registry.read()

    async def list_inbox(
        self, owner: str, limit: int | None = None, before: tuple[int, str] | None = None
    ) -> list[tuple[str, int]]:
        """Ids of the pending actions of an owner with the times at which they were opened, newest first."""
        return await self._pending.list_newest(owner, limit, before)

    async def list_closed(
        self,
        owner: str,
        states: Sequence[ClosingState],
        limit: int,
        before: tuple[int, str] | None = None,
    ) -> list[tuple[str, int]]:
        """Ids of an owner's actions that ended in these states, with the times of their end, latest first."""
        shard = shard_of(owner)
        names = [keys.inbox_closed(shard, owner, state) for state in states]
        return await read_page(self._nodes, shard, names, before, limit)

    async def read_inbox(self, owner: str) -> list[tuple[str, bytes]]:
        """Pending actions of an owner with their copied views."""
        shard = shard_of(owner)
        [reply] = await self._ask(shard, pack("HGETALL", keys.inbox_open(shard, owner)))
        return list(as_hash(reply).items())

    def _pack_rows(
        self,
        source: Shard,
        target: Shard,
        feed_id: str,
        rows: Sequence[ProjectionRow],
        epoch: int,
        known: str,
    ) -> bytes:
        arguments = Arguments((keys.marks(target), keys.meta(target), keys.due(target)))
        suffix = ""
        index: list[ControlValue] = []
        noted: dict[str, list[EncodedEvent]] = {}
        inboxes: dict[str, list[InboxRow]] = {}
        for row in rows:
            if shard_of(row.owner) != target:
                message = f"{row.owner} is not in shard {target.tag}"
                raise ValueError(message)
            match row:
                case IndexRow():
                    index.append(_index(target, row, arguments))
                    note = note_row(row, feed_id)
                    if note is not None:
                        noted.setdefault(row.owner, []).append(note)
                case InboxRow():
                    inboxes.setdefault(row.owner, []).append(row)
                case NoteRow():
                    suffix = NOTES_SUFFIX
                    noted.setdefault(row.owner, []).append(row.event)
                case _:
                    assert_never(row)
        index += _note_lists(target, rows, arguments)
        control: dict[str, ControlValue] = {
            "source": source.tag + suffix,
            "batch": MOST_EVENTS,
            "source_epoch": str(self._log.shard_epoch(source)),
            "feed": feed_id,
            "epoch": str(epoch),
            "known": known,
            "index": index,
            "inbox_bytes": self.inbox_bytes,
            "rows": [pack_notes(owner, notes, arguments) for owner, notes in noted.items()],
            "inbox": [_inbox(owner, mine, arguments) for owner, mine in inboxes.items()],
        }
        return read_script("advance_projection").pack_call(
            arguments.keys, control, arguments.values
        )

    async def _trim_feed(self, shard: Shard, feed_id: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._trimmed_at.get(shard, -_TRIM_EVERY_S) < _TRIM_EVERY_S:
            return
        self._trimmed_at[shard] = now_s
        low = order_feed_id(feed_id)[0] - await self._find_reach_ms(
            shard, order_feed_id(feed_id)[0]
        )
        lowest = f"{max(low, 0)}-0"
        trim = pack("XTRIM", keys.feed(shard), "MINID", lowest)
        if await self._update(shard, trim):
            await self._update(shard, pack("HSET", keys.meta(shard), _DROPPED, lowest))

    async def _find_reach_ms(self, shard: Shard, mark_ms: int) -> int:
        """How far behind the mark the feed keeps rows."""
        feed = keys.feed(shard)
        count, oldest = await self._ask(
            shard, pack("XLEN", feed), pack("XRANGE", feed, "-", "+", "COUNT", 1)
        )
        rows = as_int(count)
        if rows <= KEEP_ROWS:
            return KEEP_BEHIND_MS
        first_ms = order_feed_id(as_entry_rows(oldest)[0][0].decode())[0]
        return min(max((mark_ms - first_ms) * KEEP_ROWS // rows, KEEP_AT_LEAST_MS), KEEP_BEHIND_MS)


def _index(target: Shard, row: IndexRow, arguments: Arguments) -> ControlValue:
    key = left = 0
    if row.part != "gone":
        key = arguments.key(keys.owner_index(target, row.owner, row.agent, row.part))
    if row.part != "open":
        left = arguments.key(keys.owner_index(target, row.owner, row.agent, "open"))
    return [key, row.facade, str(row.at_ms), left]


def _note_lists(
    target: Shard, rows: Iterable[ProjectionRow], arguments: Arguments
) -> list[ControlValue]:
    """The rows of the registry, written like rows of lists."""
    times: dict[str, int] = {}
    for row in rows:
        if isinstance(row, IndexRow) and row.part != "gone":
            name = name_list(row.owner, row.agent)
            if name is not None:
                times[name] = max(row.at_ms, times.get(name, 0))
    if not times:
        return []
    key = arguments.key(keys.listed_tasks(target))
    return [[key, name, str(at_ms), 0] for name, at_ms in times.items()]


def _inbox(owner: str, rows: Sequence[InboxRow], arguments: Arguments) -> ControlValue:
    inbox = StreamRef(StreamKind.INBOX, owner)
    names = (
        keys.head(inbox),
        keys.entries(inbox),
        keys.inbox_open(inbox.shard, owner),
        keys.stream_targets(inbox),
        keys.stream_hints(inbox),
        keys.inbox_order(inbox.shard, owner),
    )
    return {
        "keys": [arguments.key(name) for name in names],
        "mint": secrets.token_hex(4),
        "events": [[row.event.event_id, arguments.value(pack_copy(row.event))] for row in rows],
        "pending": [
            _entry(inbox.shard, owner, row.action, row, arguments)
            for row in rows
            if row.action is not None
        ],
    }


def _entry(
    shard: Shard, owner: str, action: str, row: InboxRow, arguments: Arguments
) -> ControlValue:
    view = 0 if row.view is None else arguments.value(row.view)
    if row.closed is None:
        return [action, view, str(row.asked_ms), 0, "0"]
    key = arguments.key(keys.inbox_closed(shard, owner, row.closed))
    return [action, view, str(row.asked_ms), key, str(row.closed_ms)]


def _read_taken(text: str) -> Taken:
    mark, _, epoch = text.partition(" ")
    return Taken(mark, int(epoch))
