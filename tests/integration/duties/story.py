"""Scripted tasks on a real store: they are driven, shown, wait, ask, are answered and end.

Written through the product's write path, with facts of the real state machines; only the agent is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import AnswerAction, OpenAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import (
    DueChange,
    EntityKind,
    EntityRef,
    Fence,
    Fenced,
    Incarnation,
    RunMove,
)
from passerelle.core.decision import Decision
from passerelle.core.facts import ErrorCategory, ErrorDetail, RetryPolicy, Scope, Worker
from passerelle.core.ids import Shard
from passerelle.core.payloads.conversation import (
    SessionCreated,
    ThreadStarted,
    TurnCompleted,
    TurnSubmitted,
)
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskAttemptStarted, TaskCreated
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.session import machine as sessions
from passerelle.core.session import thread as threads
from passerelle.core.session.machine import BeginSession
from passerelle.core.session.thread import EndTurn, OpenThread, SubmitMessage, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import (
    BeginTask,
    EndInError,
    FailRun,
    ObserveStatus,
    StartRun,
    TaskCommand,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.records.writes import AppendOptions, WriteRefusal, Writes, Written
from passerelle.store.store import Store
from tests.support.approvals import make_request

OWNER = Principal("ada", kind="person", scopes=frozenset({AccessScope.DECIDE}))
PEER = "echo"
FAILURE = ErrorDetail("peer_failed", ErrorCategory.PEER, "the agent gave up")
FRAME = b'{"statusUpdate":{"taskId":"seen"}}'


def make_writes(store: Store) -> Writes:
    return Writes(store.log, SystemClock(), SystemIds(), store.runtime_id)


@dataclass(slots=True)
class Story:
    """One task with its session, thread and turn. ``driver`` None: no instance drives it."""

    writes: Writes
    shard: Shard
    driver: Incarnation | None = None
    owner: Principal = OWNER
    session: EntityRef = field(init=False)
    thread: EntityRef = field(init=False)
    task: EntityRef = field(init=False)
    turn: str = field(init=False)
    run: str = field(init=False)

    def __post_init__(self) -> None:
        mint = self.writes.ids.mint
        self.session = EntityRef(EntityKind.SESSION, mint("se", self.shard))
        self.thread = EntityRef(EntityKind.THREAD, mint("th", self.shard))
        self.task = EntityRef(EntityKind.TASK, mint("task", self.shard))
        self.turn, self.run = mint("turn", self.shard), mint("run", self.shard)

    async def begin(self) -> None:
        """Accepts a message as a task with a run, in one append."""
        decision = self.writes.begin(self.session.id, {})
        for ref in (self.session, self.thread, self.task):
            decision.introduce(ref)
        who = self.owner
        created = SessionCreated(who.key, who.tenant, who.id)
        decision.add(sessions.decide(None, BeginSession(self.session.id, created)))
        started = ThreadStarted(f"ctx-{self.thread.id}", who.key, who.tenant, who.id)
        opening = OpenThread(self.session.id, self.thread.id, started)
        decision.add(threads.decide(None, opening))
        scope = Scope(self.session.id, self.thread.id, self.turn, self.task.id)
        decision.add(tasks.decide(None, BeginTask(scope, self._created())))
        submitted = TurnSubmitted(f"m-{self.turn}", PEER, "a2a", "hello")
        thread = cast("ThreadRecord", decision.state(self.thread))
        submit = SubmitMessage(self.session.id, self.turn, self.task.id, submitted)
        decision.add(threads.decide(thread, submit))
        decision.add(tasks.decide(self._record(decision), StartRun(self.run, _attempt(self.turn))))
        runs: tuple[RunMove, ...] = ()
        if self.driver is not None:
            decision.set_field(self.task, "own", str(self.driver).encode())
            runs = (RunMove(self.run, self.task.id, self.driver, enters=True),)
        outcome = await self.writes.commit(decision, {}, AppendOptions(runs=runs))
        assert isinstance(outcome, Written), outcome

    async def show(self) -> Written | WriteRefusal:
        """Applies the agent's first status; from then on callers see the task."""
        observed = RunStatus(native_status="TASK_STATE_WORKING", remote_task_id="remote-1")
        command = ObserveStatus(Status.RUNNING, observed, self.writes.ids.mint("step", self.shard))
        return await self.apply(command, shown=True)

    async def fail(self) -> Written | WriteRefusal:
        """Ends the task with an error, and its run."""

        def body(decision: Decision) -> AppendOptions:
            decision.add(tasks.decide(self._record(decision), FailRun(Status.FAILED, FAILURE)))
            facts = tasks.decide(self._record(decision), EndInError(FAILURE))
            decision.add([replace(fact, frame=FRAME, facade=self.task.id) for fact in facts])
            thread = cast("ThreadRecord", decision.state(self.thread))
            completed = TurnCompleted("task", "failed")
            decision.add(threads.decide(thread, EndTurn(self.turn, self.task.id, completed)))
            return self._leave(decision)

        return await self.writes.decide(self.session.id, [self.task, self.thread], body)

    async def apply(
        self, command: TaskCommand, driver: Incarnation | None = None, *, shown: bool = False
    ) -> Written | WriteRefusal:
        """Applies one command to the task, under the fence of ``driver`` if given."""

        def body(decision: Decision) -> AppendOptions:
            facts = tasks.decide(self._record(decision), command)
            if shown:
                facts[-1] = replace(facts[-1], frame=FRAME, facade=self.task.id)
            decision.add(facts)
            return AppendOptions(fence=Fence(self.task.id, driver) if driver else None)

        return await self.writes.decide(self.session.id, [self.task], body)

    async def ask(self, title: str = "may I") -> EntityRef:
        """Opens an approval for the owner."""
        action = EntityRef(EntityKind.ACTION, self.writes.ids.mint("act", self.shard))
        now_ms = self.writes.clock.now_ms()
        request = make_request(
            action_id=action.id,
            owner=self.owner.key,
            title=title,
            created_ms=now_ms,
            expires_ms=now_ms + 60_000,
        )

        def body(decision: Decision) -> AppendOptions:
            scope = Scope(self.session.id, self.thread.id, self.turn, self.task.id, self.run)
            decision.add(approval.decide(None, OpenAction(request, scope), now_ms))
            return AppendOptions(due=(DueChange(f"expire:{action.id}", request.expires_ms),))

        outcome = await self.writes.decide(self.session.id, [self.task, action], body)
        assert isinstance(outcome, Written), outcome
        return action

    async def answer(self, action: EntityRef) -> None:
        """Allows the approval as its owner."""

        def body(decision: Decision) -> AppendOptions:
            record = cast("ActionRecord", decision.state(action))
            answer = AnswerAction(
                self.owner,
                record.rev,
                record.request.digest,
                self.writes.ids.mint("dec", self.shard),
                "allow",
            )
            decision.add(approval.decide(record, answer, decision.now_ms))
            return AppendOptions(due=(DueChange(f"expire:{action.id}", None),))

        outcome = await self.writes.decide(self.session.id, [self.task, action], body)
        assert isinstance(outcome, Written), outcome

    async def read(self) -> TaskRecord:
        """Reads the stored task."""
        return cast("TaskRecord", (await self.writes.load_one(self.task)).record)

    async def read_driver(self) -> str:
        """Returns the field ``own`` of the task."""
        held = await self.writes.load_one(self.task)
        return held.fields.get("own", b"").decode()

    def is_fenced(self, outcome: object) -> bool:
        """Whether a write was refused because another instance drives the task."""
        return isinstance(outcome, Fenced)

    def _record(self, decision: Decision) -> TaskRecord:
        return cast("TaskRecord", decision.state(self.task))

    def _leave(self, decision: Decision) -> AppendOptions:
        if self.driver is None:
            return AppendOptions()
        decision.set_field(self.task, "own", None)
        leaving = RunMove(self.run, self.task.id, self.driver, enters=False)
        return AppendOptions(fence=Fence(self.task.id, self.driver), runs=(leaving,))

    def _created(self) -> TaskCreated:
        who = self.owner
        return TaskCreated(
            objective="say hello",
            title="hello",
            kind=PEER,
            family="delegation",
            requested_by=who.id,
            owner=who.key,
            tenant=who.tenant,
            context_id=f"ctx-{self.thread.id}",
        )


def _attempt(turn: str) -> TaskAttemptStarted:
    return TaskAttemptStarted(
        ordinal=1,
        worker=Worker("agent", PEER, "http://127.0.0.1:9", "sha256:card"),
        native_protocol="JSONRPC",
        delivery_mechanism="streaming",
        message_id=f"m-{turn}",
        retry_policy=RetryPolicy(),
        reason="first",
        remote_context_id="rctx",
    )
