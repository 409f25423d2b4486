"""One run of deliveries to one target, under one claim: in order, one in flight, each settled before the next.

A delivery cannot be undone. So the claim lasts longer than one request, and extending it waits for a replica. The
outcome is settled under the same claim: a crash in between repeats one delivery, with the same event id.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, assert_never

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.runtime.common.breaker import HEALTHY, PAUSE_MS, Breaker, step
from passerelle.store.targets import Target
from passerelle.webhooks.reader import ReaderRun, ReceiverBehind, read_cursor, read_next
from passerelle.webhooks.retries import (
    AddressBlocked,
    Delivered,
    FailureStreak,
    GivenUp,
    Postponed,
    ReceiverAnswered,
    ReceiverUnreached,
    judge,
    postpone,
    read_reaction,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ids import Shard
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.due import DueRow
    from passerelle.core.ports.log import EventLog, StreamRef
    from passerelle.protocol.cursor import Cursor
    from passerelle.store.due import RedisDueRows
    from passerelle.store.targets import RedisTargets, TargetState
    from passerelle.webhooks.addresses import Address
    from passerelle.webhooks.kinds import DeliveryRequest, Feed
    from passerelle.webhooks.retries import Outcome
    from passerelle.webhooks.sender import WebhookSender

    Compose: TypeAlias = Callable[[], Awaitable[DeliveryRequest]]

HOLD_MS: Final = 15_000
"""Longer than one request may take, so that no other instance sends the same delivery in the meantime."""
PLACES: Final = 8
"""Concurrent deliveries to one origin."""
LARGE_BYTES: Final = 1024 * 1024
"""A request with more content is in memory as a whole: each origin gets one at a time."""
LARGE_AT_ONCE: Final = 4
"""Such requests of the process at a time."""
_LARGE_AGAIN_MS: Final = 1_000
MOST_IN_A_ROW: Final = 64
_UNCONFIRMED_MS: Final = 1_000


@dataclass(slots=True)
class JobOrigin:
    """The state of one origin in this process: its breaker and its delivery slots."""

    breaker: Breaker = HEALTHY
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES))
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


@frozen
class DeliveryDeps:
    """Dependencies of deliveries. ``chance()`` is in 0..1; ``drop(shard, row)`` settles a row without a target.

    ``wake(shard, within_s)`` wakes the due loop, ``may_send(shard)`` returns whether enough of our lease is left;
    ``count(kind, outcome)`` and ``time(kind, seconds)`` record metrics.
    """

    targets: RedisTargets
    due: RedisDueRows
    log: EventLog
    sender: WebhookSender
    clock: Clock
    chance: Callable[[], float]
    may_send: Callable[[Shard], bool]
    drop: Callable[[Shard, DueRow], Awaitable[object]]
    wake: Callable[[Shard, float], None]
    logger: FilteringBoundLogger
    count: Callable[[str, str], None]
    time: Callable[[str, float], None]
    timer: Callable[[], float]
    """A monotonic clock, in seconds."""
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_AT_ONCE))


class StoppedError(Exception):
    """The run is over for now: the next step is in the store."""


@dataclass(slots=True)
class DeliveryJob:
    """One run of deliveries to one target, under one claim."""

    deps: DeliveryDeps
    shard: Shard
    stream: StreamRef
    name: str
    token: str
    origin: JobOrigin
    _feed: Feed = field(init=False)
    _address: Address | None = field(init=False)
    _filter: str = field(init=False)
    _cursor: Cursor = field(init=False)
    _streak: FailureStreak = field(init=False)

    async def run(
        self, feed: Feed, address: Address | None, target: Target, *, confirmed: bool
    ) -> None:
        """Delivers pending events in order, until a delivery fails or none is left.

        Raises:
            StoreUnavailable: the last delivery is repeated when the row comes due.
        """
        self._feed, self._address, self._filter = feed, address, target.filter
        self._cursor = read_cursor(target.cursor)
        self._streak = FailureStreak(target.tries, target.since_ms, target.refusals, target.reason)
        try:
            await self._require_confirmed(confirmed=confirmed)
            for _ in range(MOST_IN_A_ROW):
                match await read_next(self.deps.log, self.stream, self._cursor, feed):
                    case ReaderRun() as found:
                        async with self._take_turn(await feed.weigh(whole=False)):
                            await self._send_entries(found)
                    case ReceiverBehind(why=why):
                        async with self._take_turn(await feed.weigh(whole=True)):
                            await self._send_snapshot(why)
            # Other targets wait for a slot at this origin.
            await self.settle(self._outcome("live"))
        except StoppedError:
            return

    async def close(self, target: Target, state: TargetState) -> None:
        """Settles the row of a target that gets no more deliveries."""
        with contextlib.suppress(StoppedError):
            await self.settle(replace(target, state=state))

    async def settle(self, outcome: Target, *, delay_ms: int = 0, hold_ms: int = 0) -> bool:
        """Stores an outcome; returns whether a replica has it. ``hold_ms`` keeps the claim while events are pending.

        Raises:
            StoppedError: the row is settled, or another instance has claimed it.
        """
        settled = await self.deps.targets.settle(
            self.stream, self.name, self.token, outcome, delay_ms=delay_ms, hold_ms=hold_ms
        )
        if not settled.claimed:
            self.deps.logger.info("delivery.unclaimed", target=self.name)
        if settled.token is None:
            raise StoppedError
        self.token = settled.token
        return settled.confirmed

    @contextlib.asynccontextmanager
    async def _take_turn(self, size: int) -> AsyncGenerator[None]:
        """Bounds the memory of large requests.

        Raises:
            StoppedError: others are being sent. The claim would end while this one waits, so it is tried again soon.
        """
        if size <= LARGE_BYTES:
            yield
            return
        places = (self.origin.large, self.deps.large)
        if any(place.locked() for place in places):
            now_ms = self.deps.clock.now_ms()
            await self._stop(postpone(self._streak, _LARGE_AGAIN_MS, "memory", now_ms))
        async with contextlib.AsyncExitStack() as taken:
            for place in places:
                await taken.enter_async_context(place)
            yield

    async def _send_entries(self, found: ReaderRun) -> None:
        """Sends one part after the other; each is settled before the next is sent."""
        feed = self._feed
        ends = feed.is_over(found.cursor)
        parts = feed.split(found.wanted)
        for place, together in enumerate(parts, 1):
            last = together[-1]
            position = replace(found.cursor, sequence=last.entry.sequence, chain=last.chain)
            answer = await self._send(partial(feed.compose, together, self._cursor, position))
            acked = feed.find_acked(answer, together, position)
            if acked is None:
                refused = ReceiverUnreached("nothing_acked")
                await self._judge(refused)
            elif acked != position:
                await self._move(acked, ends=False)
                return  # the next read continues from there
            elif place < len(parts):
                await self._move(position, ends=False)
            else:
                ends = ends or feed.ends_with(last.entry)
        await self._move(found.cursor, ends=ends)

    async def _send_snapshot(self, why: str) -> None:
        snapshot = await self._feed.compose_snapshot(why, self._cursor)
        self.deps.logger.info("delivery.behind", target=self.name, why=why)
        if (request := snapshot.request) is not None:
            self.deps.count(self._kind, "whole")

            async def compose() -> DeliveryRequest:
                return request

            await self._send(compose)
        await self._move(snapshot.cursor, ends=snapshot.ends)

    async def _move(self, cursor: Cursor, *, ends: bool) -> None:
        """Records that the receiver has everything up to a cursor."""
        self._cursor, self._streak = cursor, FailureStreak()
        confirmed = await self.settle(self._outcome("done" if ends else "live"), hold_ms=HOLD_MS)
        await self._require_confirmed(confirmed=confirmed)

    async def _require_confirmed(self, *, confirmed: bool) -> None:
        """Postpones the delivery until a replica has the events in it: a delivery cannot be undone."""
        if not confirmed:
            now_ms = self.deps.clock.now_ms()
            await self._stop(postpone(self._streak, _UNCONFIRMED_MS, "unconfirmed", now_ms))

    async def _send(self, compose: Compose) -> bytes:
        """Sends one request; returns the beginning of the response body once the receiver has confirmed it.

        Raises:
            StoppedError: the receiver has not confirmed it; the time of the next try is stored.
        """
        clock, origin = self.deps.clock, self.origin
        wait_ms = origin.breaker.wait_ms(clock.now_ms())
        if wait_ms > 0:
            self.deps.count(self._kind, "put_off")
            wait_ms += round(self.deps.chance() * PAUSE_MS)
            await self._stop(postpone(self._streak, wait_ms, "breaker", clock.now_ms()))
        if not self.deps.may_send(self.shard):
            raise StoppedError
        origin.breaker = step(origin.breaker, "asked", clock.now_ms())
        outcome = await self._post(compose)
        reached = not is_unreached(outcome)
        origin.breaker = step(origin.breaker, "answered" if reached else "failed", clock.now_ms())
        self.deps.count(self._kind, read_reaction(outcome).value)
        await self._judge(outcome)
        return outcome.body if isinstance(outcome, ReceiverAnswered) else b""

    async def _judge(self, outcome: Outcome) -> None:
        """Returns if the receiver has confirmed the request. Raises StoppedError otherwise."""
        now_ms, chance = self.deps.clock.now_ms(), self.deps.chance()
        verdict = judge(self._streak, outcome, now_ms, chance)
        if not isinstance(verdict, Delivered):
            await self._stop(verdict)

    async def _post(self, compose: Compose) -> Outcome:
        if self._address is None:
            return AddressBlocked()
        try:
            request = await compose()
        except ConfigInvalid:
            return AddressBlocked("secret_key")
        began_s = self.deps.timer()
        outcome = await self.deps.sender.post(self._address, request.headers, request.body)
        self.deps.time(self._kind, self.deps.timer() - began_s)
        return outcome

    async def _stop(self, verdict: Postponed | GivenUp) -> NoReturn:
        """Stores the next step.

        Raises:
            StoppedError: always.
        """
        self._streak = verdict.streak
        facts = {
            "target": self.name,
            "reason": verdict.streak.reason,
            "tries": verdict.streak.tries,
        }
        match verdict:
            case Postponed(delay_ms=delay_ms):
                self.deps.logger.info("delivery.later", **facts, delay_ms=delay_ms)
                with contextlib.suppress(StoppedError):
                    await self.settle(self._outcome("backoff"), delay_ms=delay_ms)
                self.deps.wake(self.shard, delay_ms / 1000)
            case GivenUp():
                self.deps.logger.warning("delivery.given_up", **facts)
                self.deps.count(self._kind, "given_up")
                await self._feed.warn(verdict.streak.reason, verdict.streak.since_ms)
                await self.settle(self._outcome("dead"))
            case _:
                assert_never(verdict)
        raise StoppedError

    def _outcome(self, state: TargetState) -> Target:
        streak = self._streak
        return Target(
            state,
            self._filter,
            str(self._cursor),
            streak.tries,
            streak.since_ms,
            streak.refusals,
            streak.reason,
        )

    @property
    def _kind(self) -> str:
        return self.name.partition(":")[0]


def is_unreached(outcome: Outcome) -> bool:
    """Whether the receiver was not reached, which the breaker counts as a failure. A refusal is an answer."""
    if isinstance(outcome, ReceiverAnswered):
        return outcome.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(outcome, ReceiverUnreached)
