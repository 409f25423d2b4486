"""The one write path: read the entities, decide, append; on a conflict read and decide again (I2).

Whoever wants a fact stored comes through here: commands, the drivers of runs, due rows, take-overs.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, assert_never, get_args

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
from passerelle.core.decision import Decision, Held
from passerelle.core.errors import IdempotencyConflict, StoreUnavailable, WriteConflict
from passerelle.core.ids import shard_of
from passerelle.core.index_changes import derive_index_changes
from passerelle.core.machine import read_loaded
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
    from passerelle.core.machine import Record
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.ports.log import EventLog
    from passerelle.core.ports.projections import FeedTail
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.task_fields import TurnInput

T = TypeVar("T")
MAX_TRIES: Final = 20
_PAUSE_MS: Final = 32
_LINE_S: Final = 2.0
"""Whoever stands before us may wait for the store."""
_MOST_REACHED: Final = 4096
_IDEMPOTENCY: Final = "idempotency"
_NAMES: Final[dict[type[AppendResult], str]] = {
    kind: kind.__name__.lower() for kind in get_args(AppendResult)
}
"""What the outcomes of an append are counted as."""


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """What a batch carries beside its facts."""

    fence: Fence | None = None
    claim: DueClaim | None = None
    not_after_ms: int | None = None
    runs: tuple[RunMove, ...] = ()
    due: tuple[DueChange, ...] = ()
    targets: tuple[TargetChange, ...] = ()
    idem: IdempotencyRow | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A stored batch and the entities as they stand now. ``first`` and ``last`` are 0 where a repeat hid them."""

    held: dict[EntityRef, Held]
    first: int
    last: int
    now_ms: int
    chain: str = ""
    repeated: bytes | None = None
    """The stored result of an idempotency key that had been used for the same request."""
    unchanged: bool = False
    """Whether there was nothing to store: the entities are as they were read."""
    frames: tuple[JsonObject, ...] = ()
    """What callers are shown of it, where whoever decided says so."""
    turn: tuple[str, TurnInput] | None = None
    """The turn that came with it, and its message to the task."""


@value
class Unread:
    """Entities as a packed batch has left them, read from its bytes when somebody looks: of most nobody does."""

    log: EventLog
    packed: PackedBatch
    first: int
    refs: tuple[EntityRef, ...]

    def read(self) -> dict[EntityRef, Held]:
        """The entities, as ``Writes.load`` would give them."""
        written = self.log.unpack(self.packed, self.first)
        return _hold(entity for entity in written if entity.ref in self.refs)


WriteRefusal: TypeAlias = Fenced | Unclaimed | Late
Outdated: TypeAlias = Conflict | StaleEpoch | Early
"""What was decided on is not so any more: whoever decided reads again and decides again."""
Body: TypeAlias = "Callable[[Decision], AppendOptions]"


class WriterLock(Protocol):
    """Held by one writer at a time, in the order in which they came."""

    async def acquire(self) -> None:
        """Returns when it is ours."""
        ...

    def release(self) -> None:
        """Hands it to the next one."""
        ...


async def _ask_nobody_to_yield(_held: Mapping[EntityRef, Held]) -> None:
    """Of who has no others."""


@dataclass(slots=True)
class Writes:
    """Reads and writes entities over the log.

    ``tally`` is told of each append: its result, its seconds, and why the store is not available where it is not.
    """

    log: EventLog
    clock: Clock
    ids: Ids
    runtime_id: str
    tally: Callable[[str, float, str], None] = field(default=lambda _result, _seconds, _why: None)
    wake_duties: Callable[[Shard], None] = field(default=lambda _shard: None)
    """Told of the shard of each stored batch of which somebody waits for what follows from it: a question that has to
    reach its inbox, a webhook, a row that is due at once. Everything else is found at the next regular visit."""
    action_index: ActionIndex = field(default_factory=ActionIndex)
    on_feed_snapshot: Callable[[FeedSnapshot], None] = field(default=lambda _seen: None)
    """Told of each stored batch that a projection has to look at, and of what the feed held behind it."""
    shard_ms: Callable[[Shard], int] | None = None
    """The clock of a shard's primary, in ms; None: ``clock`` is that of all."""
    find_writer_lock: Callable[[EntityRef], WriterLock | None] = field(default=lambda _ref: None)
    """Where those stand who write an entity in this process without reading it before each append."""
    ask_to_yield: Callable[[Mapping[EntityRef, Held]], Awaitable[None]] = field(
        default=_ask_nobody_to_yield
    )
    """Has those who do so in other instances give way, after an append to what was read so has lost."""
    arrivals: InboxArrivals | None = None
    """Told of questions that are opened here; None: nobody reads an inbox."""
    _reached: dict[str, str] = field(default_factory=dict["str", "str"])
    """Times that sessions have reached in which this clock was behind the last event."""

    async def load(self, refs: Iterable[EntityRef]) -> dict[EntityRef, Held]:
        """The entities as they are stored now; one that does not exist has no record."""
        held = _hold(await self.log.load(list(refs)))
        self._note_questions(held)
        return held

    def _note_questions(self, held: Mapping[EntityRef, Held]) -> None:
        for ref, one in held.items():
            if ref.kind is EntityKind.ACTION and isinstance(one.record, ActionRecord):
                self.action_index.note(one.record)

    def begin(self, session: str, held: Mapping[EntityRef, Held]) -> Decision:
        """A decision over entities that are held."""
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
        """The time in a shard: deadlines that are written there are judged by it."""
        return self.clock.now_ms() if self.shard_ms is None else self.shard_ms(shard)

    async def commit(
        self,
        decision: Decision,
        held: Mapping[EntityRef, Held],
        terms: AppendOptions,
        op: str | None = None,
    ) -> Written | Outdated | WriteRefusal:
        """Appends what was decided over ``held``; a conflict is a value, for those who decide again.

        ``op`` is the id of the operation when the same append was tried before.
        """
        shard = shard_of(decision.session)
        op = op or self.ids.mint("op", shard)
        batch, standing = compose(decision, held, terms, op, self.log.shard_epoch(shard))
        result = await self.append(batch, feed=standing.feed)
        written = await self._conclude(decision, op, result)
        if isinstance(result, Appended) and isinstance(written, Written) and result.tail:
            self.on_feed_snapshot(_see(batch, result, result.tail, written))
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
        """Appends, and tells of it. ``feed``: whether a projection has to look at what the batch says.

        ``pause_s`` is for those who cannot ask again: while nobody knows whether it was stored, the same operation goes
        out again after such a pause.

        Raises:
            StoreUnavailable: it was not stored; without ``pause_s``, or nobody knows.
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
        """``commit`` for those who cannot ask again: while nobody knows whether it was stored, the same operation.

        Deciding anew would say everything a second time if the first try was stored after all.

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
                # Somebody has written since, so the operation does not stand in the entity any more.
                now = await self.load(decision.states)
                self._note_opened(held, now)
                return Written(now, 0, 0, decision.now_ms)
            return outcome

    async def _is_stored(self, decision: Decision, held: Mapping[EntityRef, Held]) -> bool:
        """Whether the first event of a decision stands in its stream."""
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
        """Waits a random moment after a lost try, so that writers who met do not meet again and again."""
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

        Whoever has lost stands in the line of those who append without reading, or it might lose each time. It must not
        have a place there already.

        Raises:
            Conflict: somebody else was faster each time; nothing is written.
            StoreUnavailable, or whatever ``body`` refuses with: nothing is written.
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
                    )  # what is owed at once waits for no regular visit
                return outcome
            await self.ask_to_yield(held)
            await self.pause_before_retry(tries)
        raise WriteConflict(
            "the record was changed by others again and again; try once more", session=session
        )

    @asynccontextmanager
    async def _hold_writer_locks(self, refs: Iterable[EntityRef]) -> AsyncGenerator[None]:
        """Nobody in the lines of ``refs`` appends meanwhile, unless it has been at that for long: then both try."""
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


def _see(batch: Batch, stored: Appended, tail: FeedTail, written: Written) -> FeedSnapshot:
    return FeedSnapshot(
        shard=batch.shard,
        session=batch.session,
        first=stored.first,
        last=stored.last,
        events=batch.events,
        records={ref: held.record for ref, held in written.held.items()},
        tail=tail,
    )


def _hold(loaded: Iterable[Loaded]) -> dict[EntityRef, Held]:
    return {one.ref: Held(one.stamp, read_loaded(one), one.fields, one.archive) for one in loaded}


def compose(
    decision: Decision,
    held: Mapping[EntityRef, Held],
    terms: AppendOptions,
    op: str,
    shard_epoch: int,
) -> tuple[Batch, IndexChanges]:
    """The batch of what was decided over ``held``, and what follows from its change of records."""
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
