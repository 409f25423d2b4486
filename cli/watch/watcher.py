"""Follows tasks over a channel: resumes with cursors, and stops when every task has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, assert_never, cast

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.watch.board import Board
from passerelle.cli.watch.link import OutageTimer, open_link
from passerelle.client.items import Event, Gap, Item, Live, Snapshot, StreamClosed
from passerelle.core.frozen import frozen
from passerelle.core.task.status import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ssl import SSLContext

    from passerelle.client.channel import ChannelClient
    from passerelle.client.items import LinkStatus
    from passerelle.core.ports.chance import Clock

_TICK_S: Final = 1.0
_MOST_STREAMS: Final = 100


class BoardOutput(Protocol):
    """Displays the board."""

    def show(self, board: Board, changed: Iterable[str], note: str, now_ms: int) -> None:
        """Displays changes; ``note`` is a change of the link."""
        ...

    def close(self) -> None:
        """Ends the display."""
        ...


@frozen
class WatchOptions:
    """What to watch: named streams, or all open tasks if there are none. ``keep``: continue after all have ended.

    ``all_owners``: open tasks of all owners, for a caller with tasks:oversee.
    """

    streams: tuple[str, ...]
    keep: bool
    patience_s: float
    """Seconds for which a gateway may be unavailable."""
    all_owners: bool


@dataclass(slots=True)
class Watcher:
    """Watches until every task has ended."""

    options: WatchOptions
    output: BoardOutput
    clock: Clock
    board: Board = field(init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _live: set[str] = field(default_factory=set[str])
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    _note: str = ""
    _outage: OutageTimer = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(only_open=not self.options.streams)
        self._outage = OutageTimer(self.options.patience_s)

    async def watch(self, url: str, token: str | None, tls: SSLContext | None = None) -> ExitStatus:
        """Returns DONE if every task completed, REMOTE if one ended otherwise.

        Raises:
            NotFound: the task or session does not exist.
            RemoteError: the gateway is unavailable for too long, or refused a stream.
        """
        try:
            async with open_link(url, token, tls, "watch", self._on_status) as client:
                await self._follow_all(client)
        finally:
            self.output.close()
        return ExitStatus.DONE if self.board.all_completed else ExitStatus.REMOTE

    async def _follow_all(self, client: ChannelClient) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._tick())]
            for stream in self.options.streams:
                self._open(group, client, stream)
            if not self.options.streams:
                helpers.append(group.create_task(self._search(group, client)))
            await self._over.wait()
            for task in (*helpers, *self._readers.values()):
                task.cancel()

    def _open(self, group: asyncio.TaskGroup, client: ChannelClient, stream: str) -> None:
        if stream not in self._readers and len(self._readers) < _MOST_STREAMS:
            self._readers[stream] = group.create_task(self._read(client, stream))

    async def _search(self, group: asyncio.TaskGroup, client: ChannelClient) -> None:
        """Follows every session with an open task, also those that open later.

        With ``all_owners``, follows single tasks, since sessions of other owners may not be readable.
        """
        every = self.options.all_owners
        opened = client.stream("tasks:tenant" if every else "tasks", start="snap")
        async with contextlib.aclosing(cast("AsyncGenerator[Item]", opened)) as items:
            async for item in items:
                match item:
                    case Snapshot(data=data):
                        rows = objects_at(data, "rows")
                    case Event(data=data):
                        rows = [object_at(data, "row")]
                    case Live() | Gap():
                        continue
                    case _:
                        assert_never(item)
                for row in rows:
                    if row and text_at(row, "status") not in ENDED:
                        of = ("task", "taskId") if every else ("session", "sessionId")
                        self._open(group, client, f"{of[0]}:{text_at(row, of[1])}")

    async def _read(self, client: ChannelClient, stream: str) -> None:
        opened = client.stream(stream, start="snap")
        try:
            async with contextlib.aclosing(cast("AsyncGenerator[Item]", opened)) as items:
                async for item in items:
                    changed = self._take(stream, item)
                    if stream not in self.options.streams and self._has_ended(
                        stream, item, changed
                    ):
                        break
        except StreamClosed as closed:
            if not self.options.all_owners:
                raise
            self._note = f"{stream} is not shown: {closed.code}"
            self._show(())
        if self._readers.get(stream) is asyncio.current_task():
            del self._readers[stream]

    def _has_ended(self, stream: str, item: Item, changed: list[str]) -> bool:
        """Returns whether the task of a ``task:`` stream has ended, so that the stream can be closed."""
        if not stream.startswith("task:"):
            return False
        now_ms = self.clock.now_ms()
        ended = any(self.board.show(one, now_ms).recorded in ENDED for one in changed)
        return ended or (isinstance(item, Snapshot) and not changed)

    def _take(self, stream: str, item: Item) -> list[str]:
        changed: list[str] = []
        match item:
            case Snapshot(data=data):
                changed = self.board.apply_snapshot(data)
            case Event(data=data):
                task = self.board.apply_event(data, self.clock.now_ms())
                changed = [task] if task else []
            case Live():
                self._live.add(stream)
            case Gap(why=why):
                self._note = f"missed events ({why.value}), shown from a snapshot"
            case _:
                assert_never(item)
        if changed or self._note:
            self._show(changed)
        self._stop_when_done()
        return changed

    def _stop_when_done(self) -> None:
        """Stops the watch when all streams are live and no task is open."""
        is_finite = bool(self.options.streams) and not self.options.keep
        if is_finite and self._live.issuperset(self.options.streams) and self.board.has_ended:
            self._over.set()

    def _show(self, changed: Iterable[str]) -> None:
        self.output.show(self.board, changed, self._note, self.clock.now_ms())
        self._note = ""

    def _on_status(self, status: LinkStatus) -> None:
        self._note = self._outage.update(status) or self._note
        if self._note:
            self._show(())

    async def _tick(self) -> None:
        """Updates the rates each second, and ends the watch if the gateway stays unavailable."""
        while True:
            self._outage.check()
            self._show(self.board.list_all())
            await asyncio.sleep(_TICK_S)
