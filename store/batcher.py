"""Calls of one event-loop tick share an exchange: one write, one read, each caller its own replies.

``store.flush_policy`` decides when the queue is flushed; this module has the futures and connections. At most
``QUEUE_LIMIT`` calls are queued; callers beyond that wait for a slot. A call is written once, and not at all if its
caller was cancelled while it was queued. The caller resolves a missing reply by its operation id.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from passerelle.protocol.concurrency import keep_until_done
from passerelle.store.connection import RespValue, pack
from passerelle.store.failures import explain_break, explain_reply
from passerelle.store.flush_policy import Flush, FlushPolicy
from passerelle.store.pipelined_connection import ANSWER_S, PipelinedConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from passerelle.core.errors import StoreUnavailable
    from passerelle.store.connection import Endpoint
    from passerelle.store.failures import Redirected

QUEUE_LIMIT: Final = 1000
BATCH_LIMIT: Final = 32
"""Calls of one exchange; the rest of the queue uses another connection meanwhile."""
_REPLICATED_BATCH_LIMIT: Final = 256
"""The limit for exchanges that wait for a replica."""


class _Call:
    """One queued call. ``future`` gets its replies, or the failure; an error among the replies fails the whole call."""

    __slots__ = ("count", "failure", "future", "packed", "replies")

    takes_slot: ClassVar[bool] = True

    def __init__(self, packed: bytes, count: int, future: asyncio.Future[Any]) -> None:
        self.packed = packed
        self.count = count
        self.future = future
        self.replies: list[RespValue | RedisError] = []
        self.failure: StoreUnavailable | None = None

    def answer(self, replies: list[RespValue | RedisError]) -> None:
        """Resolves the future, unless it was cancelled, with replies that contain no error."""
        if not self.future.done():
            self.future.set_result(replies)

    def finish(self) -> None:
        """Resolves the future with the collected replies or the failure."""
        if self.future.done():
            return
        if self.failure is None:
            self._resolve()
        else:
            self.future.set_exception(self.failure)

    def _resolve(self) -> None:
        for reply in self.replies:
            if isinstance(reply, RedisError):
                failure = explain_reply(reply)
                failure.__cause__ = reply
                self.future.set_exception(failure)
                return
        self.future.set_result(self.replies)


class _EachCall(_Call):
    """Several commands, each of which may fail by itself."""

    __slots__ = ()

    def _resolve(self) -> None:
        self.future.set_result(
            [
                explain_reply(reply) if isinstance(reply, RedisError) else reply
                for reply in self.replies
            ]
        )


class _UnacknowledgedCall(_Call):
    """One command sent along with a call of the same caller; its future only states whether it was executed."""

    __slots__ = ()

    takes_slot: ClassVar[bool] = False

    def answer(self, replies: list[RespValue | RedisError]) -> None:
        if not self.future.done():
            self.future.set_result(bool(replies))

    def finish(self) -> None:
        if not self.future.done():
            carried_out = self.failure is None and not isinstance(self.replies[0], RedisError)
            self.future.set_result(carried_out)


class Batcher:
    """A few connections to one primary, each carrying one exchange at a time.

    ``scripts`` are loaded when the server does not know one. With ``wait_ms`` each exchange ends in one
    ``WAIT 1 <wait_ms>``: a slow replica delays these calls and nothing else, and the replies of each end with the
    number of replicas that confirmed it. ``batches`` counts exchanges by how many calls they carry.

    An exchange on an open connection is a write and a callback. Only what may take longer is a task: opening a
    connection, loading scripts, closing a connection that broke.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        scripts: Sequence[bytes],
        *,
        connections: int = 1,
        wait_ms: int | None = None,
        batches: Counter[int] | None = None,
    ) -> None:
        self._load = [pack("SCRIPT", "LOAD", text) for text in scripts]
        self._limit = BATCH_LIMIT if wait_ms is None else _REPLICATED_BATCH_LIMIT
        self._wait = None if wait_ms is None else pack("WAIT", 1, wait_ms)
        self._batches = Counter[int]() if batches is None else batches
        self._loop = asyncio.get_running_loop()
        self._free = [PipelinedConnection(endpoint) for _ in range(connections)]
        self._all = tuple(self._free)
        self._queue: list[_Call] = []
        self._policy = FlushPolicy()
        self._linger_timer: asyncio.TimerHandle | None = None
        self._free_slots = QUEUE_LIMIT
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Callers that wait for a slot, in order."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: asyncio.Future[None] | None = None

    @property
    def opened(self) -> int:
        """How often its connections were opened."""
        return sum(connection.opened for connection in self._all)

    def call(
        self, packed: bytes, count: int = 1, *, no_linger: bool = False, linger_s: float = 0.0
    ) -> Awaitable[list[RespValue]]:
        """Queues bytes that hold ``count`` commands; the awaitable returns their replies.

        ``no_linger``: written at once if a connection is free, else as soon as one is. ``linger_s``: the time budget
        to wait for other calls, in seconds.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when the call may have run.
            Redirected: another node serves the shard.
        """
        call = _Call(packed, count, self._loop.create_future())
        if count == 0:
            # Nothing is sent, so no reply would resolve it.
            call.future.set_result([])
            return call.future
        return self._submit(call, linger_s, no_linger=no_linger)

    def call_each(
        self, packed: bytes, count: int
    ) -> Awaitable[list[RespValue | StoreUnavailable | Redirected]]:
        """The same for commands of which each may fail by itself.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when any of them may have run.
        """
        return self._submit(_EachCall(packed, count, self._loop.create_future()))

    def send_unacknowledged(self, packed: bytes, linger_s: float) -> Awaitable[bool]:
        """Queues one command along with a call of the same caller; the awaitable returns whether it was executed."""
        call = _UnacknowledgedCall(packed, 1, self._loop.create_future())
        self._queue.append(call)
        self._schedule_flush(linger_s)
        return call.future

    def _submit(
        self, call: _Call, linger_s: float = 0.0, *, no_linger: bool = False
    ) -> Awaitable[Any]:
        if self._free_slots == 0:
            return self._await_slot(call, no_linger=no_linger)
        self._free_slots -= 1
        self._queue.append(call)
        self._policy.add(linger_s, no_linger=no_linger)
        if self._free:
            self._schedule_flush(linger_s)
        return call.future

    async def _await_slot(self, call: _Call, *, no_linger: bool) -> object:
        slot: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():
                self._free_slots += 1
                self._admit()
            raise
        self._queue.append(call)
        self._policy.add(0.0, no_linger=no_linger)
        self._schedule_flush()
        return await call.future

    def _admit(self) -> None:
        """Gives free slots to waiting callers."""
        while self._free_slots and self._waiters:
            slot = self._waiters.popleft()
            if not slot.done():
                slot.set_result(None)
                self._free_slots -= 1

    def waiting(self) -> int:
        """The number of queued calls: a gauge, never above twice ``QUEUE_LIMIT``."""
        return len(self._queue)

    async def close(self) -> None:
        """Waits for queued and running calls, then closes the connections."""
        while self._queue or len(self._free) < len(self._all):
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await self._drained
        for connection in self._all:
            await connection.close()

    def _schedule_flush(self, linger_s: float = 0.0) -> None:
        """Flushes the queue when the policy says so; ``linger_s`` is the budget of the last call."""
        if not self._free:
            return
        match self._policy.decide(linger_s, self._loop.time() if linger_s else 0.0):
            case Flush.PLANNED:
                pass
            case Flush.NOW:
                self._flush()
            case Flush.AT_TICK_END:
                # Two ticks: one for callers that are running, one for data that arrived on other sockets meanwhile.
                self._loop.call_soon(self._loop.call_soon, self._on_tick_end)
            case Flush.AT_DEADLINE:
                self._cancel_linger()
                self._linger_timer = self._loop.call_later(linger_s, self._on_linger_end)

    def _on_tick_end(self) -> None:
        self._policy.on_tick_end()
        if self._queue and self._free:
            self._flush()

    def _on_linger_end(self) -> None:
        self._linger_timer = None
        if self._policy.on_deadline() and self._queue and self._free:
            self._flush()

    def _cancel_linger(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _release(self, connection: PipelinedConnection) -> None:
        """Frees a connection. Queued calls are flushed as if they had just arrived, so that more calls can join."""
        self._free.append(connection)
        if self._queue:
            self._schedule_flush()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _flush(self) -> None:
        """Sends queued calls up to the limit of one exchange; another free connection takes the rest."""
        self._cancel_linger()
        connection, calls = self._free.pop(), self._take_queued()
        if calls:
            self._batches[len(calls)] += 1
            self._begin_exchange(connection, calls)
        else:
            self._release(connection)
        if self._queue:
            self._schedule_flush()

    def _take_queued(self) -> list[_Call]:
        """The calls of the next exchange, without those whose caller was cancelled in the queue."""
        calls, self._queue = self._queue, []
        if len(calls) > self._limit:
            calls, self._queue = calls[: self._limit], calls[self._limit :]
        counted = 0
        for call in calls:
            counted += call.takes_slot
        self._free_slots += counted
        self._policy.on_flush(counted, leaves=bool(self._queue))
        if self._waiters:
            self._admit()
        return [call for call in calls if not call.future.done()]

    def _begin_exchange(self, connection: PipelinedConnection, calls: list[_Call]) -> None:
        packed, count = self._join(calls)
        replies: list[RespValue | RedisError] = []
        settle = partial(self._settle, connection, calls, replies)
        try:
            if not connection.begin(packed, count, replies, settle):
                self._spawn(self._exchange(connection, calls, sent=False))
        except (OSError, RuntimeError) as error:
            settle(0, error)

    def _settle(
        self,
        connection: PipelinedConnection,
        calls: list[_Call],
        replies: list[RespValue | RedisError],
        refused: int,
        broken: Exception | None,
    ) -> None:
        if broken is None and not refused and self._wait is None:
            start = 0
            for call in calls:
                end = start + call.count
                call.answer(replies[start:end])
                start = end
            self._release(connection)
            return
        self._distribute(replies, calls)
        if broken is None and _is_demoted(replies):
            # A demoted primary keeps its connections, and another server may have its address now.
            broken = ConnectionBroken("the node is now a replica")
        if broken is not None or _names_unknown_script(replies):
            self._spawn(self._exchange(connection, calls, sent=True, broken=broken))
            return
        for call in calls:
            call.finish()
        self._release(connection)

    def _join(self, calls: list[_Call]) -> tuple[bytes, int]:
        """The bytes of an exchange, and the number of its replies."""
        packed = calls[0].packed if len(calls) == 1 else b"".join([call.packed for call in calls])
        count = 0
        for call in calls:
            count += call.count
        return (packed, count) if self._wait is None else (packed + self._wait, count + 1)

    def _distribute(
        self, replies: Sequence[RespValue | RedisError], calls: Sequence[_Call]
    ) -> None:
        """Gives each call its own replies, as far as they arrived."""
        start = 0
        for call in calls:
            end = start + call.count
            call.replies += replies[start:end]
            start = end
        if self._wait is not None:
            confirmed = replies[start] if len(replies) > start else 0
            for call in calls:
                if len(call.replies) == call.count:
                    call.replies.append(confirmed if isinstance(confirmed, int) else 0)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        keep_until_done(self._loop.create_task(work), self._tasks)

    async def _exchange(
        self,
        connection: PipelinedConnection,
        calls: list[_Call],
        *,
        sent: bool,
        broken: Exception | None = None,
    ) -> None:
        """The part of an exchange that takes more than a callback; every call is finished at its end."""
        try:
            await self._try_exchange(connection, calls, sent=sent, broken=broken)
        except BaseException as error:
            # Cancelled, or a fault: replies may still arrive, and no caller would read them.
            await connection.close(nowait=True)
            for call in calls:
                call.failure = explain_break(error, sent=True)
            raise
        finally:
            for call in calls:
                call.finish()
            self._release(connection)

    async def _try_exchange(
        self,
        connection: PipelinedConnection,
        calls: list[_Call],
        *,
        sent: bool,
        broken: Exception | None,
    ) -> None:
        try:
            if broken is not None:
                raise broken
            async with asyncio.timeout(ANSWER_S):
                if not sent:
                    await connection.make_live()
                    sent = True
                    await self._send_and_collect(connection, calls)
                await self._repeat_unknown_scripts(connection, calls)
        except (RedisError, OSError, TimeoutError) as error:
            await connection.close(nowait=True)
            for call in calls:
                if len(call.replies) < call.count:
                    call.failure = explain_break(error, sent=sent)

    async def _send_and_collect(self, connection: PipelinedConnection, calls: list[_Call]) -> None:
        packed, count = self._join(calls)
        replies: list[RespValue | RedisError] = []
        try:
            await connection.exchange(packed, count, replies)
        finally:
            self._distribute(replies, calls)

    async def _repeat_unknown_scripts(
        self, connection: PipelinedConnection, calls: list[_Call]
    ) -> None:
        unknown = [call for call in calls if _names_unknown_script(call.replies)]
        if not unknown:
            return
        await connection.exchange(b"".join(self._load), len(self._load), [])
        for call in unknown:
            call.replies.clear()
        await self._send_and_collect(connection, unknown)


def _is_demoted(replies: Sequence[RespValue | RedisError]) -> bool:
    for reply in replies:  # noqa: SIM110  as below
        if isinstance(reply, ReadOnlyError):
            return True
    return False


def _names_unknown_script(replies: Sequence[RespValue | RedisError]) -> bool:
    for reply in replies:  # noqa: SIM110  a generator for each exchange costs more than the look
        if isinstance(reply, NoScriptError):
            return True
    return False
