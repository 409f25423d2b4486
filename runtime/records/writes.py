"""The one write path: read the entities, decide, append; on a conflict read and decide again (I2).

All writers of facts use it: commands, run drivers, due rows, takeovers.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, assert_never, get_args

import structlog

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import (
    Again,
    Appended,
    AppendResult,
    Conflict,
    Early,
    EntityKind,
    EntityRef,
    Fenced,
    Late,
    StaleEpoch,
    Unclaimed,
)
from passerelle.core.chunks import in_chunks
from passerelle.core.decision import Decision, Held
from passerelle.core.errors import (
    IdempotencyConflict,
    RecordDamaged,
    StoreUnavailable,
    WriteConflict,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard, shard_of
from passerelle.core.index_changes import derive_index_changes
from passerelle.core.machine import KIND_OF, Record, read_loaded
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import value
from passerelle.runtime.records.action_index import ActionIndex
from passerelle.runtime.records.feed_snapshot import FeedSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from passerelle.core.batch import (
        Batch,
        DueChange,
        DueClaim,
        Fence,
        IdempotencyRow,
        Loaded,
        PackedBatch,
        RunMove,
        TargetChange,
    )
    from passerelle.core.ids import Shard
    from passerelle.core.index_changes import IndexChanges
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.ports.log import EventLog
    from passerelle.core.ports.projections import FeedTail
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.task_fields import TurnInput

T = TypeVar("T")
R = TypeVar("R", bound=Record)
MAX_TRIES: Final = 20
_PAUSE_MS: Final = 32
_READ_AT_ONCE: Final = 100
_LINE_S: Final = 2.0
"""How long to wait for a writer lock, whose holder may be waiting for the store."""
_MOST_REACHED: Final = 4096
_IDEMPOTENCY: Final = "idempotency"
_NAMES: Final[dict[type[AppendResult], str]] = {
    kind: kind.__name__.lower() for kind in get_args(AppendResult)
}
"""Names under which append outcomes are counted."""


@frozen
class AppendOptions:
    """What a batch contains besides its facts."""

    fence: Fence | None = None
    claim: DueClaim | None = None
    not_after_ms: int | None = None
    runs: tuple[RunMove, ...] = ()
    due: tuple[DueChange, ...] = ()
    targets: tuple[TargetChange, ...] = ()
    idem: IdempotencyRow | None = None


@frozen
class Written:
    """A stored batch and the entities after it. ``first`` and ``last`` are 0 if a repeat does not know them."""

    held: dict[EntityRef, Held]
    first: int
    last: int
    now_ms: int
    chain: str = ""
    repeated: bytes | None = None
    """The stored result of an idempotency key that was used before for the same request."""
    unchanged: bool = False
    """Whether there was nothing to store: the entities are as they were read."""
    frames: tuple[JsonObject, ...] = ()
    """The frames that callers see of it, if the decision names them."""
    turn: tuple[str, TurnInput] | None = None
    """The turn of the batch, and its message to the task."""


@value
class Unread:
    """The entities written by a packed batch, decoded from its bytes on first use: most are never used."""

    log: EventLog
    packed: PackedBatch
    first: int
    refs: tuple[EntityRef, ...]

    def read(self) -> dict[EntityRef, Held]:
        """The entities, as ``Writes.load`` would return them."""
        written = self.log.unpack(self.packed, self.first)
        return _to_held(entity for entity in written if entity.ref in self.refs)


WriteRefusal: TypeAlias = Fenced | Unclaimed | Late
Outdated: TypeAlias = Conflict | StaleEpoch | Early
"""The decision is based on outdated state: read and decide again."""
Body: TypeAlias = "Callable[[Decision], AppendOptions]"


class WriterLock(Protocol):
    """A fair lock: one writer at a time, in the order of the calls."""

    async def acquire(self) -> None:
        """Returns once the caller holds the lock."""
        ...

    def release(self) -> None:
        """Passes the lock to the next waiter."""
        ...


async def _ask_nobody_to_yield(_held: Mapping[EntityRef, Held]) -> None:
    """For an instance without others."""


@dataclass(slots=True)
class Writes:
    """Reads and writes entities over the log.

    ``tally`` is called for each append with its result, its seconds, and the reason if the store is unavailable.
    """

    log: EventLog
    clock: Clock
    ids: Ids
    runtime_id: str
    tally: Callable[[str, float, str], None] = field(default=lambda _result, _seconds, _why: None)
    wake_duties: Callable[[Shard], None] = field(default=lambda _shard: None)
    """Called with the shard of a stored batch that needs prompt follow-up: an approval for its inbox, a webhook, a due
    row that is due now. Everything else waits for the next regular visit."""
    action_index: ActionIndex = field(default_factory=ActionIndex)
    on_feed_snapshot: Callable[[FeedSnapshot], None] = field(default=lambda _seen: None)
    """Called with each stored batch that a projection has to process, and the end of the feed after it."""
    shard_ms: Callable[[Shard], int] | None = None
    """The clock of a shard's primary, in ms; None: ``clock`` is that of all."""
    find_writer_lock: Callable[[EntityRef], WriterLock | None] = field(default=lambda _ref: None)
    """The lock of a local writer that appends to an entity without reading it before each append."""
    ask_to_yield: Callable[[Mapping[EntityRef, Held]], Awaitable[None]] = field(
        default=_ask_nobody_to_yield
    )
    """Called after an append has lost: asks writers in other instances that append without reading to yield."""
    arrivals: InboxArrivals | None = None
    """Records approvals that are opened here; None: no inbox is read."""
    _reached: dict[str, str] = field(default_factory=dict["str", "str"])
    """Times of last events of sessions that are ahead of this clock."""

    async def load(self, refs: Iterable[EntityRef]) -> dict[EntityRef, Held]:
        """The entities as stored now; an entity that does not exist has no record."""
        held = _to_held(await self.log.load(list(refs)))
        self._note_questions(held)
        return held

    async def load_one(self, ref: EntityRef) -> Held:
        """The entity as stored now; without a record if it does not exist."""
        return (await self.load([ref]))[ref]

    async def read(self, kind: type[R], name: str) -> R | None:
        """The record of an entity as stored now; None if there is none, or ``name`` is no id."""
        return (await self.read_all(kind, (name,))).get(name)

    async def read_all(self, kind: type[R], names: Iterable[str]) -> dict[str, R]:
        """Records by their ids, in the order of ``names``, a hundred at a time; absent ones are left out."""
        refs = [EntityRef(KIND_OF[kind], one) for one in dict.fromkeys(names) if read_shard(one)]
        found: dict[str, R] = {}
        for part in in_chunks(refs, _READ_AT_ONCE):
            held = await self.load(part)
            for ref, one in held.items():
                if isinstance(one.record, kind):
                    found[ref.id] = one.record
        return found

    def _note_questions(self, held: Mapping[EntityRef, Held]) -> None:
        for ref, one in held.items():
            if ref.kind is EntityKind.ACTION and isinstance(one.record, ActionRecord):
                self.action_index.note(one.record)

    def begin(self, session: str, held: Mapping[EntityRef, Held]) -> Decision:
        """Starts a decision over held entities."""
        return Decision(
            session,
            held,
            ids=self.ids,
            shard=shard_of(session),
            now_ms=self.read_ms(shard_of(session)),
            runtime_id=self.runtime_id,
            not_before=self._reached.get(session, ""),
        )

    def read_ms(self, shard: Shard) -> int:
        """The time in a shard, by which deadlines stored there are judged."""
        return self.clock.now_ms() if self.shard_ms is None else self.shard_ms(shard)

    async def commit(
        self,
        decision: Decision,
        held: Mapping[EntityRef, Held],
        terms: AppendOptions,
        op: str | None = None,
    ) -> Written | Outdated | WriteRefusal:
        """Appends a decision over ``held``; a conflict is returned as a value, for callers that decide again.

        ``op`` is the operation id if the same append was tried before.
        """
        shard = shard_of(decision.session)
        op = op or self.ids.mint("op", shard)
        batch, standing = compose(decision, held, terms, op, self.log.shard_epoch(shard))
        result = await self.append(batch, feed=standing.feed)
        written = await self._conclude(decision, op, result)
        if isinstance(result, Appended) and isinstance(written, Written) and result.tail:
            self.on_feed_snapshot(_make_snapshot(batch, result, result.tail, written))
        if isinstance(written, Written):
            self._note_opened(held, written.held)
        return written

    def _note_opened(
        self, before: Mapping[EntityRef, Held], after: Mapping[EntityRef, Held]
    ) -> None:
        if self.arrivals is None:
            return
        for ref, one in after.items():
            if ref.kind is EntityKind.ACTION:
                known = before.get(ref)
                self.arrivals.note_opened(known.record if known else None, one.record)

    async def append(
        self, batch: Batch | PackedBatch, *, feed: bool, pause_s: float | None = None
    ) -> AppendResult:
        """Appends and reports the outcome. ``feed``: whether a projection has to process the batch.

        ``pause_s`` is for callers that cannot retry later: while the outcome is unknown, the same operation is sent
        again after this pause.

        Raises:
            StoreUnavailable: it was not stored; without ``pause_s``, or the outcome is unknown.
        """
        unknown = False
        while True:
            began_s = monotonic()
            try:
                result = await self.log.append(batch)
            except StoreUnavailable as error:
                self.tally("unavailable", monotonic() - began_s, error.reason)
                unknown = unknown or error.wrote == "unknown"
                if pause_s is None or not unknown:
                    raise
                await asyncio.sleep(pause_s)
                continue
            self.tally(_NAMES[type(result)], monotonic() - began_s, "")
            if isinstance(result, Early):
                self._note_reached(batch.session, result.at)
            if isinstance(result, Appended) and (feed or result.woken):
                self.wake_duties(batch.shard)
            return result

    def _note_reached(self, session: str, at: str) -> None:
        if len(self._reached) >= _MOST_REACHED:
            del self._reached[next(iter(self._reached))]
        self._reached[session] = at

    async def commit_until_known(
        self,
        decision: Decision,
        held: Mapping[EntityRef, Held],
        terms: AppendOptions,
        pause_s: float,
    ) -> Written | Outdated | WriteRefusal:
        """``commit`` for callers that cannot retry later: while the outcome is unknown, it repeats the same operation.

        Deciding again would write everything twice if the first try was stored.

        Raises:
            StoreUnavailable: it was not stored.
        """
        op = self.ids.mint("op", shard_of(decision.session))
        unknown = False
        while True:
            try:
                outcome = await self.commit(decision, held, terms, op)
            except StoreUnavailable as error:
                unknown = unknown or error.wrote == "unknown"
                if not unknown:
                    raise
                await asyncio.sleep(pause_s)
                continue
            if unknown and isinstance(outcome, Conflict) and await self._is_stored(decision, held):
                # Another write followed, so the entity no longer has this operation id.
                now = await self.load(decision.states)
                self._note_opened(held, now)
                return Written(now, 0, 0, decision.now_ms)
            return outcome

    async def _is_stored(self, decision: Decision, held: Mapping[EntityRef, Held]) -> bool:
        """Whether the first event of a decision is in its stream."""
        if not decision.events:
            return False
        stream = StreamRef(StreamKind.SESSION, decision.session)
        wanted = decision.events[0].event_id
        tasks = [one.record for one in held.values() if isinstance(one.record, TaskRecord)]
        after = max((task.last for task in tasks), default=0)
        while page := await self.log.read_page(stream, after):
            if any(entry.event_id == wanted for entry in page):
                return True
            after = page[-1].sequence
        return False

    async def _conclude(
        self, decision: Decision, op: str, result: AppendResult
    ) -> Written | Outdated | WriteRefusal:
        match result:
            case Appended(first=first, last=last, chain=chain, now_ms=now_ms):
                held = decision.settle(op, first)
                self._note_questions(held)
                return Written(held, first, last, now_ms, chain)
            case Again(result=stored):
                held_now = await self.load(decision.states)
                return Written(held_now, 0, 0, decision.now_ms, repeated=stored)
            case Conflict(entity=entity):
                if entity == _IDEMPOTENCY:
                    raise IdempotencyConflict("the idempotency key was used for another request")
                return result
            case Fenced() | Unclaimed() | Late() | StaleEpoch() | Early():
                return result
            case _:
                assert_never(result)

    async def pause_before_retry(self, tries: int) -> None:
        """Waits a random moment after a lost try, so that competing writers do not collide again and again."""
        limit_ms = min(2**tries, _PAUSE_MS)
        await asyncio.sleep(self.ids.draw(8) / 256 * limit_ms / 1000)

    async def decide(
        self,
        session: str,
        refs: Iterable[EntityRef],
        body: Body,
        known: Mapping[EntityRef, Held] | None = None,
    ) -> Written | WriteRefusal:
        """Reads, decides and appends, again after each conflict. ``known`` are the entities, just read.

        After a lost try it takes the locks of local writers that append without reading, or it might lose each time.
        The caller must not hold one of these locks.

        Raises:
            Conflict: another writer was faster each time; nothing is written.
            StoreUnavailable, or an error of ``body``: nothing is written.
        """
        wanted = list(refs)
        for tries in range(MAX_TRIES):
            async with self._hold_writer_locks(wanted) if tries else nullcontext():
                held = dict(known) if known and not tries else await self.load(wanted)
                decision = self.begin(session, held)
                terms = body(decision)
                if decision.changes_nothing and terms == AppendOptions():
                    return Written(held, 0, 0, decision.now_ms, unchanged=True)
                outcome = await self.commit(decision, held, terms)
            if not isinstance(outcome, Outdated):
                if any(row.at_ms is not None and row.at_ms <= decision.now_ms for row in terms.due):
                    self.wake_duties(
                        shard_of(session)
                    )  # a row that is due now does not wait for a regular visit
                return outcome
            await self.ask_to_yield(held)
            await self.pause_before_retry(tries)
        raise WriteConflict(
            "the record was changed by others again and again; try once more", session=session
        )

    async def change(self, session: str, refs: Iterable[EntityRef], body: Body) -> Written:
        """The same for a body that sets no fence, claim or time limit: nothing else is refused."""
        outcome = await self.decide(session, refs, body)
        if not isinstance(outcome, Written):
            raise StoreUnavailable(f"a change was refused: {type(outcome).__name__}", "no")
        return outcome

    @asynccontextmanager
    async def _hold_writer_locks(self, refs: Iterable[EntityRef]) -> AsyncGenerator[None]:
        """Blocks the local writers of ``refs``, unless one holds its lock for too long: then both write."""
        taken: list[WriterLock] = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINE_S):
                    for ref in sorted(refs, key=lambda one: one.id):
                        line = self.find_writer_lock(ref)
                        if line is not None and line not in taken:
                            await line.acquire()
                            taken.append(line)
            yield
        finally:
            for line in taken:
                line.release()


def _make_snapshot(
    batch: Batch, stored: Appended, tail: FeedTail, written: Written
) -> FeedSnapshot:
    return FeedSnapshot(
        shard=batch.shard,
        session=batch.session,
        first=stored.first,
        last=stored.last,
        events=batch.events,
        records={ref: held.record for ref, held in written.held.items()},
        tail=tail,
    )


def _to_held(loaded: Iterable[Loaded]) -> dict[EntityRef, Held]:
    return {one.ref: Held(one.stamp, read_record(one), one.fields, one.archive) for one in loaded}


def read_record(loaded: Loaded) -> Record | None:
    """As ``read_loaded``; a record that cannot be read is logged, since callers only see that the store failed."""
    try:
        return read_loaded(loaded)
    except RecordDamaged as error:
        structlog.get_logger().error("record.damaged", of=loaded.ref.id, reason=error.reason)
        raise


def compose(
    decision: Decision,
    held: Mapping[EntityRef, Held],
    terms: AppendOptions,
    op: str,
    shard_epoch: int,
) -> tuple[Batch, IndexChanges]:
    """The batch of a decision over ``held``, and the index changes that follow from its record changes."""
    before: dict[EntityRef, Record | None] = {ref: one.record for ref, one in held.items()}
    types = (event.type for event in decision.events)
    standing = derive_index_changes(before, decision.states, types)
    batch = decision.compose(
        op,
        shard_epoch,
        fence=terms.fence,
        claim=terms.claim,
        not_after_ms=terms.not_after_ms,
        runs=terms.runs,
        due=terms.due,
        opened=standing.opened,
        task_times=standing.task_times,
        targets=terms.targets,
        idem=terms.idem,
        feed=standing.feed,
        index=standing.index,
    )
    return batch, standing
