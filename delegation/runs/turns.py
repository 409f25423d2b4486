"""A message comes in: where it belongs, and the task that it opens, tried again where others change its context.

One append holds everything before a peer is called: session, thread, task, turn, the judgement of the policy, and the
intent to send, with the run in this instance's set. Where it is refused nothing is written, and no peer is called (I1,
I9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.frames import make_message, make_status, note_status, task_frame
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.states import REJECTED, SUBMITTED
from passerelle.core.agent_name import ROUTER
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
from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
    WriteConflict,
)
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.ids import REMOTE_CONTEXT, TaskId, expose, read_shard
from passerelle.core.index_changes import make_row
from passerelle.core.payloads.conversation import (
    QueueChanged,
    SessionCreated,
    ThreadStarted,
    TurnCompleted,
)
from passerelle.core.payloads.task import TaskCreated, TaskDependencyUpdated
from passerelle.core.routing.words import say_routing
from passerelle.core.session import machine as sessions
from passerelle.core.session import thread as threads
from passerelle.core.session.machine import BeginSession, SessionRecord
from passerelle.core.session.thread import (
    ChangeQueue,
    EndTurn,
    OpenThread,
    ResolveTools,
    ThreadRecord,
)
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import BeginTask, BlockTask, EndInError, LinkTask, StartRun
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status, Visibility
from passerelle.core.wire.codec import from_bytes, to_wire
from passerelle.core.wire.record import change, value
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.holds import (
    FIRST_LOOK_MS,
    MOST_WAITING,
    QUEUED,
    QueueHold,
    make_command,
)
from passerelle.delegation.runs.limits import list_limits
from passerelle.delegation.runs.plan import begin_attempt
from passerelle.runtime.records.blob_overflow import BlobOverflow, show
from passerelle.runtime.records.idempotency import Once, TurnReceipt, remember
from passerelle.runtime.records.message_summary import describe, digest_request, submit
from passerelle.runtime.records.places import Place, hash_key, list_places, mint_place
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

    from passerelle.core.batch import IdempotencyRow, Incarnation, TargetChange
    from passerelle.core.decision import Decision, Held
    from passerelle.core.facts import EdgeStatus
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.task import TaskAttemptStarted
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import Route
    from passerelle.core.task import requests as task_requests
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.delegation.runs.templates import TemplatedTurn
    from passerelle.runtime.records.writes import Outdated, Unread
    from passerelle.webhooks.push_configs import PushConfigs


@value
class TurnRequest:
    """A message that opens a task, as it came in, and how it is taken.

    ``idem`` is the key of its caller under which it is taken once.
    """

    principal: Principal
    command: SubmitTurn
    plan: Delegation
    idem: str | None = None
    known: Held | None = None
    """The thread of the context, where it was read before; it may have changed since."""
    read_options: Callable[[], JsonObject | None] = lambda: None
    """What its request says beside the message, for one that waits."""

    def remember(self, place: Place, turn_id: str, task_id: str) -> IdempotencyRow | None:
        """What a repeat finds under its key; None without one."""
        if self.idem is None:
            return None
        receipt = TurnReceipt(place.session.id, place.thread.id, turn_id, task_id, place.context_id)
        return remember(self.principal, self.idem, digest_request(self.command), receipt)


async def hold_for_ever(_shard: Shard) -> None:
    """The lease of a shard does not run out: nobody extends it."""


async def wait_for_nobody(_thread_id: str) -> tuple[str, ...]:
    """No turn waits."""
    return ()


@dataclass(slots=True)
class Turns:
    """Opens turns with new tasks."""

    writes: Writes
    blobs: Blobs
    push_configs: PushConfigs
    doubt: Callable[[EntityRef], None] = lambda _task: None
    """Told of a task that may have been stored, with this instance as its driver, though its caller got an error."""
    list_row: Callable[[IndexRow], Awaitable[None]] | None = None
    """Writes an owner-index row at once, for a task that callers see from its first append on."""
    list_waiting: Callable[[str], Awaitable[tuple[str, ...]]] = wait_for_nobody
    """The turns that wait in a thread, in order."""
    regain: Callable[[Shard], Awaitable[None]] = hold_for_ever
    """Has the lease of this instance in a shard extended where it has run out unseen."""

    async def locate(
        self, principal: Principal, command: SubmitTurn | task_requests.CreateTask, idem: str | None
    ) -> tuple[Place, dict[EntityRef, Held]]:
        """The place of the message, with its thread and session as they are stored.

        Raises:
            NotFound: a session or a thread that is named and is not the caller's, or a context that is not known where
                no thread is to be made.
            InvalidInput: a context that belongs to another session, or to another thread, than the one named (ID-3).
        """
        if command.session_id is not None and read_shard(command.session_id) is None:
            raise NotFound("session", command.session_id)
        if isinstance(command, SubmitTurn) and command.thread_id is not None:
            return await self._locate_thread(principal, command, command.thread_id)
        if command.context_id is None:
            _check_may_make(command)
            place = mint_place(principal, self.writes.ids, idem, command.session_id)
            if command.session_id is None:
                return place, {}
            held = await self.writes.load([place.session])
            _check_session(held[place.session], principal, command.session_id)
            return place, held
        for place in list_places(principal, command.context_id):
            held = await self.writes.load([place.thread])
            thread = held[place.thread].record
            if isinstance(thread, ThreadRecord):
                return await self._known(place, held, thread, command)
        _check_may_make(command)
        place = list_places(principal, command.context_id)[-1]
        if command.session_id is not None:
            raise InvalidInput("contextId", "a new context in a session is made by the gateway")
        return place, await self.writes.load([place.thread, place.session])

    async def _locate_thread(
        self, principal: Principal, command: SubmitTurn, thread_id: str
    ) -> tuple[Place, dict[EntityRef, Held]]:
        if read_shard(thread_id) is None:
            raise NotFound("thread", thread_id)
        ref = EntityRef(EntityKind.THREAD, thread_id)
        held = await self.writes.load([ref])
        thread = held[ref].record
        if not isinstance(thread, ThreadRecord) or thread.owner != principal.key:
            raise NotFound("thread", thread_id)
        if command.context_id not in {None, thread.context_id}:
            raise InvalidInput("contextId", "it is not the context of the thread")
        place = Place(ref.shard, thread.context_id, ref, ref)
        return await self._known(place, held, thread, command)

    async def _known(
        self,
        place: Place,
        held: dict[EntityRef, Held],
        thread: ThreadRecord,
        command: SubmitTurn | task_requests.CreateTask,
    ) -> tuple[Place, dict[EntityRef, Held]]:
        if command.session_id not in {None, thread.session_id}:
            raise InvalidInput("sessionId", "the context belongs to another session")
        session = EntityRef(EntityKind.SESSION, thread.session_id)
        return Place(place.shard, place.context_id, place.thread, session), held

    async def open(self, request: TurnRequest) -> OpenedTurn:
        """Accepts the message as a new task, in one append.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
            IdempotencyConflict: the key came with another request before.
        """
        for tries in range(MAX_TRIES):
            place, held = await self.locate(request.principal, request.command, request.idem)
            if request.plan.blockers:
                refs = [EntityRef(EntityKind.TASK, one) for one in request.plan.blockers]
                held = {**held, **await self.writes.load(refs)}
            outcome = await TurnAttempt(self, request, place, held).append()
            if isinstance(outcome, OpenedTurn):
                return outcome
            await self.writes.step_back(tries)
        raise WriteConflict("the context was changed by others again and again; try once more")

    async def find_thread(self, principal: Principal, command: SubmitTurn) -> Held | None:
        """The thread of the context that a message names, at the likelier of its places; None where it names none."""
        if command.thread_id is not None:
            _, held = await self._locate_thread(principal, command, command.thread_id)
            return next(iter(held.values()))
        if command.context_id is None:
            return None
        thread = list_places(principal, command.context_id)[0].thread
        return (await self.writes.load([thread]))[thread]

    async def find_repeat(
        self, request: TurnRequest, place: Place | None = None
    ) -> OpenedTurn | None:
        """What the key of a request that is about to be refused has led to before; None: nothing.

        Raises:
            IdempotencyConflict: the key came with another request.
        """
        if request.idem is None:
            return None
        if place is None:
            place, _ = await self.locate(request.principal, request.command, request.idem)
        key = hash_key(request.principal, request.idem)
        once = Once(key, digest_request(request.command))
        stored = await once.find(self.writes.log, place.shard)
        return None if stored is None else await self.repeat(stored, request.plan)

    async def repeat(self, stored: bytes, plan: Delegation) -> OpenedTurn:
        """What a key has led to before, by its stored receipt."""
        receipt = from_bytes(TurnReceipt, stored)
        task = EntityRef(EntityKind.TASK, receipt.task_id)
        thread = EntityRef(EntityKind.THREAD, receipt.thread_id)
        session = EntityRef(EntityKind.SESSION, receipt.session_id)
        held = await self.writes.load([task, thread])
        place = Place(thread.shard, receipt.context_id, thread, session)
        driver = plan.drives(task.shard)
        return OpenedTurn(place, task, receipt.turn_id, held, driver, repeated=True)


def _check_may_make(command: SubmitTurn | task_requests.CreateTask) -> None:
    """Raises where no thread is to be made for a message that would need one."""
    if not isinstance(command, SubmitTurn) or command.makes_thread:
        return
    if command.context_id is None:
        raise InvalidInput("threadId", "is required where no thread is to be made")
    raise NotFound("context", command.context_id)


def _check_session(held: Held, principal: Principal, session_id: str) -> None:
    session = held.record
    if not isinstance(session, SessionRecord) or session.owner != principal.key:
        raise NotFound("session", session_id)


@value
class OpenedTurn:
    """A stored turn with a new task: what the driver starts from."""

    place: Place
    task: EntityRef
    turn_id: str
    held: dict[EntityRef, Held] | Unread
    driver: Incarnation
    repeated: bool = False
    shown: JsonObject | None = None
    """The Task as callers see it already."""
    templated: TemplatedTurn | None = None
    """How it was rendered, if it was."""
    position: int | None = None
    """Where it waits behind other turns of its context, from 1."""

    def accept(self) -> TurnAccepted:
        """What its caller is told of it."""
        return TurnAccepted(
            session_id=self.place.session.id,
            thread_id=self.place.thread.id,
            turn_id=self.turn_id,
            task_id=self.task.id,
            facade=expose(TaskId(self.task.id), 1),
            context_id=self.place.context_id,
            repeated=self.repeated,
            position=self.position,
        )


@dataclass(frozen=True, slots=True)
class TurnDraft:
    """What one try would store."""

    decision: Decision
    terms: AppendOptions
    spill: BlobOverflow
    task: EntityRef
    turn_id: str
    driver: Incarnation
    shown: JsonObject | None = None


@dataclass(slots=True)
class TurnAttempt:
    """One try to open a turn with a task."""

    turns: Turns
    request: TurnRequest
    place: Place
    held: dict[EntityRef, Held]
    waiting: tuple[str, ...] | None = None
    """The turns that go first, where it waits behind others."""

    async def _have_wait(self) -> None:
        """Where turns of the context go first it waits behind them.

        Raises:
            UnsupportedOperation: it is not to wait.
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
        )

    async def append(self) -> OpenedTurn | None:
        """Stores it; None when somebody else changed the context meanwhile."""
        await self.turns.regain(self.place.shard)
        try:
            await self._have_wait()
            draft = self.draft()
        except UnsupportedOperation:
            # The context may be at work on this very message.
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
        """Decides; nothing is stored yet."""
        writes = self.turns.writes
        shard = self.place.shard
        task = EntityRef(EntityKind.TASK, writes.ids.mint("task", shard))
        turn_id, run_id = writes.ids.mint("turn", shard), writes.ids.mint("run", shard)
        spill = BlobOverflow()
        decision = writes.begin(self.place.session.id, self.held)
        for ref in (self.place.thread, task):
            if ref not in self.held:
                decision.introduce(ref)
        if decision.state(self.place.thread) is None and self.place.session not in self.held:
            decision.introduce(self.place.session)
        self._decide(decision, task.id, turn_id, spill)
        driver, route = self.request.plan.drives(shard), self.request.plan.route
        if route is not None and route.agent is None:
            shown = self._refuse(decision, task.id, turn_id, spill)
            targets = self._attach_push(decision, task)
            terms = AppendOptions(
                targets=targets, idem=self.request.remember(self.place, turn_id, task.id)
            )
            return TurnDraft(decision, terms, spill, task, turn_id, driver, shown)
        if (hold := self._find_hold()) is not None:
            shown = self._queue(decision, task.id, hold, spill)
            row = DueChange(f"{QUEUED}:{task.id}", decision.now_ms + FIRST_LOOK_MS)
            terms = AppendOptions(
                due=(row,),
                targets=self._attach_push(decision, task),
                idem=self.request.remember(self.place, turn_id, task.id),
            )
            return TurnDraft(decision, terms, spill, task, turn_id, driver, shown)
        shown = self._start(decision, task.id, run_id, spill)
        decision.set_field(task, OWNER, str(driver).encode())
        terms = self._terms(decision, task, turn_id, run_id, driver)
        return TurnDraft(decision, terms, spill, task, turn_id, driver, shown)

    async def _list(self, draft: TurnDraft, held: Mapping[EntityRef, Held]) -> None:
        """A caller who is told of the task finds it in its list (LT-7)."""
        stored = held[draft.task].record
        if draft.shown is None or self.turns.list_row is None or not isinstance(stored, TaskRecord):
            return
        await self.turns.list_row(make_row(stored))

    async def _commit(
        self, decision: Decision, task: EntityRef, terms: AppendOptions
    ) -> Written | Outdated | WriteRefusal:
        try:
            return await self.turns.writes.commit(decision, self.held, terms)
        except StoreUnavailable as error:
            if error.wrote == "unknown":
                self.turns.doubt(task)
            raise

    def _terms(
        self,
        decision: Decision,
        task: EntityRef,
        turn_id: str,
        run_id: str,
        driver: Incarnation,
    ) -> AppendOptions:
        return AppendOptions(
            runs=(RunMove(run_id, task.id, driver, enters=True),),
            due=list_limits(task.id, self.request.plan.policy, decision.now_ms),
            targets=self._attach_push(decision, task),
            idem=self.request.remember(self.place, turn_id, task.id),
        )

    def _attach_push(self, decision: Decision, task: EntityRef) -> tuple[TargetChange, ...]:
        push = self.request.command.push
        if push is None:
            return ()
        if not push.id:
            push = change(push, id=self.turns.writes.ids.mint("push", self.place.shard))
        facade = expose(TaskId(task.id), 1)
        return self.turns.push_configs.attach(decision, task, facade, self.request.principal, push)

    def _decide(self, decision: Decision, task_id: str, turn_id: str, spill: BlobOverflow) -> None:
        who, place = self.request.principal, self.place
        decision.belong(self.request.plan.trace)
        session = decision.state(place.session)
        if place.session in decision.states and session is None:
            created = SessionCreated(owner=who.key, tenant=who.tenant, principal=who.id)
            decision.add(sessions.decide(None, BeginSession(place.session.id, created)))
        thread = decision.state(place.thread)
        if thread is None:
            started = ThreadStarted(
                context_id=place.context_id,
                owner=who.key,
                tenant=who.tenant,
                principal=who.id,
                status="running",
            )
            opening = OpenThread(place.session.id, place.thread.id, started)
            decision.add(threads.decide(None, opening))
            thread = decision.state(place.thread)
        scope = Scope(place.session.id, place.thread.id, turn_id, task_id)
        decision.add(tasks.decide(None, BeginTask(scope, self._created(task_id))))
        for edge in self.request.plan.referred.list_edges():
            state = decision.state(EntityRef(EntityKind.TASK, task_id))
            if isinstance(state, TaskRecord):
                decision.add(tasks.decide(state, LinkTask(edge)))
        for blocker in self.request.plan.blockers:
            _wait_for(decision, task_id, blocker)
        if isinstance(thread, ThreadRecord):
            submitting = submit(self.request.command, scope, spill)
            if self.waiting is not None:
                submitting = replace(submitting, waits=True)
            decision.add(threads.decide(thread, submitting))
        if (route := self.request.plan.route) is not None:
            decision.add(Fact(scope, payload) for payload in route.list_facts())
        decision.add(
            [Fact(scope, self.request.plan.judge(who.id, self.turns.writes.ids, place.shard))]
        )
        self._tell_tools(decision, scope)
        if self.request.plan.facts:
            decision.add(Fact(scope, payload) for payload in self.request.plan.facts)

    def _tell_tools(self, decision: Decision, scope: Scope) -> None:
        catalog, caller = self.request.plan.catalog, self.request.principal.id
        thread = decision.state(self.place.thread)
        if isinstance(thread, ThreadRecord):
            decision.add(threads.decide(thread, ResolveTools(scope, caller, catalog)))

    def _created(self, task_id: str) -> TaskCreated:
        words, who = describe(self.request.command), self.request.principal
        return TaskCreated(
            objective=words.objective,
            title=words.title,
            kind=self.request.command.agent,
            family="delegation",
            requested_by=who.id,
            owner=who.key,
            tenant=who.tenant,
            context_id=self.place.context_id,
            assignee=self.request.plan.find_agent(self.request.command) or None,
            visibility=Visibility.BACKGROUND
            if self.request.command.wait == "none"
            else Visibility.FOREGROUND,
            root_task_id=task_id,
            profile=_show_profile(self.request.plan.route),
            acceptance=self.request.plan.acceptance,
        )

    def _refuse(
        self, decision: Decision, task_id: str, turn_id: str, spill: BlobOverflow
    ) -> JsonObject | None:
        """Ends the task before anybody was called, since no agent fits; the Task, as callers see it from here on."""
        task = EntityRef(EntityKind.TASK, task_id)
        record, route = decision.state(task), self.request.plan.route
        if not isinstance(record, TaskRecord) or route is None:
            return None
        reason = say_routing(route.list_facts()[-1])
        failure = ErrorDetail("no_agent", ErrorCategory.POLICY, reason, source=ROUTER)
        facts = tasks.decide(record, EndInError(failure, rejected=True))
        facade, context_id = expose(TaskId(task_id), 1), self.place.context_id
        message_id = self.turns.writes.ids.mint("msg", self.place.shard)
        message = make_message(message_id, facade, context_id, [{"text": reason}])
        status = make_status(REJECTED, format_ms(decision.now_ms), message)
        shown = complete_history(
            {"id": facade, "contextId": context_id, "status": status},
            [self.request.command.message],
        )
        decision.add([*facts[:-1], *show(spill, facts[-1], task_frame(shown), facade, "status")])
        thread, ended = decision.state(self.place.thread), decision.state(task)
        if isinstance(thread, ThreadRecord) and isinstance(ended, TaskRecord):
            completed = TurnCompleted("task", ended.status)
            decision.add(threads.decide(thread, EndTurn(turn_id, task_id, completed)))
        return shown

    def _start(
        self, decision: Decision, task_id: str, run_id: str, spill: BlobOverflow
    ) -> JsonObject | None:
        """Adds the intent to send; the Task, where callers see it from here on."""
        record = decision.state(EntityRef(EntityKind.TASK, task_id))
        started = self._compose(decision, record)
        if started is None or not isinstance(record, TaskRecord):
            return None
        facts = tasks.decide(record, StartRun(run_id, started))
        if not self.request.plan.shows_at_once:
            decision.add(facts)
            return None
        return self._show(decision, task_id, facts, spill)

    def _queue(
        self, decision: Decision, task_id: str, hold: QueueHold, spill: BlobOverflow
    ) -> JsonObject | None:
        """Adds that the attempt waits for its agent; the Task, where callers learn of it at once."""
        record = decision.state(EntityRef(EntityKind.TASK, task_id))
        attempt = self._compose(decision, record)
        if attempt is None or not isinstance(record, TaskRecord):
            return None
        thread = decision.state(self.place.thread)
        if self.waiting is not None and isinstance(thread, ThreadRecord):
            order = (*self.waiting, record.turn_id or "")
            decision.add(threads.decide(thread, ChangeQueue(QueueChanged("enqueued", order))))
        facts = tasks.decide(record, make_command(attempt, hold))
        if (blocker := record.blocker) is not None:
            decision.add(facts)
            queued = decision.state(EntityRef(EntityKind.TASK, task_id))
            if isinstance(queued, TaskRecord):
                blocked = tasks.describe_blocker(blocker.target, blocker.reason)
                facts = tasks.decide(queued, BlockTask(blocked))
        if not (hold.is_told or self.request.plan.shows_at_once):
            decision.add(facts)
            return None
        message_id = self.turns.writes.ids.mint("msg", self.place.shard)
        return self._show(decision, task_id, facts, spill, (message_id, hold))

    def _compose(self, decision: Decision, record: object) -> TaskAttemptStarted | None:
        """The first attempt, as it begins now or later."""
        thread = decision.state(self.place.thread)
        if not (isinstance(thread, ThreadRecord) and isinstance(record, TaskRecord)):
            return None
        agent = self.request.plan.find_agent(self.request.command)
        context = thread.remotes.get(agent) or self.turns.writes.ids.mint(
            REMOTE_CONTEXT, self.place.shard
        )
        return begin_attempt(record, self.request.command, self.request.plan, context)

    def _show(
        self,
        decision: Decision,
        task_id: str,
        facts: list[Fact],
        spill: BlobOverflow,
        told: tuple[str, QueueHold] | None = None,
    ) -> JsonObject:
        """Adds the facts, the last one with the Task as callers see it; ``told``: why it waits, by a message id."""
        facade, context_id = expose(TaskId(task_id), 1), self.place.context_id
        message: JsonObject | None = None
        note: JsonObject = {}
        if told is not None:
            message_id, hold = told
            message = make_message(message_id, facade, context_id, [{"text": hold.text}])
            note = {"metadata": note_status(f"agent_{hold.cause}", peer=hold.agent)}
        status = make_status(SUBMITTED, format_ms(decision.now_ms), message)
        task: JsonObject = {"id": facade, "contextId": context_id, "status": status, **note}
        shown = complete_history(task, [self.request.command.message])
        decision.add([*facts[:-1], *show(spill, facts[-1], task_frame(shown), facade, "status")])
        return shown


def _wait_for(decision: Decision, task_id: str, blocker_id: str) -> None:
    """Adds the edge to a task that has to complete first, at both ends: they stand in one session (GR-2)."""
    near = decision.state(EntityRef(EntityKind.TASK, task_id))
    far = decision.state(EntityRef(EntityKind.TASK, blocker_id))
    if not (isinstance(near, TaskRecord) and isinstance(far, TaskRecord)):
        raise NotFound("task", blocker_id)
    status: EdgeStatus = "satisfied" if far.status is Status.COMPLETED else "open"
    edge = TaskDependencyUpdated(f"blocked_by:{blocker_id}", "blocked_by", blocker_id, status)
    decision.add(tasks.decide(near, LinkTask(edge)))
    if status == "open":
        mirror = TaskDependencyUpdated(f"blocks:{task_id}", "blocks", task_id, status)
        decision.add(tasks.decide(far, LinkTask(mirror)))


def _refuse_busy(policy: str) -> UnsupportedOperation:
    return UnsupportedOperation("another message of this context is worked at", policy=policy)


def _show_profile(route: Route | None) -> JsonObject:
    """What the caller has asked of the agent, as the record of the task has it (TR-12)."""
    if route is None or route.profile.source != "caller":
        return {}
    said = to_wire(route.profile)
    return {name: one for name, one in said.items() if name != "source"}


def read_task(stored: bytes) -> str:
    """The task of a stored receipt."""
    return from_bytes(TurnReceipt, stored).task_id
