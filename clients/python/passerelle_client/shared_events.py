"""Follows the events of a shared task: first the stored ones behind a version, then new ones.

One hint connection per process reports new versions. A reader holds a position, not a queue, so a slow reader delays no
other, and equal reads are shared. Hints only reduce latency: every ``POLL_S`` a reader checks without one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.client.shared_tasks import EventPage, SharedTasks
    from passerelle.store.hints import RedisHints

POLL_S: Final = 5.0
"""Seconds by which a lost hint can delay an event."""
_PATIENCE_S: Final = 60.0
_RETRY_S: Final = 0.25


class EventsGoneError(LookupError):
    """Events behind a version are no longer stored, or the task is gone: the stream cannot continue exactly."""

    def __init__(self, task_id: str, after: int) -> None:
        super().__init__(f"the events of task {task_id} after version {after} are no longer stored")
        self.task_id = task_id
        self.after = after


class _Watch:
    """One task that is followed in this process. Each hint sets ``changed`` and replaces it."""

    __slots__ = ("changed", "opening", "readers", "reads")

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.readers = 0
        self.opening: asyncio.Task[None] | None = None
        self.reads: dict[int, asyncio.Task[EventPage]] = {}

    def wake(self, _hint: bytes = b"") -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class SharedEvents:
    """Opens readers over one hint connection per primary."""

    def __init__(self, tasks: SharedTasks, hints: RedisHints, poll_s: float = POLL_S) -> None:
        self._tasks = tasks
        self._hints = hints
        self._look_s = poll_s
        self._watched: dict[str, _Watch] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        hints.on_loss(self._wake_all)

    @property
    def watched(self) -> int:
        """The number of tasks that are followed."""
        return len(self._watched)

    async def follow(self, task_id: str, after: int) -> AsyncGenerator[tuple[int, bytes]]:
        """Yields version and bytes of each event behind ``after``, without end.

        Raises:
            EventsGoneError: an event behind ``after`` is no longer stored; no later event has been yielded.
            StoreUnavailable: the store has been unavailable for a minute.
        """
        async with self._watch(task_id) as watch:
            while True:
                changed = watch.changed
                page = await self._read(watch, task_id, after)
                for version, event in page.events:
                    after = version
                    yield version, event
                if page.events:
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_s):
                        await changed.wait()

    async def _read(self, watch: _Watch, task_id: str, after: int) -> EventPage:
        """Reads the page behind a version; waits for the store."""
        loop = asyncio.get_running_loop()
        until_s: float | None = None
        while True:
            try:
                page = await self._share(watch, task_id, after)
                if not page.holds(after):
                    # a version may have been written between the two reads of the page
                    page = await self._tasks.read_events(task_id, after)
            except StoreUnavailable:
                until_s = until_s or loop.time() + _PATIENCE_S
                if loop.time() >= until_s:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            if not page.holds(after):
                raise EventsGoneError(task_id, after)
            return page

    async def _share(self, watch: _Watch, task_id: str, after: int) -> EventPage:
        read = watch.reads.get(after)
        if read is None:
            read = asyncio.create_task(self._tasks.read_events(task_id, after))
            watch.reads[after] = read
            read.add_done_callback(lambda done: self._forget(watch, after, done))
        return await asyncio.shield(read)

    @staticmethod
    def _forget(watch: _Watch, after: int, done: asyncio.Task[EventPage]) -> None:
        watch.reads.pop(after, None)
        if not done.cancelled():
            done.exception()  # every waiting reader has received it

    @asynccontextmanager
    async def _watch(self, task_id: str) -> AsyncGenerator[_Watch]:
        # when an old subscription ends late, it must not remove the new one
        while (closing := self._closing.get(task_id)) is not None:
            await asyncio.wait([closing])
        watch = self._watched.get(task_id)
        if watch is None:
            watch = self._watched[task_id] = _Watch()
            at = self._tasks.space.locate(task_id)
            watch.opening = asyncio.create_task(self._hints.listen(at.shard, at.hints, watch.wake))
        watch.readers += 1
        try:
            if watch.opening is not None:
                await asyncio.shield(watch.opening)
                watch.opening = None
            yield watch
        finally:
            watch.readers -= 1
            if watch.readers == 0:
                del self._watched[task_id]
                closing = asyncio.create_task(self._close(task_id, watch))
                self._closing[task_id] = closing
                closing.add_done_callback(lambda _: self._closing.pop(task_id, None))
                await asyncio.shield(closing)

    async def _close(self, task_id: str, watch: _Watch) -> None:
        ending: list[asyncio.Task[EventPage] | asyncio.Task[None]] = [*watch.reads.values()]
        if watch.opening is not None:
            ending.append(watch.opening)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        at = self._tasks.space.locate(task_id)
        await self._hints.ignore(at.shard, at.hints)

    def _wake_all(self) -> None:
        for watch in self._watched.values():
            watch.wake()
