"""Accepts a message: its place, and the task that it opens; retried when others change its context.

One append holds everything before a peer is called: session, thread, task, turn, the policy's judgement, and the
intent to send, with the run in this instance's set. If it is refused nothing is written, and no peer is called (I1,
I9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import object_at
from passerelle.core.batch import (
    Conflict,
    DueChange,
    Early,
    EntityKind,
    EntityRef,
    Fenced,
    RunMove,
    StaleEpoch,
)
from passerelle.core.errors import (
    StoreUnavailable,
    UnsupportedOperation,
    WriteConflict,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.index_changes import make_row
from passerelle.core.session.thread import (
    ThreadRecord,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change
from passerelle.delegation.runs.holds import (
    FIRST_LOOK_MS,
    INTERRUPTS,
    MOST_WAITING,
    QUEUED,
    InterruptRequest,
    QueueHold,
)
from passerelle.delegation.runs.limits import list_limits
from passerelle.delegation.runs.same_work import ASKED, digest_words, find_same
from passerelle.delegation.runs.turn_facts import TurnFacts
from passerelle.delegation.runs.turn_places import locate
from passerelle.delegation.runs.turn_request import OpenedTurn, TurnRequest, read_task
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.idempotency import Once, TurnReceipt
from passerelle.runtime.records.message_summary import digest_request
from passerelle.runtime.records.places import Place, hash_key
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import (
    MAX_TRIES,
    AppendOptions,
    WriteRefusal,
    Writes,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from passerelle.core.batch import Incarnation, TargetChange
    from passerelle.core.decision import Decision, Held
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.runtime.records.writes import Outdated
    from passerelle.webhooks.push_configs import PushConfigs


async def keep_lease(_shard: Shard) -> None:
    """Default of ``regain``: does nothing, for leases that do not expire."""


@dataclass(slots=True)
class Turns:
    """Opens turns with new tasks."""

    writes: Writes
    blobs: Blobs
    push_configs: PushConfigs
    on_unknown_outcome: Callable[[EntityRef], None]
    """Called with a task that may be stored with this instance as its driver, although its caller got an error."""
    list_row: Callable[[IndexRow], Awaitable[None]]
    """Writes an owner-index row at once, for a task that callers see from its first append on."""
    list_waiting: Callable[[str], Awaitable[tuple[str, ...]]]
    """The turns that wait in a thread, in order."""
    regain: Callable[[Shard], Awaitable[None]]
    """Extends the lease of this instance in a shard if it has expired unnoticed."""

    async def open(self, request: TurnRequest) -> OpenedTurn:
        """Accepts the message as a new task, in one append.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
            IdempotencyConflict: the key was used for another request.
        """
        for tries in range(MAX_TRIES):
            place, held = await locate(
                self.writes, request.principal, request.command, request.idem
            )
            if request.command.when_same is not None:
                same = await self._find_same(request, place, held)
                if same is not None:
                    return same
            if request.plan.blockers:
                refs = [EntityRef(EntityKind.TASK, one) for one in request.plan.blockers]
                held = {**held, **await self.writes.load(refs)}
            outcome = await TurnAttempt(self, request, place, held).append()
            if isinstance(outcome, OpenedTurn):
                return outcome
            await self.writes.pause_before_retry(tries)
        raise WriteConflict("the context was changed by others again and again; try once more")

    async def _find_same(
        self, request: TurnRequest, place: Place, held: dict[EntityRef, Held]
    ) -> OpenedTurn | None:
        """The turn of the task of this context that already handles the same request (MK-5).

        The search follows the read of the thread, so a task that is opened meanwhile is found, or changes the thread.
        """
        known = held.get(place.thread)
        thread = known.record if known is not None else None
        if not isinstance(thread, ThreadRecord):
            return None
        found = await find_same(self.writes, thread, request.command.agent, request.command.message)
        if found is None:
            return None
        task, same = found
        record = same.record
        if not isinstance(record, TaskRecord):
            return None
        driver, both = request.plan.drives(place.shard), {**held, task: same}
        return OpenedTurn(place, task, record.turn_id or "", both, driver, repeated=True)

    async def find_repeat(
        self, request: TurnRequest, place: Place | None = None
    ) -> OpenedTurn | None:
        """What the key of a request that is about to be refused has opened before; None: nothing.

        Raises:
            IdempotencyConflict: the key was used for another request.
        """
        if request.idem is None:
            return None
        if place is None:
            place, _ = await locate(self.writes, request.principal, request.command, request.idem)
        key = hash_key(request.principal, request.idem)
        once = Once(key, digest_request(request.command))
        stored = await once.find(self.writes.log, place.shard)
        return None if stored is None else await self.repeat(stored, request.plan)

    async def repeat(self, stored: bytes, plan: Delegation) -> OpenedTurn:
        """The turn that a key has opened before, by its stored receipt."""
        receipt = from_bytes(TurnReceipt, stored)
        task = EntityRef(EntityKind.TASK, receipt.task_id)
        thread = EntityRef(EntityKind.THREAD, receipt.thread_id)
        session = EntityRef(EntityKind.SESSION, receipt.session_id)
        held = await self.writes.load([task, thread])
        place = Place(thread.shard, receipt.context_id, thread, session)
        driver = plan.drives(task.shard)
        return OpenedTurn(place, task, receipt.turn_id, held, driver, repeated=True)


@frozen
class TurnDraft:
    """What one try would store."""

    decision: Decision
    terms: AppendOptions
    spill: BlobOverflow
    task: EntityRef
    turn_id: str
    driver: Incarnation
    shown: JsonObject | None


@dataclass(slots=True)
class TurnAttempt:
    """One try to open a turn with a task."""

    turns: Turns
    request: TurnRequest
    place: Place
    held: dict[EntityRef, Held]
    waiting: tuple[str, ...] | None = None
    """The turns before it, if it waits behind others."""

    async def _queue_if_busy(self) -> None:
        """Has the turn wait behind earlier turns of the context, if its queue policy says so.

        Raises:
            UnsupportedOperation: the policy is to reject it.
        """
        held = self.held.get(self.place.thread)
        thread = held.record if held is not None else None
        if not isinstance(thread, ThreadRecord):
            return
        policy = self.request.command.when_busy or thread.queue_policy or "parallel"
        if policy == "parallel" or not (thread.active_turns or thread.waiting_turns):
            return
        if policy == "reject" and thread.active_turns:
            raise _refuse_busy(policy)
        waiting = await self.turns.list_waiting(self.place.thread.id)
        if not (thread.active_turns or waiting):
            return  # the last one has ended while it waited
        if policy == "reject":
            raise _refuse_busy(policy)
        self.waiting = waiting

    def _find_hold(self) -> QueueHold | None:
        if self.waiting is None:
            return self.request.plan.hold
        if len(self.waiting) >= MOST_WAITING:
            raise UnsupportedOperation(f"{MOST_WAITING} messages of this context wait already")
        options = self.request.read_options()
        configuration = object_at(options or {}, "configuration")
        return QueueHold(
            self.request.plan.find_agent(self.request.command),
            "turn",
            len(self.waiting) + 1,
            send_options=options,
            thread_id=self.place.thread.id,
            answers_at_once=configuration.get("returnImmediately") is True,
            unpaid=None if self.request.plan.hold is None else self.request.plan.hold.unpaid,
        )

    async def append(self) -> OpenedTurn | None:
        """Stores it; None if another writer changed the context meanwhile."""
        await self.turns.regain(self.place.shard)
        try:
            await self._queue_if_busy()
            draft = self.draft()
        except UnsupportedOperation:
            # The context may be busy with this very message.
            repeated = await self.turns.find_repeat(self.request, self.place)
            if repeated is None:
                raise
            return repeated
        for blob in draft.spill.blobs:
            await self.turns.blobs.put(self.place.shard, blob)
        task = draft.task
        outcome = await self._commit(draft.decision, task, draft.terms)
        match outcome:
            case Written(repeated=bytes(stored)) if read_task(stored) != task.id:
                return await self.turns.repeat(stored, self.request.plan)
            case Written():
                # Its own receipt may come back as well: the reply to the first try of this very append was lost.
                await self._list(draft, outcome.held)
                return OpenedTurn(
                    self.place,
                    task,
                    draft.turn_id,
                    outcome.held,
                    draft.driver,
                    shown=draft.shown,
                    position=None if self.waiting is None else len(self.waiting) + 1,
                )
            case Conflict() | StaleEpoch() | Early():
                return None
            case Fenced():
                raise StoreUnavailable("the lease of this instance is lost", "no")
            case _:
                raise UnsupportedOperation("the turn could not be stored; try again")

    def draft(self) -> TurnDraft:
        """Decides, and stores nothing yet."""
        writes, plan, shard = self.turns.writes, self.request.plan, self.place.shard
        task = EntityRef(EntityKind.TASK, writes.ids.mint("task", shard))
        turn_id, run_id = writes.ids.mint("turn", shard), writes.ids.mint("run", shard)
        spill = BlobOverflow()
        decision = writes.begin(self.place.session.id, self.held)
        for ref in (self.place.thread, task):
            if ref not in self.held:
                decision.introduce(ref)
        if decision.state(self.place.thread) is None and self.place.session not in self.held:
            decision.introduce(self.place.session)
        facts = TurnFacts(
            self.request, self.place, decision, spill, writes.ids, task, turn_id, self.waiting
        )
        facts.begin()
        driver, terms = plan.drives(shard), AppendOptions()
        if plan.route is not None and plan.route.agent is None:
            shown = facts.refuse()
        elif (hold := self._find_hold()) is not None:
            shown = facts.wait(hold)
            self._schedule_interruption(decision, task)
            self._keep_words(decision, task)
            row = DueChange(f"{QUEUED}:{task.id}", decision.now_ms + FIRST_LOOK_MS)
            terms = AppendOptions(due=(row,))
        else:
            shown = facts.start(run_id)
            self._keep_words(decision, task)
            decision.set_field(task, OWNER, str(driver).encode())
            terms = AppendOptions(
                runs=(RunMove(run_id, task.id, driver, enters=True),),
                due=list_limits(task.id, plan.policy, decision.now_ms),
            )
        terms = replace(
            terms,
            targets=self._attach_push(decision, task),
            idem=self.request.remember(self.place, turn_id, task.id),
        )
        return TurnDraft(decision, terms, spill, task, turn_id, driver, shown)

    def _keep_words(self, decision: Decision, task: EntityRef) -> None:
        """Stores the digest by which a later message with the same request is found, if the caller wants that."""
        command = self.request.command
        if command.when_same is not None:
            decision.set_field(task, ASKED, digest_words(command.agent, command.message))

    def _schedule_interruption(self, decision: Decision, task: EntityRef) -> None:
        """Stores with the task that it has to stop the running turns of its context; its due row does it (I9)."""
        thread = decision.state(self.place.thread)
        if self.waiting is None or not isinstance(thread, ThreadRecord):
            return
        if (self.request.command.when_busy or thread.queue_policy) == "interrupt":
            decision.set_field(task, INTERRUPTS, to_bytes(InterruptRequest(thread.active_turns)))

    async def _list(self, draft: TurnDraft, held: Mapping[EntityRef, Held]) -> None:
        """Lists the task at once: a caller who gets its id finds it in the list (LT-7)."""
        stored = held[draft.task].record
        if draft.shown is not None and isinstance(stored, TaskRecord):
            await self.turns.list_row(make_row(stored))

    async def _commit(
        self, decision: Decision, task: EntityRef, terms: AppendOptions
    ) -> Written | Outdated | WriteRefusal:
        try:
            return await self.turns.writes.commit(decision, self.held, terms)
        except StoreUnavailable as error:
            if error.wrote == "unknown":
                self.turns.on_unknown_outcome(task)
            raise

    def _attach_push(self, decision: Decision, task: EntityRef) -> tuple[TargetChange, ...]:
        push = self.request.command.push
        if push is None:
            return ()
        if not push.id:
            push = change(push, id=self.turns.writes.ids.mint("push", self.place.shard))
        facade = expose(TaskId(task.id), 1)
        return self.turns.push_configs.attach(decision, task, facade, self.request.principal, push)


def _refuse_busy(policy: str) -> UnsupportedOperation:
    return UnsupportedOperation("another message of this context is in progress", policy=policy)
