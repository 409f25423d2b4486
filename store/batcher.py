"""Calls of one event-loop tick travel together: one write, one read, each caller its own reply.

At most ``QUEUE_LIMIT`` calls wait; then callers do. A call is
written once: what it means when no reply comes is for the caller to judge, by its operation id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis.exceptions import NoScriptError, RedisError

from passerelle.store.connection import Reply, pack
from passerelle.store.failures import explain_break, explain_reply
from passerelle.store.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from passerelle.core.errors import StoreUnavailable
    from passerelle.store.connection import Endpoint
    from passerelle.store.failures import Redirected

ANSWER_S: Final = 2.0
QUEUE_LIMIT: Final = 1000
_BATCH_LIMIT: Final = 32
"""Calls of one exchange; those that are left travel over a further connection meanwhile."""
_WAITED_LIMIT: Final = 256
"""The same where each batch waits for a replica."""
_IDLE_PING_S: Final = 15.0


@dataclass(slots=True, eq=False)
class _Call:
    packed: bytes
    count: int
    replies: list[Reply | RedisError] = field(default_factory=list["Reply | RedisError"])
    failure: StoreUnavailable | None = None
    confirmed: int = 0
    done: asyncio.Future[None] | None = None
    has_place: bool = True

    def finish(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies of one call, and how many replicas confirmed its batch (0 where nobody asked)."""

    replies: list[Reply]
    confirmed: int


class Batcher:
    """A few connections to one primary, each carrying one batch at a time.

    ``scripts`` are loaded when the server does not know one. With ``wait_ms`` each batch ends in one
    ``WAIT 1 <wait_ms>``: a slow replica delays these calls and nothing else. ``on_batch`` is told of each exchange:
    how many calls it carries.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        scripts: Sequence[bytes],
        *,
        connections: int = 1,
        wait_ms: int | None = None,
        on_batch: Callable[[int], None] = lambda _calls: None,
    ) -> None:
        self._load = [pack("SCRIPT", "LOAD", text) for text in scripts]
        self._limit = _BATCH_LIMIT if wait_ms is None else _WAITED_LIMIT
        self._wait = None if wait_ms is None else pack("WAIT", 1, wait_ms)
        self._on_batch = on_batch
        self._free = [Link(endpoint) for _ in range(connections)]
        self._all = tuple(self._free)
        self._used_at: dict[Link, float] = {}
        self._queue: deque[_Call] = deque()
        self._places = asyncio.Semaphore(QUEUE_LIMIT)
        self._pumps: set[asyncio.Task[None]] = set()
        self._kicked = False

    async def call(self, packed: bytes, count: int = 1) -> Answer:
        """Sends bytes that hold ``count`` commands and returns their replies.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when the call may have run.
            Redirected: another node serves the shard.
        """
        call = await self._send(packed, count)
        for reply in call.replies:
            if isinstance(reply, RedisError):
                raise explain_reply(reply) from reply
        replies = [reply for reply in call.replies if not isinstance(reply, RedisError)]
        return Answer(replies, call.confirmed)

    async def call_each(
        self, packed: bytes, count: int
    ) -> list[Reply | StoreUnavailable | Redirected]:
        """The same for commands of which each may fail by itself.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when any of them may have run.
        """
        call = await self._send(packed, count)
        return [
            explain_reply(reply) if isinstance(reply, RedisError) else reply
            for reply in call.replies
        ]

    def post(self, packed: bytes) -> Coroutine[None, None, bool]:
        """Sends one command beside a call of the same caller, at once; to be awaited: whether it was carried out."""
        call = _Call(packed, 1, has_place=False)
        return self._is_carried_out(call, self._enqueue(call))

    async def _is_carried_out(self, call: _Call, done: asyncio.Future[None]) -> bool:
        await done
        return call.failure is None and not isinstance(call.replies[0], RedisError)

    async def _send(self, packed: bytes, count: int) -> _Call:
        call = _Call(packed, count)
        await self._places.acquire()
        await self._enqueue(call)
        if call.failure is not None:
            raise call.failure
        return call

    def _enqueue(self, call: _Call) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done = call.done = loop.create_future()
        self._queue.append(call)
        self._kick()
        return done

    def waiting(self) -> int:
        """How many calls wait for a connection: a gauge, and never above twice ``QUEUE_LIMIT``."""
        return len(self._queue)

    async def close(self) -> None:
        """Waits for what is under way, then closes the connections."""
        while self._pumps:
            await asyncio.gather(*self._pumps)
        for link in self._all:
            await link.close()

    def _kick(self) -> None:
        if self._queue and self._free and not self._kicked:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._start_pump)

    def _start_pump(self) -> None:
        self._kicked = False
        if self._queue and self._free:
            self._spawn(self._pump(self._free.pop()))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _pump(self, link: Link) -> None:
        calls: list[_Call] = []
        try:
            while self._queue:
                calls = self._take()
                self._on_batch(len(calls))
                self._kick()
                await self._exchange(link, calls)
                for call in calls:
                    call.finish()
        except BaseException as error:
            # Replies may still be on the way, and nobody is left to read them.
            await link.close(nowait=True)
            for call in calls:
                call.failure = explain_break(error, sent=True)
                call.finish()
            raise
        finally:
            self._release(link)

    def _take(self) -> list[_Call]:
        calls = [self._queue.popleft() for _ in range(min(len(self._queue), self._limit))]
        for call in calls:
            if call.has_place:
                self._places.release()
        return calls

    def _release(self, link: Link) -> None:
        self._free.append(link)
        self._kick()

    async def _exchange(self, link: Link, calls: list[_Call]) -> None:
        sent = False
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._make_live(link)
                sent = True
                await self._send_and_collect(link, calls)
                await self._repeat_unknown_scripts(link, calls)
            self._used_at[link] = asyncio.get_running_loop().time()
        except (RedisError, OSError, TimeoutError) as error:
            await link.close(nowait=True)
            for call in calls:
                if len(call.replies) < call.count:
                    call.failure = explain_break(error, sent=sent)

    async def _send_and_collect(self, link: Link, calls: list[_Call]) -> None:
        packed = [call.packed for call in calls]
        count = sum(call.count for call in calls)
        replies: list[Reply | RedisError] = []
        try:
            if self._wait is None:
                await link.exchange(packed, count, replies)
                return
            await link.exchange([*packed, self._wait], count + 1, replies)
            confirmed = replies[-1]
            for call in calls:
                call.confirmed = confirmed if isinstance(confirmed, int) else 0
        finally:
            _deal(replies, calls)

    async def _repeat_unknown_scripts(self, link: Link, calls: list[_Call]) -> None:
        unknown = [
            call
            for call in calls
            if any(isinstance(reply, NoScriptError) for reply in call.replies)
        ]
        if not unknown:
            return
        await link.exchange(self._load, len(self._load), [])
        for call in unknown:
            call.replies.clear()
        await self._send_and_collect(link, unknown)

    async def _make_live(self, link: Link) -> None:
        """Opens the connection, or makes sure that an idle one has not died unnoticed."""
        if not link.is_open:
            await link.open()
        elif asyncio.get_running_loop().time() - self._used_at.get(link, 0.0) > _IDLE_PING_S:
            await link.exchange([pack("PING")], 1, [])


def _deal(replies: Sequence[Reply | RedisError], calls: Sequence[_Call]) -> None:
    """Gives each call its own replies, as far as they came."""
    start = 0
    for call in calls:
        call.replies += replies[start : start + call.count]
        start += call.count
