"""A message comes in: where it belongs, what it opens or goes on with, and the one append that accepts it.

The first append holds everything that must be true before a peer is called: session, thread, task, turn, the
judgement of the policy, and the intent to send, with the run in this instance's set. Nothing has been written when
it is refused, and no peer has been called (I1, I9).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.frames import make_status, task_frame
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.states import SUBMITTED
from passerelle.core import session as sessions
from passerelle.core import task as tasks
from passerelle.core import thread as threads
from passerelle.core.batch import (
    Conflict,
    EntityKind,
    EntityRef,
    Fenced,
    IdempotencyRow,
    RunMove,
    StaleEpoch,
)
from passerelle.core.codec import from_bytes, to_bytes
from passerelle.core.errors import Conflict as ConflictError
from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.events import Fact
from passerelle.core.facts import RetryPolicy, Scope, Worker
from passerelle.core.ids import REMOTE_CONTEXT, TaskId, expose
from passerelle.core.payloads.conversation import SessionCreated, ThreadStarted, TurnSubmitted
from passerelle.core.payloads.task import (
    TaskAttemptStarted,
    TaskCreated,
    TaskDependencyUpdated,
)
from passerelle.core.record import record
from passerelle.core.session import OpenSession, SessionRecord
from passerelle.core.standing import make_row
from passerelle.core.status import Visibility
from passerelle.core.task_commands import CreateTask, LinkTask, StartRun
from passerelle.core.task_record import ArtifactRef, TaskRecord
from passerelle.core.thread import OpenThread, SubmitMessage, ThreadRecord
from passerelle.core.times import format_ms
from passerelle.core.trace import Trace
from passerelle.gateway.control.places import Place, hash_key, list_places, mint_place
from passerelle.gateway.control.writes import MAX_TRIES, Refusal, Terms, Writes, Written
from passerelle.gateway.delegation.limits import list_limits
from passerelle.gateway.delegation.run import OWNER
from passerelle.gateway.delegation.spill import Spill, hold, show

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from passerelle.core import task_requests
    from passerelle.core.batch import Incarnation, TargetChange
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Decision, Held
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.payloads.approval import PermissionEvaluated
    from passerelle.core.payloads.limit import LimitPayload
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.chance import Ids
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.plain_turns import PlainTurn
    from passerelle.gateway.control.push_configs import PushConfigs
    from passerelle.gateway.control.writes import Unread

TITLE_LENGTH: Final = 80
_OBJECTIVE_LENGTH: Final = 2000
_PREVIEW_LENGTH: Final = 200
IDEMPOTENCY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Delegation:
    """What is known of the peer before the first append."""

    card: PeerCard
    mechanism: Literal["unary", "streaming"]
    policy: RetryPolicy
    judge: Callable[[Ids, Shard], PermissionEvaluated]
    """How policy judges the call, under an id that is minted in a shard."""
    drives: Callable[[Shard], Incarnation]
    facts: tuple[LimitPayload, ...] = ()
    """What is to be said on the turn beside it: its price, a quota that is low."""
    sources: tuple[str, ...] = ()
    """Tasks that the message refers to."""
    source_runs: tuple[str, ...] = ()
    """The runs that produced what those tasks have."""
    consumed: tuple[ArtifactRef, ...] = ()
    """Artifacts of theirs whose parts go along."""
    acceptance: tuple[JsonObject, ...] = ()
    """What the task must bring."""
    trace: Trace | None = None
    """Our span in the caller's trace, if it has one."""
    shows_at_once: bool = False
    """Whether callers are shown the Task before the agent is called."""
    gated: bool = False
    """Whether anybody but the defaults has a say in what is sent."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A stored turn with a new task: what the driver starts from."""

    place: Place
    task: EntityRef
    turn_id: str
    held: dict[EntityRef, Held] | Unread
    driver: Incarnation
    repeated: bool = False
    shown: JsonObject | None = None
    """The Task as callers see it already."""
    plain: PlainTurn | None = None
    """How it was filled in, if it was."""


@dataclass(frozen=True, slots=True)
class Words:
    """What is read off a message to describe its task and its turn."""

    objective: str
    title: str
    preview: str


@dataclass(frozen=True, slots=True)
class Draft:
    """What one try would store."""

    decision: Decision
    terms: Terms
    spill: Spill
    task: EntityRef
    turn_id: str
    driver: Incarnation
    shown: JsonObject | None = None


@record
class TurnReceipt:
    """What a repeat of the same request finds under its idempotency key."""

    session_id: str
    thread_id: str
    turn_id: str
    task_id: str
    context_id: str


@dataclass(slots=True)
class Turns:
    """Opens turns with new tasks."""

    writes: Writes
    blobs: Blobs
    push_configs: PushConfigs
    doubt: Callable[[EntityRef], None] = lambda _task: None
    """Told of a task that may have been stored, with this instance as its driver, though its caller got an error."""
    list_row: Callable[[IndexRow], Coroutine[None, None, None]] | None = None
    """Writes an owner-index row at once, for a task that callers see from its first append on."""

    async def locate(
        self, principal: Principal, command: SubmitTurn | task_requests.CreateTask, idem: str | None
    ) -> tuple[Place, dict[EntityRef, Held]]:
        """The place of the message, with its thread and session as they are stored.

        Raises:
            NotFound: a session that is named and is not the caller's.
            InvalidInput: a context that belongs to another session than the one named (ID-3).
        """
        if command.context_id is None:
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
        place = list_places(principal, command.context_id)[-1]
        if command.session_id is not None:
            raise InvalidInput("contextId", "a new context in a session is made by the gateway")
        return place, await self.writes.load([place.thread, place.session])

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
        return Place(place.context_id, place.thread, session), held

    async def open(
        self, principal: Principal, command: SubmitTurn, idem: str | None, plan: Delegation
    ) -> Opened:
        """Accepts the message as a new task, in one append.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
            IdempotencyConflict: the key came with another request before.
        """
        for tries in range(MAX_TRIES):
            place, held = await self.locate(principal, command, idem)
            opening = Opening(self, principal, command, plan, place, held)
            outcome = await opening.append(idem)
            if isinstance(outcome, Opened):
                return outcome
            await self.writes.step_back(tries)
        raise ConflictError("the context was changed by others again and again; try once more")


def _check_session(held: Held, principal: Principal, session_id: str) -> None:
    session = held.record
    if not isinstance(session, SessionRecord) or session.owner != principal.key:
        raise NotFound("session", session_id)


@dataclass(slots=True)
class Opening:
    """One try to open a turn with a task."""

    turns: Turns
    principal: Principal
    command: SubmitTurn
    plan: Delegation
    place: Place
    held: dict[EntityRef, Held]

    async def append(self, idem: str | None) -> Opened | None:
        """Stores it; None when somebody else changed the context meanwhile."""
        draft = self.draft(idem)
        for blob in draft.spill.blobs:
            await self.turns.blobs.put(self.place.shard, blob)
        task = draft.task
        outcome = await self._commit(draft.decision, task, draft.terms)
        match outcome:
            case Written(repeated=bytes(stored)) if _read_task(stored) != task.id:
                return await self._repeat(stored)
            case Written():
                # Its own receipt may come back as well: the reply to the first try of this very append was lost.
                await self._list(draft, outcome.held)
                return Opened(
                    self.place,
                    task,
                    draft.turn_id,
                    outcome.held,
                    draft.driver,
                    shown=draft.shown,
                )
            case Conflict() | StaleEpoch():
                return None
            case Fenced():
                raise StoreUnavailable("the lease of this instance is lost", "no")
            case _:
                raise UnsupportedOperation("the turn could not be stored; try again")

    def draft(self, idem: str | None) -> Draft:
        """Decides; nothing is stored yet."""
        writes = self.turns.writes
        shard = self.place.shard
        task = EntityRef(EntityKind.TASK, writes.ids.mint("task", shard))
        turn_id, run_id = writes.ids.mint("turn", shard), writes.ids.mint("run", shard)
        spill = Spill()
        decision = writes.begin(self.place.session.id, self.held)
        for ref in (self.place.thread, task):
            if ref not in self.held:
                decision.introduce(ref)
        if decision.state(self.place.thread) is None and self.place.session not in self.held:
            decision.introduce(self.place.session)
        self._decide(decision, task.id, turn_id, spill)
        shown = self._start(decision, task.id, run_id, spill)
        driver = self.plan.drives(shard)
        decision.set_field(task, OWNER, str(driver).encode())
        terms = self._terms(decision, task, turn_id, run_id, idem, driver)
        return Draft(decision, terms, spill, task, turn_id, driver, shown)

    async def _list(self, draft: Draft, held: Mapping[EntityRef, Held]) -> None:
        """A caller who is told of the task finds it in its list (LT-7)."""
        stored = held[draft.task].record
        if draft.shown is None or self.turns.list_row is None or not isinstance(stored, TaskRecord):
            return
        await self.turns.list_row(make_row(stored))

    async def _commit(
        self, decision: Decision, task: EntityRef, terms: Terms
    ) -> Written | Conflict | StaleEpoch | Refusal:
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
        idem: str | None,
        driver: Incarnation,
    ) -> Terms:
        row = None
        if idem is not None:
            receipt = TurnReceipt(
                self.place.session.id,
                self.place.thread.id,
                turn_id,
                task.id,
                self.place.context_id,
            )
            row = IdempotencyRow(
                key=hash_key(self.principal, idem),
                digest=digest_request(self.command),
                result=to_bytes(receipt),
                ttl_ms=IDEMPOTENCY_MS,
            )
        return Terms(
            runs=(RunMove(run_id, task.id, driver, enters=True),),
            due=list_limits(task.id, self.plan.policy, decision.now_ms),
            targets=self._attach_push(decision, task),
            idem=row,
        )

    def _attach_push(self, decision: Decision, task: EntityRef) -> tuple[TargetChange, ...]:
        push = self.command.push
        if push is None:
            return ()
        facade = expose(TaskId(task.id), 1)
        return self.turns.push_configs.attach(decision, task, facade, self.principal, push)

    async def _repeat(self, stored: bytes) -> Opened:
        receipt = from_bytes(TurnReceipt, stored)
        task = EntityRef(EntityKind.TASK, receipt.task_id)
        thread = EntityRef(EntityKind.THREAD, receipt.thread_id)
        session = EntityRef(EntityKind.SESSION, receipt.session_id)
        held = await self.turns.writes.load([task, thread])
        place = Place(receipt.context_id, thread, session)
        return Opened(
            place,
            task,
            receipt.turn_id,
            held,
            self.plan.drives(task.shard),
            repeated=True,
        )

    def _decide(self, decision: Decision, task_id: str, turn_id: str, spill: Spill) -> None:
        who, place = self.principal, self.place
        decision.belong(self.plan.trace)
        session = decision.state(place.session)
        if place.session in decision.states and session is None:
            created = SessionCreated(owner=who.key, tenant=who.tenant, principal=who.id)
            decision.add(sessions.decide(None, OpenSession(place.session.id, created)))
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
        decision.add(tasks.decide(None, CreateTask(scope, self._created(task_id))))
        self._link(decision, task_id)
        if isinstance(thread, ThreadRecord):
            decision.add(threads.decide(thread, submit(self.command, scope, spill)))
        decision.add([Fact(scope, self.plan.judge(self.turns.writes.ids, place.shard))])
        if self.plan.facts:
            decision.add(Fact(scope, payload) for payload in self.plan.facts)

    def _link(self, decision: Decision, task_id: str) -> None:
        """The edges to the tasks that this one goes on from, and to what it takes from them (LT-13, GR-4, GR-8)."""
        edges = [
            TaskDependencyUpdated(f"source:{source}", "source_task", source, "satisfied")
            for source in self.plan.sources
        ]
        edges += [
            TaskDependencyUpdated(f"source:{run}", "source_attempt", run, "satisfied")
            for run in self.plan.source_runs
        ]
        edges += [
            TaskDependencyUpdated(
                f"consumed:{one.artifact_id}",
                "consumed_artifact",
                one.artifact_id,
                "satisfied",
                reason=f"version {one.version} of {one.run_id}",
            )
            for one in self.plan.consumed
        ]
        for edge in edges:
            state = decision.state(EntityRef(EntityKind.TASK, task_id))
            if isinstance(state, TaskRecord):
                decision.add(tasks.decide(state, LinkTask(edge)))

    def _created(self, task_id: str) -> TaskCreated:
        words, who = describe(self.command), self.principal
        return TaskCreated(
            objective=words.objective,
            title=words.title,
            kind=self.command.agent,
            family="delegation",
            requested_by=who.id,
            owner=who.key,
            tenant=who.tenant,
            context_id=self.place.context_id,
            assignee=self.command.agent,
            visibility=Visibility.BACKGROUND
            if self.command.wait == "none"
            else Visibility.FOREGROUND,
            root_task_id=task_id,
            acceptance=self.plan.acceptance,
        )

    def _start(
        self, decision: Decision, task_id: str, run_id: str, spill: Spill
    ) -> JsonObject | None:
        """Adds the intent to send; the Task, where callers see it from here on."""
        thread = decision.state(self.place.thread)
        record_ = decision.state(EntityRef(EntityKind.TASK, task_id))
        if not (isinstance(thread, ThreadRecord) and isinstance(record_, TaskRecord)):
            return None
        context = thread.remotes.get(self.command.agent) or self.turns.writes.ids.mint(
            REMOTE_CONTEXT, self.place.shard
        )
        started = begin_attempt(record_, self.command, self.plan, context)
        facts = tasks.decide(record_, StartRun(run_id, started))
        if not self.plan.shows_at_once:
            decision.add(facts)
            return None
        facade = expose(TaskId(task_id), 1)
        status = make_status(SUBMITTED, format_ms(decision.now_ms))
        task: JsonObject = {"id": facade, "contextId": self.place.context_id, "status": status}
        shown = complete_history(task, [self.command.message])
        decision.add([*facts[:-1], *show(spill, facts[-1], task_frame(shown), facade, "status")])
        return shown


def begin_attempt(
    record_: TaskRecord, command: SubmitTurn, plan: Delegation, remote_context: str
) -> TaskAttemptStarted:
    """The intent to send the message of a turn, as the next attempt of its task."""
    card, trace = plan.card, plan.trace
    return TaskAttemptStarted(
        ordinal=len(record_.attempts) + 1,
        worker=Worker("agent", command.agent, card.endpoint or None, card.sha256 or None),
        native_protocol=card.protocol,
        delivery_mechanism=plan.mechanism,
        message_id=str(command.message["messageId"]),
        retry_policy=plan.policy,
        reason="first",
        remote_context_id=remote_context,
        traceparent=trace.parent if trace else None,
        tracestate=trace.state if trace else None,
        gated=plan.gated,
    )


def _read_task(stored: bytes) -> str:
    return from_bytes(TurnReceipt, stored).task_id


def submit(command: SubmitTurn, scope: Scope, spill: Spill) -> SubmitMessage:
    """The turn of a message; a message over the cap stands behind ``refs.input``."""
    ref = hold(spill, command.message)
    submitted = TurnSubmitted(
        message_id=str(command.message["messageId"]),
        agent=command.agent,
        source=command.source,
        preview=describe(command).preview,
        message=None if ref else command.message,
    )
    return SubmitMessage(
        session_id=scope.session_id,
        turn_id=scope.turn_id or "",
        task_id=scope.task_id or "",
        submitted=submitted,
        refs={"input": ref} if ref else {},
    )


def describe(command: SubmitTurn) -> Words:
    """What the records say of a message."""
    text = read_text(command.message)
    first = text.strip().splitlines()
    title = first[0] if first else command.agent
    return Words(text[:_OBJECTIVE_LENGTH], title[:TITLE_LENGTH], text[:_PREVIEW_LENGTH])


def read_text(message: JsonObject) -> str:
    """The text parts of a message, joined."""
    parts = message.get("parts")
    texts = (
        [part.get("text") for part in parts if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )
    return "\n".join(text for text in texts if isinstance(text, str))


def digest_request(command: SubmitTurn) -> str:
    """Tells one request from another under the same idempotency key."""
    named = [command.agent, command.message, command.task, command.context_id, command.session_id]
    return hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()
