"""Fan-out to the live readers of one stream: a group is written to at once.

Readers of one stream with the same name and view are in one *group* while they are caught up; the group has the
position of all members. An event added to the ring is encoded once and written to each member directly, without a task
or a queue per member. A member whose socket is full leaves, and continues by itself from the group's previous position;
it joins again when it has caught up. So no event is skipped (I8): a member has everything up to the group's cursor, or
is not a member.

Urgent events are sent in the same event loop iteration. Others open a window: the first is sent at once, those that
follow within the window are sent together at its end. Order is kept, since a group has one cursor. A write to hundreds
of readers blocks the event loop for milliseconds, so their window is longer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.channels.cursor_check import build_event
from passerelle.channels.pages import Packed
from passerelle.channels.views import shows
from passerelle.protocol.cursor import Cursor
from passerelle.protocol.wire import pack_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from passerelle.channels.counts import ChannelCounts
    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.channels.pages import Page
    from passerelle.channels.ring import Ring
    from passerelle.channels.views import View

WINDOW_S: Final = 0.01
"""The shortest window, for groups so small that a write takes no noticeable time."""
_WINDOW_EACH_S: Final = 100e-6
"""Twenty times the cost of a write to one reader: progress of one stream uses a twentieth of the loop at most."""
_LONGEST_WINDOW_S: Final = 0.05
_DEFERRABLE: Final = (
    "artifact.",
    "context.",
    "evidence.",
    "job.item.",
    "job.progress",
    "model.",
    "process.output",
    "reasoning.",
    "subagent.status",
    "task.progress",
    "tool.",
)
"""Types, or type prefixes, of events that may be sent together after a delay."""
_MEMOS: Final = 8
"""Prebuilt frames cached per entry: one per name and view; a resumed reader's first one may differ."""


Write: TypeAlias = "Callable[[list[bytes]], bool]"
"""Writes messages to a live reader; returns False, and takes none of them, if there is no room."""


def build_frame(stream: str, linked: LinkedEntry, previous: int) -> bytes:
    """The ``ev`` frame of an entry, built once for all readers of the stream under that name."""
    key = f"{stream}\0{previous}"
    frame = linked.memo.get(key)
    if frame is None:
        frame = build_event(stream, linked, previous)
        if len(linked.memo) < _MEMOS:
            linked.memo[key] = frame
    return frame


def count_deliveries(counts: ChannelCounts, events: Sequence[LinkedEntry], readers: int) -> None:
    """Counts events that were given to ``readers`` by other means than these messages."""
    deferrable = sum(linked.entry.type.startswith(_DEFERRABLE) for linked in events)
    counts.count_deliveries(readers * (len(events) - deferrable), readers * deferrable)


def pack_events(stream: str, events: Sequence[LinkedEntry], previous: int) -> Packed:
    """Packs events in order into messages for all readers of the stream under that name."""
    frames: list[bytes] = []
    deferrable = 0
    for linked in events:
        frames.append(build_frame(stream, linked, previous))
        previous = linked.entry.sequence
        deferrable += linked.entry.type.startswith(_DEFERRABLE)
    return Packed(pack_messages(frames), len(frames), deferrable)


def pack_page(stream: str, page: Page) -> Packed:
    """The same for a page, packed once for all its readers."""
    packed = page.packed.get(stream)
    if packed is None:
        packed = pack_events(stream, page.entries, page.previous)
        if len(page.packed) < _MEMOS:
            page.packed[stream] = packed
    return packed


def find_window_s(readers: int) -> float:
    """How long further progress waits after a write to ``readers`` readers."""
    return min(max(WINDOW_S, readers * _WINDOW_EACH_S), _LONGEST_WINDOW_S)


class GroupMember:
    """One member of a group; when ``left`` is done it continues from ``cursor`` and ``previous``."""

    __slots__ = ("_cursor", "_group", "_last_sent", "_previous", "left", "write")

    def __init__(self, write: Write, group: Group, left: asyncio.Future[None]) -> None:
        self.write = write
        self.left = left
        self._group: Group | None = group
        self._cursor = group.cursor
        self._previous = group.previous
        self._last_sent = group.last_sent

    @property
    def cursor(self) -> Cursor:
        """The position of this member, hidden events included."""
        return self._group.cursor if self._group else self._cursor

    @property
    def previous(self) -> int:
        """The last event of the view at or before ``cursor``."""
        return self._group.previous if self._group else self._previous

    @property
    def last_sent(self) -> Cursor | None:
        """The last event that the group was sent."""
        return self._group.last_sent if self._group else self._last_sent

    def leave(self) -> None:
        """Removes the member from its group."""
        group = self._group
        if group is None:
            return
        self._cursor, self._previous, self._last_sent = (
            group.cursor,
            group.previous,
            group.last_sent,
        )
        self._group = None
        group.remove(self)
        if not self.left.done():
            self.left.set_result(None)


class Group:
    """The members with one name and view."""

    __slots__ = ("_counts", "_members", "_name", "_view", "cursor", "last_sent", "previous")

    def __init__(
        self, name: str, view: View, cursor: Cursor, previous: int, counts: ChannelCounts
    ) -> None:
        self._counts = counts
        self.cursor = cursor
        self.previous = previous
        self.last_sent: Cursor | None = None
        self._name = name
        self._view = view
        self._members: dict[GroupMember, None] = {}

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._members)

    def add(self, write: Write) -> GroupMember:
        """Adds a member whose position equals the group's."""
        member = GroupMember(write, self, asyncio.get_running_loop().create_future())
        self._members[member] = None
        return member

    def remove(self, member: GroupMember) -> None:
        """Removes a member."""
        self._members.pop(member, None)

    def advance(self, ring: Ring | None) -> None:
        """Sends the members what the ring has after the cursor; if the ring does not reach it, all of them leave."""
        entries = ring.read_after(self.cursor, ring.events) if ring else None
        if entries is None:
            self._dissolve(tuple(self._members))
            return
        if not entries:
            return
        visible = [linked for linked in entries if shows(self._view, linked.entry)]
        if visible:
            self._write(visible)
        last = entries[-1]
        self.cursor = Cursor(self.cursor.epoch, last.entry.sequence, last.chain)
        if visible:
            self.previous = visible[-1].entry.sequence
            self.last_sent = Cursor(self.cursor.epoch, self.previous, visible[-1].chain)

    def _write(self, visible: list[LinkedEntry]) -> None:
        packed = pack_events(self._name, visible, self.previous)
        messages, members = packed.messages, tuple(self._members)
        full = [member for member in members if not member.write(messages)]
        packed.count(self._counts, len(members) - len(full))
        self._dissolve(full)

    def _dissolve(self, members: Iterable[GroupMember]) -> None:
        for member in members:
            member.leave()


class Fanout:
    """The groups of one stream. ``find_ring`` returns its current ring."""

    __slots__ = ("_counts", "_find_ring", "_groups", "_handle", "_window_ends_s", "_within_window")

    def __init__(self, find_ring: Callable[[], Ring | None], counts: ChannelCounts) -> None:
        self._counts = counts
        self._find_ring = find_ring
        self._groups: dict[tuple[str, View], Group] = {}
        self._handle: asyncio.Handle | None = None
        self._within_window = False
        """Whether ``_handle`` waits for the end of the window."""
        self._window_ends_s = float("-inf")

    def join(
        self, name: str, view: View, cursor: Cursor, previous: int, write: Write
    ) -> GroupMember | None:
        """Adds a reader that is at the ring's end to its group; None if it is not at the end."""
        group = self._groups.get((name, view))
        if group is not None and group.cursor != cursor:
            group.advance(self._find_ring())
        ring = self._find_ring()
        if ring is None or ring.end != cursor:
            return None
        if group is None or not group.size or group.cursor != cursor:
            group = self._groups[name, view] = Group(name, view, cursor, previous, self._counts)
        return group.add(write)

    def take_change(self, fresh: Sequence[LinkedEntry]) -> None:
        """Called when the ring has new entries (``fresh``) or was replaced; schedules the write."""
        if not self._groups:
            return
        loop = asyncio.get_running_loop()
        waits = fresh and all(linked.entry.type.startswith(_DEFERRABLE) for linked in fresh)
        if waits and self._window_ends_s > loop.time():
            if self._handle is None:
                self._handle = loop.call_at(self._window_ends_s, self.flush)
                self._within_window = True
            return
        if self._handle is not None and self._within_window:
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._handle = loop.call_soon(self.flush)
            self._within_window = False

    def flush(self) -> None:
        """Writes to all groups."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        readers = sum([group.size for group in self._groups.values()])
        self._window_ends_s = asyncio.get_running_loop().time() + find_window_s(readers)
        ring = self._find_ring()
        for key, group in tuple(self._groups.items()):
            group.advance(ring)
            if not group.size:
                del self._groups[key]
