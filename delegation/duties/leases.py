"""The leases of this instance: one per shard, all extended together several times per lease.

The server's clock decides how long a lease is held. This process computes the end with its own monotonic clock, from
before it sent the extension, so it never believes longer than the server that it holds the lease. When a lease is lost,
another instance owns what was driven in the shard: the incarnation is incremented, and its drivers here are dropped.

Duties of shards are spread over the living instances by rendezvous hashing: each ranks the instances for a shard and
requests the shards that rank it first. Two instances with different views request the same shard; the store grants it
to one.

One heartbeat of the owner keeps its duties in all shards. An instance that has been silent for a while may have died;
the others claim its duties once it has been silent for a whole lease: runs of dead instances wait for no round.

An instance that stood still (a machine that slept, a process that got no CPU) finds expired leases that it did not
notice. Opening a run then extends them at once, and does not wait for the next round.

A shard in which this instance drives nothing and has written nothing lately costs no writes: its lease rests, and is
woken by any entry in the instance's set (``store/lua/lease.lua``). Other instances do not take over a resting lease for
minutes, so it is extended rarely and trusted for longer, until ``drives`` hands out the incarnation, without which
nothing enters the set. From then on it is an ordinary lease.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import Incarnation
from passerelle.core.errors import RecordDamaged, StoreUnavailable
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.core.ports.leases import Lease, LeaseLost, LeaseRequest
from passerelle.runtime.common.beat import until_beat

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.leases import Leases

LEASE_MS: Final = 5_000
_EXTENSIONS_PER_LEASE: Final = 8
_REST_ROUNDS: Final = 8
"""A resting lease, in a shard without recent writes, is extended once in this many rounds."""
_EXTENSIONS_AT_REST: Final = 5
"""Rounds per lease while every lease rests, at the moments at which other loops run too."""
_REST_LEASES: Final = 4
"""A resting lease is trusted for this many leases after its last extension; the store keeps it for sixty and more."""
_ASKED_S: Final = 90.0
"""Writes for an incarnation that was handed out this long ago have reached the store: its lease may rest again."""
_HASTE: Final = 4
"""Rounds are this many times more frequent while an instance may have died."""
_QUIET: Final = 3
"""An instance that has missed this many extensions may have died."""
_AT_LEAST_S: Final = 0.02
"""Shortest pause between two claims of duties that are about to be free."""
_SILENT_S: Final = 1.0
"""When the store did not answer for this long, the next extension asks it again, not an immediate retry."""
_REGAIN_TRIES: Final = 3
"""The first extension finds the lease lost, the second is refused over the rest of its set, the third opens it."""
_SEND_SHARE: Final = 3
"""A send starts only while at least one part in this many of the lease is left."""


@dataclass(slots=True)
class LeaseHold:
    """The state of this instance's lease in one shard. ``until_s`` is a time of the keeper's clock.

    ``driver`` is the incarnation of this instance there until the lease is lost.
    """

    driver: Incarnation
    held: bool = False
    until_s: float = 0.0
    duty: bool = False
    until_ms: int = 0
    """The end by the store's clock, in ms, as of the last extension."""
    epoch: int | None = None
    """Of the shard, as last returned by the store."""
    seen: int = 0
    """The epoch under which the local runs were last compared with the instance's set."""
    extended_s: float = -math.inf
    """When the last answered extension began."""
    rests: bool = False
    """Whether the last extension wrote nothing, and ``driver`` was not handed out since."""
    asked_s: float = -math.inf
    """When ``driver`` was last handed out: a run of it may be on its way into the set."""


@dataclass(slots=True)
class LeaseKeeper:
    """Opens, extends and releases the leases of ``instance``. ``clock`` is monotonic, in seconds.

    ``on_lost(shard)`` is called when another instance owns what was driven in a shard, ``on_duties()`` when the set of
    shards whose duties this instance has changes. ``empty_set(shard)`` removes the runs from the instance's own lost
    set: with no other instance alive nothing else would, and the lease cannot be opened before.
    """

    leases: Leases
    instance: str
    clock: Callable[[], float]
    on_lost: Callable[[Shard], None]
    log: FilteringBoundLogger
    lease_ms: int
    on_duties: Callable[[], None] = lambda: None
    empty_set: Callable[[Shard], Awaitable[None]] | None = None
    on_loss: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Called with a shard that lacks an acknowledged extension, and the epoch of that extension."""
    on_epoch: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Called with the new epoch of a shard."""
    is_quiet: Callable[[Shard], bool] = lambda _shard: True
    """Whether this instance wrote nothing lately in a shard: the loss of a recent write must be visible in its set."""
    _holds: tuple[LeaseHold, ...] = field(init=False)
    """By the number of the shard."""
    _is_away: bool = False
    """Whether the last extension failed: an outage is logged once."""
    _is_one_silent: bool = False
    _awake: tuple[str, ...] = ()
    """The instances with a recent heartbeat: duties are spread over these."""
    _silent: dict[str, float] = field(default_factory=dict[str, float])
    """The other instances, and when the duties of each are free unless it sends a heartbeat."""
    _wanted: frozenset[Shard] = frozenset()
    _known_duties: frozenset[Shard] = frozenset()
    _duties: frozenset[Shard] = frozenset()
    _duties_until_s: float = -math.inf
    """Until then ``_duties`` equals what a check of every lease would find, unless one of them changes."""
    _refused: set[Shard] = field(default_factory=set["Shard"])
    _round: int = 0
    _extended_s: float = math.inf
    """When the last round began."""
    _announced_s: float = -math.inf
    """When this instance last sent its heartbeat."""
    _is_at_rest: bool = False
    """Whether every lease rested in the last round."""
    _extending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One extension at a time: an answer older than a lease that was opened since would read as its loss."""
    _regain_failed_s: float = -math.inf
    """When the store last failed to answer a ``regain``."""
    _lost: list[Shard] = field(default_factory=list["Shard"])
    """Lost by the extension in progress, and not logged yet."""

    def __post_init__(self) -> None:
        # One shared object, since each message compares it by identity.
        first = Incarnation(self.instance, 1)
        self._holds = tuple(LeaseHold(first) for _ in ALL_SHARDS)

    def drives(self, shard: Shard) -> Incarnation:
        """Our current incarnation in a shard, the same object while it lasts: the fence for what is driven there.

        Raises:
            StoreUnavailable: this instance holds no lease there; no run may be opened.
        """
        hold, now_s = self._holds[shard.number], self.clock()
        if not hold.held or now_s >= hold.until_s:
            reason = "the lease of this instance is lost"
            raise StoreUnavailable(reason, "no")
        hold.asked_s = now_s
        if hold.rests:
            # The store counts a lease from the run's entry in the set, which comes later than this.
            hold.rests, hold.until_s = False, min(hold.until_s, now_s + self.lease_ms / 1000)
        return hold.driver

    def find_sender(self, shard: Shard) -> Incarnation | None:
        """Our incarnation in a shard if an irreversible act may start there: at least a third of the lease is left."""
        hold = self._holds[shard.number]
        left_s = hold.until_s - self.clock()
        return hold.driver if hold.held and left_s * 1000 * _SEND_SHARE >= self.lease_ms else None

    def holds(self, shard: Shard) -> bool:
        """Whether the lease in a shard is open as of the last answer of the store; it may have expired since."""
        return self._holds[shard.number].held

    @property
    def held(self) -> int:
        """The number of shards in which the lease is open and has not expired."""
        return sum(map(self._is_held, self._holds))

    @property
    def duties(self) -> frozenset[Shard]:
        """The shards whose relay and due set this instance serves; the same object until they change."""
        now_s = self.clock()
        if now_s >= self._duties_until_s:
            self._refresh_duties(now_s)
        return self._duties

    def _refresh_duties(self, now_s: float) -> None:
        lease_s = self.lease_ms / 1000
        mine = {
            shard: until_s
            for shard, hold in zip(ALL_SHARDS, self._holds, strict=True)
            if hold.duty
            and hold.held
            # A resting lease is trusted for longer; other instances go by this instance's heartbeat.
            and now_s
            < (until_s := min(hold.until_s, max(hold.extended_s, self._announced_s) + lease_s))
        }
        self._duties_until_s = min(mine.values(), default=math.inf)
        if mine.keys() != self._duties:
            self._duties = frozenset(mine)

    @property
    def awake(self) -> tuple[str, ...]:
        """The instances with a recent heartbeat, this one included."""
        return self._awake

    @property
    def pause_s(self) -> float:
        """Seconds until the next extension: fewer while an instance is silent, or holds a duty that this one wants.

        The lease of a dead instance expires between rounds, and its runs wait for the first instance that notices. More
        while every lease rests.
        """
        pause_s = self.lease_ms / 1000 / _EXTENSIONS_PER_LEASE
        if self._is_away:
            return pause_s
        if self._is_one_silent or not self._wanted <= self.duties:
            return pause_s / _HASTE
        if self._is_at_rest:
            return until_beat(self.clock(), self.lease_ms / 1000 / _EXTENSIONS_AT_REST)
        return pause_s

    @property
    def is_alone(self) -> bool:
        """Whether no other instance has a recent heartbeat."""
        return len(self._awake) <= 1 and not self._is_one_silent

    async def start(self) -> None:
        """Opens every lease.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        await self._announce()
        for failure in await self._extend_all():
            raise failure

    async def run(self) -> None:
        """Extends until cancelled. While the store is unavailable it keeps trying, and ends nothing."""
        while True:
            next_s = self.clock() + self.pause_s
            while (claim_s := self.claim_s) < next_s:
                await asyncio.sleep(max(claim_s - self.clock(), _AT_LEAST_S))
                await self.claim()
            await asyncio.sleep(next_s - self.clock())
            await self.extend()

    async def claim(self) -> None:
        """Requests the duties that this instance wants and does not have; failures are left to the next extension."""
        now_s = self.clock()
        self._silent = {name: free_s for name, free_s in self._silent.items() if free_s > now_s}
        async with self._extending:
            await self._extend_all(self._wanted - self.duties)

    async def regain(self, shard: Shard) -> None:
        """Extends the lease of a shard if it has expired unnoticed; ``drives`` shows afterwards whether it is held.

        While the store is unavailable it sends nothing: the next extension finds out when the store is back. Concurrent
        callers share one request, also a failed one.
        """
        hold, asked_s = self._holds[shard.number], self.clock()
        for _ in range(_REGAIN_TRIES):
            if self._is_away or self._is_held(hold):
                return
            async with self._extending:
                if self._is_held(hold) or self._regain_failed_s > asked_s:
                    return
                if await self._extend_lapsed():
                    self._regain_failed_s = self.clock()
                    return

    async def _extend_lapsed(self) -> list[StoreUnavailable]:
        lapsed = [
            shard
            for shard, hold in zip(ALL_SHARDS, self._holds, strict=True)
            if not self._is_held(hold)
        ]
        failures = await self._extend_all(lapsed)
        return failures + await self._empty_sets()

    @property
    def claim_s(self) -> float:
        """When the duties of the next silent instance become free, by the keeper's clock."""
        return min(self._silent.values(), default=math.inf)

    async def extend(self) -> None:
        """Extends all leases once; failures are retried by the next extension."""
        try:
            await self._announce()
        except StoreUnavailable as error:
            # The list of living instances is unknown, so the last one stays. All leases are tried, resting ones too.
            self._extended_s = -math.inf
            self.log.info("lease.view_old", reason=error.reason)
        async with self._extending:
            failures = await self._extend_all(self._list_urgent())
            failures += await self._empty_sets()
        if failures and not self._is_away:
            self.log.warning("lease.held", shards=len(failures), reason=failures[0].reason)
        self._is_away = bool(failures)

    async def release(self) -> None:
        """Ends every lease, so that other instances take over without delay; for shutdown."""
        mine = [
            (shard, hold) for shard, hold in zip(ALL_SHARDS, self._holds, strict=True) if hold.held
        ]
        for _, hold in mine:
            hold.held = hold.duty = False
        self._duties_until_s = -math.inf
        self._notify_duties()
        results = await asyncio.gather(
            self.leases.withdraw(self.instance),
            *(self.leases.release(shard, hold.driver) for shard, hold in mine),
            return_exceptions=True,
        )
        failures = self._sort_failures(results)
        if failures:
            self.log.warning("lease.not_released", shards=len(failures), reason=failures[0].reason)

    async def _announce(self) -> None:
        before_s = self.clock()
        seen = await self.leases.announce(self.instance)
        self._announced_s, self._duties_until_s = before_s, -math.inf
        now_s, longest_ms = self.clock(), self._quiet_s * 1000
        awake = {name for name, silent_ms in seen.items() if silent_ms <= longest_ms}
        self._is_one_silent = len(awake) < len(seen)
        self._silent = {
            name: now_s + (self.lease_ms - silent_ms) / 1000
            for name, silent_ms in seen.items()
            if name not in awake and silent_ms < self.lease_ms
        }
        names = tuple(sorted({*awake, self.instance}))
        if names != self._awake:
            self._awake = names
            self._wanted = choose_duties(self.instance, names)
            self.log.info("duties.spread", instances=len(names), wanted=len(self._wanted))

    async def _extend_all(self, shards: Iterable[Shard] = ALL_SHARDS) -> list[StoreUnavailable]:
        """Extends them together, then retries each that failed quickly: a closed connection is opened again."""
        before_s = self.clock()
        living = self._list_living()
        requests = [self._make_request(shard, living) for shard in shards]
        answers = await self.leases.extend_each(requests, self.lease_ms)
        failed: dict[Shard, BaseException | None] = {}
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                failed[request.shard] = answer
                if isinstance(answer, RecordDamaged) and not self._is_away:
                    self.log.error("lease.damaged", shard=request.shard.tag, reason=answer.reason)
            else:
                self._note(request, answer, before_s)
        results = [*failed.values()]
        if self.clock() - before_s < _SILENT_S:
            results = await asyncio.gather(*map(self._extend, failed), return_exceptions=True)
        self._notify_duties()
        self._log_lost()
        return self._sort_failures(results)

    def _list_urgent(self) -> list[Shard]:
        """All except most resting leases; after a standstill all, since other instances may have taken the duties."""
        last_s, self._extended_s = self._extended_s, self.clock()
        self._round += 1
        if self._is_away or self._is_one_silent or self._extended_s - last_s > self._quiet_s:
            self._is_at_rest = False
            return [*ALL_SHARDS]
        awake = {
            shard
            for shard, hold in zip(ALL_SHARDS, self._holds, strict=True)
            if not (hold.held and hold.rests)
            or hold.duty != (shard in self._wanted)
            or not self.is_quiet(shard)
        }
        self._is_at_rest = not awake
        turn = self._round % _REST_ROUNDS
        return [one for one in ALL_SHARDS if one in awake or one.number % _REST_ROUNDS == turn]

    @property
    def _quiet_s(self) -> float:
        """An instance that was silent for longer, in seconds, may have died."""
        return self.lease_ms / 1000 / _EXTENSIONS_PER_LEASE * _QUIET

    async def _empty_sets(self) -> list[StoreUnavailable]:
        refused, self._refused = self._refused, set()
        if self.empty_set is None or not refused:
            return []
        results = await asyncio.gather(*map(self.empty_set, refused), return_exceptions=True)
        return self._sort_failures(results)

    async def _extend(self, shard: Shard) -> None:
        before_s, request = self.clock(), self._make_request(shard, self._list_living())
        self._note(request, await self.leases.extend(request, self.lease_ms), before_s)

    def _list_living(self) -> tuple[str, ...]:
        return tuple(sorted({*self._awake, *self._silent, self.instance}))

    def _make_request(self, shard: Shard, living: tuple[str, ...]) -> LeaseRequest:
        hold, wants_duty = self._holds[shard.number], shard in self._wanted
        return LeaseRequest(
            shard,
            hold.driver,
            opens=not hold.held,
            wants_duty=wants_duty,
            seen=hold.seen,
            may_rest=self.clock() - hold.asked_s > _ASKED_S and self.is_quiet(shard),
            living=living if wants_duty else (),
        )

    def settle(self, shard: Shard, epoch: int) -> None:
        """The local runs of a shard were compared with the set under this epoch; the next extension stores that."""
        self._holds[shard.number].seen = epoch

    def _note(self, request: LeaseRequest, answer: Lease | LeaseLost, before_s: float) -> None:
        shard = request.shard
        hold = self._holds[shard.number]
        self._duties_until_s = -math.inf
        match answer:
            case Lease(duty=duty):
                self._compare(shard, hold, answer)
                is_unchanged = answer.found_ms == answer.until_ms
                hold.rests = request.may_rest and is_unchanged and hold.asked_s < before_s
                hold.held, hold.duty, hold.extended_s = True, duty, before_s
                leases = _REST_LEASES if hold.rests else 1
                hold.until_s = before_s + self.lease_ms / 1000 * leases
            case LeaseLost():
                was_held, hold.held, hold.duty = hold.held, False, False
                if was_held:
                    hold.driver = Incarnation(self.instance, hold.driver.number + 1)
                    self._lost.append(shard)
                    self.on_lost(shard)
                else:
                    self._refused.add(shard)

    def _compare(self, shard: Shard, hold: LeaseHold, answer: Lease) -> None:
        """Detects a loss: a missing extension that was acknowledged proves that the shard has lost its tail."""
        known = answer.epoch if hold.epoch is None else hold.epoch
        if hold.epoch is None:
            # Nothing was driven in it by this instance before.
            hold.seen = answer.epoch
        if hold.held and answer.found_ms is not None and answer.found_ms < hold.until_ms:
            self.on_loss(shard, known)
        hold.until_ms, hold.epoch = answer.until_ms, answer.epoch
        if answer.epoch != known:
            self.on_epoch(shard, answer.epoch)

    def _is_held(self, hold: LeaseHold) -> bool:
        return hold.held and self.clock() < hold.until_s

    def _notify_duties(self) -> None:
        duties = self.duties
        if duties != self._known_duties:
            self._known_duties = duties
            self.on_duties()

    def _log_lost(self) -> None:
        # One line for all: when an outage of the store outlasts the leases, every one of them is lost at once.
        lost, self._lost = sorted(shard.tag for shard in self._lost), []
        if lost:
            self.log.warning("lease.lost", shards=len(lost), tags=" ".join(lost))

    @staticmethod
    def _sort_failures(results: Iterable[BaseException | None]) -> list[StoreUnavailable]:
        """Returns the failures of the store; raises any other exception."""
        failures: list[StoreUnavailable] = []
        for result in results:
            if isinstance(result, StoreUnavailable):
                failures.append(result)
            elif result is not None:
                raise result
        return failures


def choose_duties(instance: str, living: Iterable[str]) -> frozenset[Shard]:
    """The shards that rank ``instance`` first among ``living``; every instance computes the same ranks."""
    names = tuple(living)
    return frozenset(
        shard
        for shard in ALL_SHARDS
        if max(names, key=lambda name: _rank(shard, name), default=instance) == instance
    )


def _rank(shard: Shard, instance: str) -> bytes:
    return hashlib.sha256(f"{shard.tag} {instance}".encode()).digest()
