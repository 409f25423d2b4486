"""Calls of one event-loop tick travel together: one write, one read, each caller its own reply.

A call that has time waits for company, unless that was in vain lately. What was gathered before, and reads, wait for no
others. At most ``QUEUE_LIMIT`` calls wait; then callers do. A call is written once, and not at all if its caller was
cancelled before: what it means when no reply comes is for the caller to judge, by its operation id.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from passerelle.store.connection import Reply, pack
from passerelle.store.failures import explain_break, explain_reply
from passerelle.store.link import ANSWER_S, Link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

    from passerelle.core.errors import StoreUnavailable
    from passerelle.store.connection import Endpoint
    from passerelle.store.failures import Redirected

QUEUE_LIMIT: Final = 1000
BATCH_LIMIT: Final = 32
"""Calls of one exchange; those that are left travel over a further connection meanwhile."""
_WAITED_LIMIT: Final = 256
"""The same where each batch waits for a replica."""
_COMPANY: Final = 6
"""So many calls wait for no more, beside which others may be posted."""
_LEAST_S: Final = 0.001
"""Timers are no finer."""
_VAIN: Final = 3
"""After so many waits for which nobody came, nobody waits until one with time meets another call by itself."""


class _Call:
    """One call on its way. ``done`` gets its replies, or what it failed with; an error among them fails all of it."""

    __slots__ = ("count", "done", "failure", "packed", "replies")

    has_place: ClassVar[bool] = True

    def __init__(self, packed: bytes, count: int, done: asyncio.Future[Any]) -> None:
        self.packed = packed
        self.count = count
        self.done = done
        self.replies: list[Reply | RedisError] = []
        self.failure: StoreUnavailable | None = None

    def answer(self, replies: list[Reply | RedisError]) -> None:
        """Tells its caller, unless that one has gone, of replies without an error among them."""
        if not self.done.done():
            self.done.set_result(replies)

    def finish(self) -> None:
        """The same with whatever came of it."""
        if self.done.done():
            return
        if self.failure is None:
            self._judge()
        else:
            self.done.set_exception(self.failure)

    def _judge(self) -> None:
        for reply in self.replies:
            if isinstance(reply, RedisError):
                failure = explain_reply(reply)
                failure.__cause__ = reply
                self.done.set_exception(failure)
                return
        self.done.set_result(self.replies)


class _Each(_Call):
    """Of its commands each may fail by itself."""

    __slots__ = ()

    def _judge(self) -> None:
        self.done.set_result(
            [
                explain_reply(reply) if isinstance(reply, RedisError) else reply
                for reply in self.replies
            ]
        )


class _Post(_Call):
    """Travels beside a call of the same caller; only asked whether it was carried out."""

    __slots__ = ()

    has_place: ClassVar[bool] = False

    def answer(self, replies: list[Reply | RedisError]) -> None:
        if not self.done.done():
            self.done.set_result(bool(replies))

    def finish(self) -> None:
        if not self.done.done():
            carried_out = self.failure is None and not isinstance(self.replies[0], RedisError)
            self.done.set_result(carried_out)


class Batcher:
    """A few connections to one primary, each carrying one batch at a time.

    ``scripts`` are loaded when the server does not know one. With ``wait_ms`` each batch ends in one
    ``WAIT 1 <wait_ms>``: a slow replica delays these calls and nothing else, and the replies of each end with the
    number of replicas that confirmed it. ``batches`` counts exchanges by how many calls they carry.

    An exchange on an open connection is a write and a callback. Only what may take longer is a task: to open one, to
    load scripts, to close one that broke.
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
        self._limit = BATCH_LIMIT if wait_ms is None else _WAITED_LIMIT
        self._wait = None if wait_ms is None else pack("WAIT", 1, wait_ms)
        self._batches = Counter[int]() if batches is None else batches
        self._loop = asyncio.get_running_loop()
        self._free = [Link(endpoint) for _ in range(connections)]
        self._all = tuple(self._free)
        self._queue: list[_Call] = []
        self._room = QUEUE_LIMIT
        self._line: deque[asyncio.Future[None]] = deque()
        """Callers for whom there was no room."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._rested: asyncio.Future[None] | None = None
        self._kicked = False
        self._timer: asyncio.TimerHandle | None = None
        """While all that wait have time, until the first of them has none."""
        self._until_s = 0.0
        self._has_time = False
        """Whether somebody waits who had time."""
        self._in_vain = 0
        self._posts = 0
        """How many of those that wait were posted beside others."""
        self._hurries = False
        """Whether a call waits for a connection only, and for no others."""

    @property
    def opened(self) -> int:
        """How often one of its connections was opened."""
        return sum(link.opened for link in self._all)

    def call(
        self, packed: bytes, count: int = 1, *, alone: bool = False, within_s: float = 0.0
    ) -> Awaitable[list[Reply]]:
        """Sends bytes that hold ``count`` commands, where there is room; to be awaited for their replies.

        ``alone``: it waits for no others to come. It is written in this call where a connection is free, and as soon as
        one is otherwise. ``within_s``: so long it may wait for others, in seconds.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when the call may have run.
            Redirected: another node serves the shard.
        """
        self._hurries = self._hurries or alone
        return self._submit(_Call(packed, count, self._loop.create_future()), within_s)

    def call_each(
        self, packed: bytes, count: int
    ) -> Awaitable[list[Reply | StoreUnavailable | Redirected]]:
        """The same for commands of which each may fail by itself.

        Raises:
            StoreUnavailable: with ``wrote`` = ``unknown`` when any of them may have run.
        """
        return self._submit(_Each(packed, count, self._loop.create_future()))

    def post(self, packed: bytes, within_s: float = 0.0) -> Awaitable[bool]:
        """Sends one command beside a call of the same caller; to be awaited: whether it was carried out."""
        call = _Post(packed, 1, self._loop.create_future())
        self._queue.append(call)
        self._posts += 1
        self._kick(within_s)
        return call.done

    def _submit(self, call: _Call, within_s: float = 0.0) -> Awaitable[Any]:
        if self._room == 0:
            return self._stand_in_line(call)
        self._room -= 1
        self._queue.append(call)
        if within_s >= _LEAST_S:
            self._has_time = True
        if self._hurries or not self._kicked:
            self._kick(within_s)
        return call.done

    async def _stand_in_line(self, call: _Call) -> object:
        place: asyncio.Future[None] = self._loop.create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._room += 1
                self._let_in()
            raise
        self._queue.append(call)
        self._kick()
        return await call.done

    def _let_in(self) -> None:
        """Gives the room there is to those who wait for it, in their order."""
        while self._room and self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                self._room -= 1

    def waiting(self) -> int:
        """How many calls wait for a connection: a gauge, and never above twice ``QUEUE_LIMIT``."""
        return len(self._queue)

    async def close(self) -> None:
        """Waits for what is under way, then closes the connections."""
        while self._queue or len(self._free) < len(self._all):
            if self._rested is None or self._rested.done():
                self._rested = self._loop.create_future()
            await self._rested
        for link in self._all:
            await link.close()

    def _kick(self, within_s: float = 0.0) -> None:
        """Somebody waits, and may do so for a while."""
        if not self._free:
            return
        if self._hurries:
            self._go_on()
        elif self._kicked:
            return
        elif (
            within_s >= _LEAST_S
            and self._in_vain < _VAIN
            and len(self._queue) - self._posts < _COMPANY
        ):
            self._await_company(within_s)
        else:
            self._kicked = True
            # One tick for calls of those who are running, one for what has come in on other sockets meanwhile.
            self._loop.call_soon(self._loop.call_soon, self._start)

    def _await_company(self, within_s: float) -> None:
        """No longer than anybody has time."""
        until_s = self._loop.time() + within_s
        if self._timer is not None:
            if until_s >= self._until_s:
                return
            self._timer.cancel()
        self._until_s = until_s
        self._timer = self._loop.call_later(within_s, self._lapse)

    def _lapse(self) -> None:
        """Whoever waits for company has no more time."""
        self._timer = None
        if len(self._queue) - self._posts == 1:
            self._in_vain += 1
        if not self._kicked:
            self._start()

    def _start(self) -> None:
        self._kicked = False
        if self._queue and self._free:
            self._go_on()

    def _rest(self, link: Link) -> None:
        """Its next exchange begins as any other one: until then more calls join it, if none is in a hurry."""
        self._free.append(link)
        if self._queue:
            self._kick()
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)

    def _go_on(self) -> None:
        """Sends what waits, as far as one exchange carries it; a free connection takes the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link, calls, self._queue = self._free.pop(), self._queue, []
        if len(calls) > self._limit:
            calls, self._queue = calls[: self._limit], calls[self._limit :]
            self._kick()
        else:
            self._hurries = False
        room = self._room
        for call in calls:
            self._room += call.has_place
        written = self._room - room
        self._posts -= len(calls) - written
        if written > 1 and self._has_time:
            self._in_vain = 0
        self._has_time = False
        if self._line:
            self._let_in()
        # Nobody waits any more for a call whose caller was cancelled: it has not been written, and is not now.
        calls = [call for call in calls if not call.done.done()]
        if not calls:
            self._rest(link)
            return
        self._batches[len(calls)] += 1
        packed, count = self._join(calls)
        replies: list[Reply | RedisError] = []
        settle = partial(self._settle, link, calls, replies)
        try:
            if not link.begin(packed, count, replies, settle):
                self._spawn(self._work(link, calls, sent=False))
        except (OSError, RuntimeError) as error:
            settle(0, error)

    def _settle(
        self,
        link: Link,
        calls: list[_Call],
        replies: list[Reply | RedisError],
        refused: int,
        broken: Exception | None,
    ) -> None:
        if broken is None and not refused and self._wait is None:
            start = 0
            for call in calls:
                end = start + call.count
                call.answer(replies[start:end])
                start = end
            self._rest(link)
            return
        self._deal(replies, calls)
        if broken is None and _is_demoted(replies):
            # Another server may be at the address by now, and this one lives on with its connections.
            broken = ConnectionBroken("a replica by now")
        if broken is not None or _names_unknown_script(replies):
            self._spawn(self._work(link, calls, sent=True, broken=broken))
            return
        for call in calls:
            call.finish()
        self._rest(link)

    def _join(self, calls: list[_Call]) -> tuple[bytes, int]:
        """What is written for some calls, and how many replies come."""
        packed = calls[0].packed if len(calls) == 1 else b"".join([call.packed for call in calls])
        count = 0
        for call in calls:
            count += call.count
        return (packed, count) if self._wait is None else (packed + self._wait, count + 1)

    def _deal(self, replies: Sequence[Reply | RedisError], calls: Sequence[_Call]) -> None:
        """Gives each call its own replies, as far as they came."""
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
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(
        self, link: Link, calls: list[_Call], *, sent: bool, broken: Exception | None = None
    ) -> None:
        """Whatever of an exchange takes more than a callback; then every caller is told, and the connection goes on."""
        try:
            await self._exchange_slowly(link, calls, sent=sent, broken=broken)
        except BaseException as error:
            # Replies may still be on the way, and nobody is left to read them.
            await link.close(nowait=True)
            for call in calls:
                call.failure = explain_break(error, sent=True)
            raise
        finally:
            for call in calls:
                call.finish()
            self._rest(link)

    async def _exchange_slowly(
        self, link: Link, calls: list[_Call], *, sent: bool, broken: Exception | None
    ) -> None:
        try:
            if broken is not None:
                raise broken
            async with asyncio.timeout(ANSWER_S):
                if not sent:
                    await link.make_live()
                    sent = True
                    await self._send_and_collect(link, calls)
                await self._repeat_unknown_scripts(link, calls)
        except (RedisError, OSError, TimeoutError) as error:
            await link.close(nowait=True)
            for call in calls:
                if len(call.replies) < call.count:
                    call.failure = explain_break(error, sent=sent)

    async def _send_and_collect(self, link: Link, calls: list[_Call]) -> None:
        packed, count = self._join(calls)
        replies: list[Reply | RedisError] = []
        try:
            await link.exchange(packed, count, replies)
        finally:
            self._deal(replies, calls)

    async def _repeat_unknown_scripts(self, link: Link, calls: list[_Call]) -> None:
        unknown = [call for call in calls if _names_unknown_script(call.replies)]
        if not unknown:
            return
        await link.exchange(b"".join(self._load), len(self._load), [])
        for call in unknown:
            call.replies.clear()
        await self._send_and_collect(link, unknown)


def _is_demoted(replies: Sequence[Reply | RedisError]) -> bool:
    for reply in replies:  # noqa: SIM110  as below
        if isinstance(reply, ReadOnlyError):
            return True
    return False


def _names_unknown_script(replies: Sequence[Reply | RedisError]) -> bool:
    for reply in replies:  # noqa: SIM110  a generator for each exchange costs more than the look
        if isinstance(reply, NoScriptError):
            return True
    return False
