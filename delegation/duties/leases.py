"""The leases of this instance: one per shard, all extended together several times a lease.

A lease is held by the server's clock. Here its end is reckoned by this process's own monotonic clock, from before
the extension was sent, so that we never think longer than the server that it holds. What was driven in a shard whose
lease is lost belongs to somebody else: the incarnation is counted up, and those who drive there are told to drop it.

Duties of shards are spread over the living instances by rendezvous hashing: each ranks the instances for a shard and
asks for the shards that rank it first. Two with different views ask for the same one; the store gives it to one.

A duty is held by the one word of its owner that it lives, for all shards. An instance that has been silent for a while
may have died; the others ask for its duties at the moment when it has been silent for a lease: runs of the dead wait
for no round.

An instance that stood still (a machine that slept, a process that got no CPU) finds that its leases have run out
unseen. Who opens a run then has them extended at once, and does not wait for the next round.

A shard in which we drive nothing and have written nothing lately costs no writes: our lease rests there, and is woken
by whatever enters our set (``store/lua/lease.lua``). Nobody takes it over for minutes, so it is asked for seldom and
trusted for longer: until our incarnation is asked for, without which nothing enters our set. From then on it is a
lease like any other, and no longer than one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import Incarnation
from passerelle.core.errors import StoreUnavailable
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
"""A lease that rests, in a shard where nothing was written lately, is extended once in so many rounds."""
_EXTENSIONS_AT_REST: Final = 5
"""Rounds in each lease while every one rests: at the moments at which other loops look too."""
_REST_LEASES: Final = 4
"""A lease that rests is trusted for so many leases from its last extension; the store keeps it for sixty and more."""
_ASKED_S: Final = 90.0
"""Nothing that was made for our incarnation so long ago is still on its way to the store: its lease may rest again."""
_HASTE: Final = 4
"""So many times as often while somebody may have died."""
_QUIET: Final = 3
"""An instance that has missed so many extensions may have."""
_AT_LEAST_S: Final = 0.02
"""Between two claims of duties that are about to be free."""
_SILENT_S: Final = 1.0
"""A store that has not answered for so long is asked by the next extension, and not at once again."""
_REGAIN_TRIES: Final = 3
"""One extension finds a lease lost, the next one is refused over what its set still has, the third one opens it."""
_SEND_SHARE: Final = 3
"""A send starts only while one part in so many of the lease is left."""


@dataclass(slots=True)
class LeaseHold:
    """What we know of our lease in one shard. ``until_s`` is a time of the keeper's clock.

    ``driver`` is who we are there until the lease is lost.
    """

    driver: Incarnation
    held: bool = False
    until_s: float = 0.0
    duty: bool = False
    until_ms: int = 0
    """Until when it is held by the store's clock: what the store says before the next extension."""
    epoch: int | None = None
    """Of the shard, as the store told it last."""
    seen: int = 0
    """The epoch since which what is driven here was compared with our set."""
    extended_s: float = -math.inf
    """When the last extension that was answered began."""
    rests: bool = False
    """Whether the last extension wrote nothing, and nobody has asked for ``driver`` since."""
    asked_s: float = -math.inf
    """When somebody asked for ``driver`` last: its run may be on its way into our set."""


@dataclass(slots=True)
class LeaseKeeper:
    """Opens, extends and gives back the leases of ``instance``. ``clock`` is monotonic, in seconds.

    ``on_lost(shard)`` is called when another instance has what was driven in a shard, ``on_duties()`` when the set of
    shards whose duties are ours has changed. ``empty_set(shard)`` takes the runs out of our own lost set: with no
    other instance alive nobody else would, and the lease cannot be opened before.
    """

    leases: Leases
    instance: str
    clock: Callable[[], float]
    on_lost: Callable[[Shard], None]
    log: FilteringBoundLogger
    lease_ms: int = LEASE_MS
    on_duties: Callable[[], None] = lambda: None
    empty_set: Callable[[Shard], Awaitable[None]] | None = None
    on_loss: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Told of a shard that does not have an extension which was acknowledged, and under which epoch that was."""
    on_epoch: Callable[[Shard, int], None] = lambda _shard, _epoch: None
    """Told of the new epoch of a shard."""
    is_quiet: Callable[[Shard], bool] = lambda _shard: True
    """Whether nothing was written here lately in a shard: a loss of what was has to show in our set."""
    _holds: tuple[LeaseHold, ...] = field(init=False)
    """By the number of the shard."""
    _is_away: bool = False
    """Whether the last extension failed: an outage is said once."""
    _is_one_silent: bool = False
    _awake: tuple[str, ...] = ()
    """Who has said lately that it lives: duties are spread over these."""
    _silent: dict[str, float] = field(default_factory=dict[str, float])
    """Who has not, and when its duties are free unless it does."""
    _wanted: frozenset[Shard] = frozenset()
    _known_duties: frozenset[Shard] = frozenset()
    _duties: frozenset[Shard] = frozenset()
    _duties_until_s: float = -math.inf
    """Until then ``_duties`` are what a look at every lease would find, unless one of them changes."""
    _refused: set[Shard] = field(default_factory=set["Shard"])
    _round: int = 0
    _extended_s: float = math.inf
    """When the last round began."""
    _said_s: float = -math.inf
    """When we last said that we live."""
    _is_at_rest: bool = False
    """Whether every lease rested in the last round."""
    _extending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One at a time: an answer that is older than a lease opened since would read as its loss."""
    _regain_failed_s: float = -math.inf
    """When the store last gave no answer to somebody who wanted a lease back."""
    _lost: list[Shard] = field(default_factory=list["Shard"])
    """Lost by the extension under way, and not yet told."""

    def __post_init__(self) -> None:
        # The same object in all of them, since it is compared for every message.
        first = Incarnation(self.instance, 1)
        self._holds = tuple(LeaseHold(first) for _ in ALL_SHARDS)

    def drives(self, shard: Shard) -> Incarnation:
        """Our present incarnation in a shard, the same object while it lasts: the fence of what is driven there.

        Raises:
            StoreUnavailable: we hold no lease there; nothing may be opened.
        """
        hold, now_s = self._holds[shard.number], self.clock()
        if not hold.held or now_s >= hold.until_s:
            reason = "the lease of this instance is lost"
            raise StoreUnavailable(reason, "no")
        hold.asked_s = now_s
        if hold.rests:
            # The store counts a lease from when the run enters our set, which is after this.
            hold.rests, hold.until_s = False, min(hold.until_s, now_s + self.lease_ms / 1000)
        return hold.driver

    def find_sender(self, shard: Shard) -> Incarnation | None:
        """Our incarnation in a shard where an act that cannot be undone may start: a third of the lease is left."""
        hold = self._holds[shard.number]
        left_s = hold.until_s - self.clock()
        return hold.driver if hold.held and left_s * 1000 * _SEND_SHARE >= self.lease_ms else None

    def holds(self, shard: Shard) -> bool:
        """Whether our lease in a shard is open, as far as the store has told us: it may have run out unseen."""
        return self._holds[shard.number].held

    @property
    def held(self) -> int:
        """In how many shards our lease is open and has not run out."""
        return sum(map(self._is_held, self._holds))

    @property
    def duties(self) -> frozenset[Shard]:
        """The shards whose relay and due set are ours now; the same object for as long as that stays so."""
        now_s = self.clock()
        if now_s >= self._duties_until_s:
            self._look_at_duties(now_s)
        return self._duties

    def _look_at_duties(self, now_s: float) -> None:
        lease_s = self.lease_ms / 1000
        mine = {
            shard: until_s
            for shard, hold in zip(ALL_SHARDS, self._holds, strict=True)
            if hold.duty
            and hold.held
            # A lease that rests is trusted for longer; others go by our word that we live.
            and now_s < (until_s := min(hold.until_s, max(hold.extended_s, self._said_s) + lease_s))
        }
        self._duties_until_s = min(mine.values(), default=math.inf)
        if mine.keys() != self._duties:
            self._duties = frozenset(mine)

    @property
    def awake(self) -> tuple[str, ...]:
        """The instances that have said lately that they live, this one among them."""
        return self._awake

    @property
    def pause_s(self) -> float:
        """Until the next extension: shorter while another instance is silent, or has a duty that should be ours.

        Its lease runs out at a time of its own, and its runs wait for the first instance that sees it. Longer while
        every lease rests.
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
        """Whether no other instance has said lately that it lives."""
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
        """Extends until cancelled. While the store is away it goes on trying, and ends nothing."""
        while True:
            next_s = self.clock() + self.pause_s
            while (claim_s := self.claim_s) < next_s:
                await asyncio.sleep(max(claim_s - self.clock(), _AT_LEAST_S))
                await self.claim()
            await asyncio.sleep(next_s - self.clock())
            await self.extend()

    async def claim(self) -> None:
        """Asks for the duties that should be ours and are not; what fails is left to the next extension."""
        now_s = self.clock()
        self._silent = {name: free_s for name, free_s in self._silent.items() if free_s > now_s}
        async with self._extending:
            await self._extend_all(self._wanted - self.duties)

    async def regain(self, shard: Shard) -> None:
        """Extends what has run out unseen, if our lease in a shard has; ``drives`` says whether it is held then.

        While the store is away nothing is asked: the next extension finds out when it is back. All that wait here share
        one question, also where it is not answered.
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
        """When the duties of the next silent instance are free, by the keeper's clock."""
        return min(self._silent.values(), default=math.inf)

    async def extend(self) -> None:
        """One extension of all leases; what fails is tried again by the next one."""
        try:
            await self._announce()
        except StoreUnavailable as error:
            # Not known who lives: the last view holds. Leases are tried all the same, also those that rest.
            self._extended_s = -math.inf
            self.log.info("lease.view_old", reason=error.reason)
        async with self._extending:
            failures = await self._extend_all(self._list_urgent())
            failures += await self._empty_sets()
        if failures and not self._is_away:
            self.log.warning("lease.held", shards=len(failures), reason=failures[0].reason)
        self._is_away = bool(failures)

    async def release(self) -> None:
        """Ends every lease, so that others take over without waiting; for shutdown."""
        mine = [
            (shard, hold) for shard, hold in zip(ALL_SHARDS, self._holds, strict=True) if hold.held
        ]
        for _, hold in mine:
            hold.held = hold.duty = False
        self._duties_until_s = -math.inf
        self._tell_duties()
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
        self._said_s, self._duties_until_s = before_s, -math.inf
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
        """Together, then each by itself what failed at once: a connection that was closed is opened again."""
        before_s = self.clock()
        living = self._list_living()
        requests = [self._wish(shard, living) for shard in shards]
        answers = await self.leases.extend_each(requests, self.lease_ms)
        failed: dict[Shard, BaseException | None] = {}
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                failed[request.shard] = answer
            else:
                self._note(request, answer, before_s)
        results = [*failed.values()]
        if self.clock() - before_s < _SILENT_S:
            results = await asyncio.gather(*map(self._extend, failed), return_exceptions=True)
        self._tell_duties()
        self._tell_lost()
        return self._sort_failures(results)

    def _list_urgent(self) -> list[Shard]:
        """All, but for most of those that rest; after a standstill all, since others may have taken our duties."""
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
        """An instance that was silent for longer may have died."""
        return self.lease_ms / 1000 / _EXTENSIONS_PER_LEASE * _QUIET

    async def _empty_sets(self) -> list[StoreUnavailable]:
        refused, self._refused = self._refused, set()
        if self.empty_set is None or not refused:
            return []
        results = await asyncio.gather(*map(self.empty_set, refused), return_exceptions=True)
        return self._sort_failures(results)

    async def _extend(self, shard: Shard) -> None:
        before_s, request = self.clock(), self._wish(shard, self._list_living())
        self._note(request, await self.leases.extend(request, self.lease_ms), before_s)

    def _list_living(self) -> tuple[str, ...]:
        return tuple(sorted({*self._awake, *self._silent, self.instance}))

    def _wish(self, shard: Shard, living: tuple[str, ...]) -> LeaseRequest:
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
        """What is driven in a shard was compared with our set under this epoch; the next extension says so."""
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
        """An extension that was acknowledged and is gone proves that the shard has lost the tail of its history."""
        known = answer.epoch if hold.epoch is None else hold.epoch
        if hold.epoch is None:
            # Nothing was driven here before.
            hold.seen = answer.epoch
        if hold.held and answer.found_ms is not None and answer.found_ms < hold.until_ms:
            self.on_loss(shard, known)
        hold.until_ms, hold.epoch = answer.until_ms, answer.epoch
        if answer.epoch != known:
            self.on_epoch(shard, answer.epoch)

    def _is_held(self, hold: LeaseHold) -> bool:
        return hold.held and self.clock() < hold.until_s

    def _tell_duties(self) -> None:
        duties = self.duties
        if duties != self._known_duties:
            self._known_duties = duties
            self.on_duties()

    def _tell_lost(self) -> None:
        # One line for all: an outage of the store that outlasts the leases loses every one of them at once.
        lost, self._lost = sorted(shard.tag for shard in self._lost), []
        if lost:
            self.log.warning("lease.lost", shards=len(lost), tags=" ".join(lost))

    @staticmethod
    def _sort_failures(results: Iterable[BaseException | None]) -> list[StoreUnavailable]:
        """Failures of the store; any other one is a fault and goes up."""
        failures: list[StoreUnavailable] = []
        for result in results:
            if isinstance(result, StoreUnavailable):
                failures.append(result)
            elif result is not None:
                raise result
        return failures


def choose_duties(instance: str, living: Iterable[str]) -> frozenset[Shard]:
    """The shards that rank ``instance`` first among ``living``; every instance finds the same ranks."""
    names = tuple(living)
    return frozenset(
        shard
        for shard in ALL_SHARDS
        if max(names, key=lambda name: _rank(shard, name), default=instance) == instance
    )


def _rank(shard: Shard, instance: str) -> bytes:
    return hashlib.sha256(f"{shard.tag} {instance}".encode()).digest()
