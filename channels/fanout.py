"""Everybody who is at the end of one stream, written to together.

Readers of one stream under one name and view are in one place while they are caught up: a *group*, which has the
position for all of them. What is added to the ring is made into a message once and written to each member in one go,
without a task or a queue for any. A member that cannot take it leaves, and goes on by itself from where the group was
before; it comes back when it has caught up. So nothing is skipped (I8): a member has everything up to the group's
cursor, or is no member.

Events that people wait for go out in the turn of the loop in which they came. The others open a window: the first goes
at once, what follows within the window goes together at its end. Order is kept, since a group has only one cursor. A
write to hundreds takes milliseconds of everybody's loop, so their window is longer.
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
"""For so few readers that a write to all of them takes no time."""
_WINDOW_EACH_S: Final = 100e-6
"""Twenty times what a write to one reader takes: progress of one stream has a twentieth of the loop, and not all."""
_LONGEST_WINDOW_S: Final = 0.05
_UNHURRIED: Final = (
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
"""Types, or beginnings of types, of which several in one message are as good as one after another."""
_MEMOS: Final = 8
"""Prebuilt frames kept per entry: one per name and view; a resumed reader's first one may differ."""


Write: TypeAlias = "Callable[[list[bytes]], bool]"
"""Writes messages to a reader that is caught up; False where there is no room, and then none of them was taken."""


def build_frame(stream: str, linked: LinkedEntry, previous: int) -> bytes:
    """The ``ev`` frame of an entry, made once for all who read the stream under that name."""
    key = f"{stream}\0{previous}"
    frame = linked.memo.get(key)
    if frame is None:
        frame = build_event(stream, linked, previous)
        if len(linked.memo) < _MEMOS:
            linked.memo[key] = frame
    return frame


def count_deliveries(counts: ChannelCounts, events: Sequence[LinkedEntry], readers: int) -> None:
    """Counts events that are given to so many readers otherwise than in messages of ours."""
    unhurried = sum(linked.entry.type.startswith(_UNHURRIED) for linked in events)
    counts.count_deliveries(readers * (len(events) - unhurried), readers * unhurried)


def pack_events(stream: str, events: Sequence[LinkedEntry], previous: int) -> Packed:
    """Events in order, as they go to everybody who reads the stream under that name."""
    frames: list[bytes] = []
    unhurried = 0
    for linked in events:
        frames.append(build_frame(stream, linked, previous))
        previous = linked.entry.sequence
        unhurried += linked.entry.type.startswith(_UNHURRIED)
    return Packed(pack_messages(frames), len(frames), unhurried)


def pack_page(stream: str, page: Page) -> Packed:
    """The same of a page, once for all who are given it."""
    packed = page.packed.get(stream)
    if packed is None:
        packed = pack_events(stream, page.entries, page.previous)
        if len(page.packed) < _MEMOS:
            page.packed[stream] = packed
    return packed


def find_window_s(readers: int) -> float:
    """How long progress waits behind a write to so many readers."""
    return min(max(WINDOW_S, readers * _WINDOW_EACH_S), _LONGEST_WINDOW_S)


class GroupMember:
    """One member's place in a group; it goes on by itself from ``cursor`` and ``previous`` when ``left`` is done."""

    __slots__ = ("_cursor", "_group", "_previous", "_told", "left", "write")

    def __init__(self, write: Write, group: Group, left: asyncio.Future[None]) -> None:
        self.write = write
        self.left = left
        self._group: Group | None = group
        self._cursor = group.cursor
        self._previous = group.previous
        self._told = group.told

    @property
    def cursor(self) -> Cursor:
        """How far this member is, hidden events included."""
        return self._group.cursor if self._group else self._cursor

    @property
    def previous(self) -> int:
        """The last event of the view at or before ``cursor``."""
        return self._group.previous if self._group else self._previous

    @property
    def told(self) -> Cursor | None:
        """The last event that the group was given."""
        return self._group.told if self._group else self._told

    def leave(self) -> None:
        """Takes the member out of its group."""
        group = self._group
        if group is None:
            return
        self._cursor, self._previous, self._told = group.cursor, group.previous, group.told
        self._group = None
        group.remove(self)
        if not self.left.done():
            self.left.set_result(None)


class Group:
    """The members of one name and view."""

    __slots__ = ("_counts", "_name", "_seats", "_view", "cursor", "previous", "told")

    def __init__(
        self, name: str, view: View, cursor: Cursor, previous: int, counts: ChannelCounts
    ) -> None:
        self._counts = counts
        self.cursor = cursor
        self.previous = previous
        self.told: Cursor | None = None
        self._name = name
        self._view = view
        self._seats: dict[GroupMember, None] = {}

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._seats)

    def add(self, write: Write) -> GroupMember:
        """Takes in a member that is exactly where the group is."""
        seat = GroupMember(write, self, asyncio.get_running_loop().create_future())
        self._seats[seat] = None
        return seat

    def remove(self, seat: GroupMember) -> None:
        """Lets a member go."""
        self._seats.pop(seat, None)

    def advance(self, ring: Ring | None) -> None:
        """Gives the members what the ring has behind the cursor; where it has no such place, all of them leave."""
        entries = ring.read_after(self.cursor, ring.events) if ring else None
        if entries is None:
            self._dissolve(tuple(self._seats))
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
            self.told = Cursor(self.cursor.epoch, self.previous, visible[-1].chain)

    def _write(self, visible: list[LinkedEntry]) -> None:
        packed = pack_events(self._name, visible, self.previous)
        messages, seats = packed.messages, tuple(self._seats)
        full = [seat for seat in seats if not seat.write(messages)]
        packed.count(self._counts, len(seats) - len(full))
        self._dissolve(full)

    def _dissolve(self, seats: Iterable[GroupMember]) -> None:
        for seat in seats:
            seat.leave()


class Fanout:
    """The groups of one stream. ``find_ring`` gives its ring as it is now."""

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
        """A seat for a reader that is at the ring's end; None where it is not."""
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
        """The ring has changed, by ``fresh`` or altogether; what is new goes out in this turn, or with its window."""
        if not self._groups:
            return
        loop = asyncio.get_running_loop()
        waits = fresh and all(linked.entry.type.startswith(_UNHURRIED) for linked in fresh)
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
