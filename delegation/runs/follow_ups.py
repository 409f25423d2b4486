"""A message that names a task: an answer, a further input, or a remark on a task that waits (LT-5).

Words on a task that waits for words are the answer. On a permission they decide nothing: only the typed part does
(CHN-7); the words are kept as a turn, and its answer is the task, still waiting. A task that works gets the message
as further input on its live run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.extensions import NAMED
from passerelle.a2a_mapping.inbound import read_named
from passerelle.a2a_mapping.members import object_at, texts_at
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import RespondAction, TurnAccepted
from passerelle.core.errors import (
    CallerError,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    UnsupportedOperation,
    WriteConflict,
)
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnCompleted
from passerelle.core.payloads.run import ModelRequested
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import EndTurn, ResolveTools, SubmitMessage, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask, SendInput
from passerelle.core.task.machine import scope_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, WAITING
from passerelle.core.wire.codec import from_bytes
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.gate import SendCase, judge_send
from passerelle.delegation.runs.inputs import name_row
from passerelle.delegation.runs.remarks import advise, explain_kept, remark
from passerelle.permission_bridge.answers.actions import Beside
from passerelle.permission_bridge.answers.native_answers import find_decisions
from passerelle.runtime.common.carried import EXTENSIONS
from passerelle.runtime.records.blob_overflow import BlobOverflow, write_notes
from passerelle.runtime.records.idempotency import TurnReceipt, remember
from passerelle.runtime.records.message_summary import describe_answer, digest_request, submit
from passerelle.runtime.records.places import hash_key
from passerelle.runtime.records.references import MEMBER, NOTHING
from passerelle.runtime.records.writes import MAX_TRIES, AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.task import TaskDependencyUpdated
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.gate import JudgedSend
    from passerelle.delegation.runs.inputs import Inputs
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.answers.native_answers import Decided
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.references import Referred
    from passerelle.runtime.records.writes import WriteRefusal, Writes

_NOTE_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A message on its way into a task."""

    principal: Principal
    command: SubmitTurn
    idem: str | None
    task: EntityRef
    record: TaskRecord
    turn_id: str
    digest: str
    """Tells the request from others; a hook may change the message, and a repeat is the same request all the same."""
    catalog: ToolCatalogResolved | None = None
    """What its caller may use, where a rule holds any of it back."""
    referred: Referred = NOTHING
    """The tasks that it refers to."""

    @property
    def works(self) -> bool:
        """Whether the message goes to the peer at once."""
        run = self.record.run
        return self.record.status not in WAITING and run is not None and not run.gated

    @property
    def thread(self) -> EntityRef:
        """The thread of the task."""
        return EntityRef(EntityKind.THREAD, self.record.thread_id or "")

    @property
    def scope(self) -> Scope:
        """The ids of the turn."""
        record = self.record
        return Scope(record.session_id, record.thread_id, self.turn_id, record.task_id)


class _TaskMovedError(Exception):
    """The task does not stand any more as it did when it was decided what becomes of the message."""


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Takes messages that name a task."""

    writes: Writes
    blobs: Blobs
    actions: Actions
    ownership: Ownership
    dispatch: Dispatch
    inputs: Inputs

    async def take(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        catalog: ToolCatalogResolved | None = None,
    ) -> TurnAccepted:
        """Stores the message and lets it have its effect, once per idempotency key.

        Raises:
            NotFound: no such task of the caller (G3).
            InvalidInput: a context that is not the task's (G4).
            UnsupportedOperation: the task has ended (LT-12).
            Conflict: the task was moved by others again and again.
        """
        for _ in range(MAX_TRIES):
            with suppress(_TaskMovedError):
                return await self._take(principal, command, idem, catalog)
        raise WriteConflict("the task was changed by others again and again; try once more")

    async def _take(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        catalog: ToolCatalogResolved | None,
    ) -> TurnAccepted:
        owned = await self.ownership.find(principal, command.task or "", command.agent)
        record = owned.record
        _check_place(command, record)
        turn_id = self.writes.ids.mint("turn", owned.ref.shard)
        message = FollowUp(
            principal, command, idem, owned.ref, record, turn_id, digest_request(command), catalog
        )
        repeated = await self._find_repeat(message)
        if repeated is not None:
            return repeated
        if record.status in ENDED:
            raise UnsupportedOperation(
                f"the task has ended ({record.status}); send without taskId", status=record.status
            )
        message = await self._refer(message)
        accepted = await self._take_decision(message)
        if accepted is not None:
            return accepted
        if record.withheld is not None:
            raise UnsupportedOperation("the agent has ended the task; it is being looked at")
        question = await self._find_question(record)
        # What the gateway has asked itself is answered to it: nothing of it goes to the agent.
        is_ours = question is not None and question.request.origin.asked_by == "gateway"
        if message.works or (question is not None and not is_ours):
            message = await self._govern(message)
        if question is not None:
            if question.request.kind == "auth":
                message = await self._withhold(message)
            return await self._answer(message, _put_into_words(message, question), by_words=True)
        approval = await self._find_approval(record)
        if approval is not None and record.shown:
            kept = explain_kept(approval)
            return await self._remark_on(message, kept, f"{kept}. {advise(approval)}")
        return await self._store(message, goes_on=False)

    async def _refer(self, message: FollowUp) -> FollowUp:
        """The message with the tasks that it refers to; one that refers to none costs nothing."""
        said, record = message.command.message, message.record
        if "metadata" in said and read_named(said):
            field = f"message.metadata.{NAMED}"
            raise InvalidInput(field, "names go with a message that opens a task; refer to tasks")
        if MEMBER not in said:
            return message
        peer = record.peer or record.kind
        found = await self.dispatch.references.find(message.principal, peer, said)
        return replace(message, referred=found)

    async def _take_decision(self, message: FollowUp) -> TurnAccepted | None:
        """What came of a message that is a decision, in our own form or in the agent's; None for any other one."""
        record, said = message.record, message.command.message
        answer = read_decision(said)
        try:
            decided = await find_decisions(
                self.writes, record, said, message.turn_id, has_own=answer is not None
            )
            if decided:
                return await self._decide_natively(message, decided)
        except CallerError as refused:
            if record.status not in WAITING:
                raise
            return await self._turn_down(message, refused)
        return None if answer is None else await self._answer(message, answer, by_words=False)

    async def _govern(self, message: FollowUp) -> FollowUp:
        """The message as it may go on to the agent, by all who have a say in what is sent.

        Raises:
            Forbidden: somebody speaks against it, or wants it asked about: it has to come as a task of its own then.
        """
        consulting, record = self.dispatch.consulting, message.record
        if not consulting.find_rules().judges_sends:
            return message
        run = record.attempts[-1] if record.attempts else None
        send = SendCase(
            peer=record.peer or record.kind,
            agent=record.agent,
            caller=record.scope.principal,
            tags=self.dispatch.find_terms(record.peer or record.kind).tags,
            card_hash=run.worker.card_hash if run else None,
            scope=scope_of(record),
            is_call=False,
        )
        shard = message.task.shard
        judged = await judge_send(
            consulting,
            send,
            message.referred.join(message.command.message),
            lambda name: self.writes.ids.mint(name, shard),
        )
        found = judged.strictest
        if found.decision == "allow" and not judged.heard.notes:
            return message
        await self._note(message, judged)
        if found.decision != "allow":
            denied = found.decision == "deny"
            how = "policy forbids it" if denied else "it has to be allowed first"
            raise Forbidden(
                f"the message is not sent: {how}: {found.reason}",
                why="policy" if denied else "approval_required",
            )
        if judged.heard.message is None:
            return message
        # What goes along stands in it as whoever changed it has left it.
        kept = [one for one in texts_at(judged.message, MEMBER) if one in message.referred.ids]
        changed: JsonObject = judged.message
        if MEMBER in changed:
            changed = {**changed, MEMBER: [*kept]}
        return replace(message, command=replace(message.command, message=changed))

    async def _note(self, message: FollowUp, judged: JudgedSend) -> None:
        spill, scope = BlobOverflow(), scope_of(message.record)
        facts = write_notes(spill, scope, judged.heard.notes)
        facts += [Fact(scope, one.to_payload()) for one in judged.evaluations]
        for blob in spill.blobs:
            await self.blobs.put(message.task.shard, blob)
        key = self.writes.ids.mint("note", message.task.shard)

        def body(decision: Decision) -> AppendOptions:
            decision.add(facts)
            return AppendOptions(idem=IdempotencyRow(key, key, b"", _NOTE_MS))

        await self.writes.decide(message.record.session_id, [], body)

    async def _find_repeat(self, message: FollowUp) -> TurnAccepted | None:
        if message.idem is None:
            return None
        key = hash_key(message.principal, message.idem)
        stored = await self.writes.log.read_idempotency(message.task.shard, key)
        if stored is None:
            return None
        if stored[0] != message.digest:
            raise IdempotencyConflict("the idempotency key was used for another request")
        return _accept(message.record, from_bytes(TurnReceipt, stored[1]).turn_id, repeated=True)

    async def _answer(
        self, message: FollowUp, answer: RespondAction, *, by_words: bool
    ) -> TurnAccepted:
        """Message and answer are one append: a refused answer leaves nothing behind, and a repeat finds both."""
        body = await self._prepare(message, goes_on=True)
        beside = Beside((message.task, message.thread), lambda decision: body(decision).idem)
        turn_id = message.turn_id if by_words else None
        written = await self.actions.answer(message.principal, answer, turn_id, beside)
        accepted = await self._conclude(message, written, sends=False)
        self.dispatch.wake(message.record.task_id, answer.action_id)
        return accepted

    async def _decide_natively(self, message: FollowUp, decided: Sequence[Decided]) -> TurnAccepted:
        """Message and answers are one append, as with an answer in our own form."""
        body = await self._prepare(message, goes_on=True)
        shown = await self._read_status(message)

        def conclude(decision: Decision) -> None:
            task = decision.state(message.task)
            if isinstance(task, TaskRecord) and task.status in WAITING:
                remark(
                    decision,
                    message.task,
                    message.thread,
                    message.turn_id,
                    shown,
                    "The answer is recorded. More of them are needed.",
                )

        refs = (message.task, message.thread)
        beside = Beside(refs, lambda decision: body(decision).idem, conclude)
        written = await self.actions.answer_together(message.principal, decided, beside)
        accepted = await self._conclude(message, written, sends=False)
        for one in decided:
            self.dispatch.wake(message.record.task_id, one.command.action_id)
        return accepted

    async def _turn_down(self, message: FollowUp, why: CallerError) -> TurnAccepted:
        """Says why a decision does not count where its sender looks: in the status of the task that still waits."""
        text = f"This answer does not count, and the agent was not sent it: {why.message}"
        return await self._remark_on(message, text, text)

    async def _remark_on(self, message: FollowUp, kept: str, text: str) -> TurnAccepted:
        """Keeps a message that is not sent, and says so in the status of the task that still waits."""
        prepared = await self._prepare(message, goes_on=True, kept=kept)
        shown = await self._read_status(message)

        def body(decision: Decision) -> AppendOptions:
            terms = prepared(decision)
            task = decision.state(message.task)
            if not isinstance(task, TaskRecord) or _stands_otherwise(task, message.record):
                raise _TaskMovedError
            remark(decision, message.task, message.thread, message.turn_id, shown, text)
            return terms

        refs = [message.task, message.thread]
        written = await self.writes.decide(message.record.session_id, refs, body)
        return await self._conclude(message, written, sends=False)

    async def _read_status(self, message: FollowUp) -> JsonObject:
        """The status of the task as its callers see it."""
        held = (await self.writes.load([message.task]))[message.task]
        task = await self.dispatch.contents.read_task(message.record, held.fields)
        return object_at(task or {}, "status")

    async def _find_question(self, record: TaskRecord) -> ActionRecord | None:
        """The open question that a message answers: words for what is asked, or what an authorization takes."""
        opened = await self._list_open(record)
        return next((one for one in opened if _takes_message(one, opened)), None)

    async def _find_approval(self, record: TaskRecord) -> ActionRecord | None:
        """The open question that binds: no message goes to the agent before somebody has decided."""
        if record.status not in WAITING:
            return None
        opened = await self._list_open(record)
        return next((one for one in opened if not _takes_message(one, opened)), None)

    async def _list_open(self, record: TaskRecord) -> list[ActionRecord]:
        return await self.actions.load_open(record.open_actions) if record.open_actions else []

    async def _withhold(self, message: FollowUp) -> FollowUp:
        """The message as it is kept: what it says may be a credential, which nobody but the agent reads."""
        withholding = self.dispatch.contents.withholding
        command = await withholding.withhold(message.command, message.task.shard, message.turn_id)
        return replace(message, command=command)

    async def _store(self, message: FollowUp, *, goes_on: bool) -> TurnAccepted:
        status = message.record.status
        kept = (
            None if message.works else f"This message was kept and not sent: the task is {status}"
        )
        body = await self._prepare(message, goes_on=goes_on, kept=kept)
        refs = [message.task, message.thread]
        written = await self.writes.decide(message.record.session_id, refs, body)
        return await self._conclude(message, written, sends=message.works)

    async def _prepare(
        self, message: FollowUp, *, goes_on: bool, kept: str | None = None
    ) -> Callable[[Decision], AppendOptions]:
        spill = BlobOverflow()
        submitting = submit(message.command, message.scope, spill, EXTENSIONS.get(), kept)
        for blob in spill.blobs:
            await self.blobs.put(message.task.shard, blob)

        def body(decision: Decision) -> AppendOptions:
            _decide(decision, message, submitting, goes_on=goes_on)
            at_ms = decision.now_ms + self.dispatch.find_doubt_ms(message.record.peer or "")
            owed = () if goes_on or not message.works else _owe(message, at_ms)
            return AppendOptions(due=owed, idem=_remember(message))

        return body

    async def _conclude(
        self, message: FollowUp, written: Written | WriteRefusal, *, sends: bool
    ) -> TurnAccepted:
        record = message.record
        if isinstance(written, Written) and written.repeated is not None:
            receipt = from_bytes(TurnReceipt, written.repeated)
            # Its own receipt comes back where the reply to the first try of this very append was lost.
            if receipt.turn_id != message.turn_id:
                return _accept(record, receipt.turn_id, repeated=True)
        await self.dispatch.refresh(record.task_id)
        if sends:
            params = message.command.params or {}
            self.inputs.send(record.task_id, message.turn_id, message.command.message, params)
        return _accept(record, message.turn_id, repeated=False)


def _check_place(command: SubmitTurn, record: TaskRecord) -> None:
    """Raises InvalidInput where a message names another context, or another thread, than the one of its task (G4)."""
    if command.context_id not in {None, record.scope.context_id}:
        raise InvalidInput("message.contextId", "it is not the context of the task")
    if command.thread_id not in {None, record.thread_id}:
        raise InvalidInput("threadId", "it is not the thread of the task")


def _decide(
    decision: Decision,
    message: FollowUp,
    submitting: SubmitMessage,
    *,
    goes_on: bool,
) -> None:
    command = message.command
    if (trace := read_trace(command.traceparent, command.tracestate)) is not None:
        decision.belong(trace)
    thread = decision.state(message.thread)
    if isinstance(thread, ThreadRecord):
        decision.add(threads.decide(thread, submitting))
        if message.referred.names_any and submitting.submitted.kept is None:
            _note_references(decision, message)
        tools = ResolveTools(message.scope, message.principal.id, message.catalog)
        decision.add(threads.decide(thread, tools))
    task = decision.state(message.task)
    # An answer that is stored with its message has moved the task in this very decision.
    if not goes_on and isinstance(task, TaskRecord) and _stands_otherwise(task, message.record):
        raise _TaskMovedError
    if message.works and not goes_on and isinstance(task, TaskRecord):
        message_id = str(message.command.message["messageId"])
        requested = ModelRequested(message.record.agent, "SendMessage", message_id)
        decision.add(tasks.decide(task, SendInput(requested)))
        return
    started = decision.state(message.thread)
    if not goes_on and isinstance(started, ThreadRecord):
        completed = TurnCompleted("task", message.record.status)
        ending = EndTurn(message.turn_id, message.record.task_id, completed)
        decision.add(threads.decide(started, ending))


def _note_references(decision: Decision, message: FollowUp) -> None:
    """Says which tasks the message refers to, and what goes along with it in their place."""
    record = message.record
    told = message.referred.list_facts(record.peer or record.kind)
    decision.add([Fact(message.scope, payload) for payload in told])
    own = {record.task_id, *(attempt.run_id for attempt in record.attempts)}
    for edge in message.referred.list_edges():
        task = decision.state(message.task)
        if isinstance(task, TaskRecord) and edge.target not in own and not _has(task, edge):
            decision.add(tasks.decide(task, LinkTask(edge)))


def _has(task: TaskRecord, edge: TaskDependencyUpdated) -> bool:
    return any(
        one.edge_id == edge.edge_id and one.status == edge.status for one in task.relationships
    )


def _stands_otherwise(task: TaskRecord, known: TaskRecord) -> bool:
    """Whether a message could mean something else now: words that went to an agent at work would answer a question."""
    return (task.status in WAITING, task.status in ENDED, task.open_actions) != (
        known.status in WAITING,
        known.status in ENDED,
        known.open_actions,
    )


def _owe(message: FollowUp, at_ms: int) -> tuple[DueChange, ...]:
    """The send that is owed from now on, and looked for then (I9)."""
    return (DueChange(name_row(message.record.task_id, message.turn_id), at_ms),)


def _takes_message(action: ActionRecord, opened: Sequence[ActionRecord]) -> bool:
    """Whether a message answers it. One for a credential in a form goes on whole, so it has to be all that is open."""
    request = action.request
    if request.kind == "auth" and not any(option.kind == "answer" for option in request.options):
        return request.remote is not None and len(opened) == 1
    return request.kind in {"input", "auth"}


def _put_into_words(message: FollowUp, question: ActionRecord) -> RespondAction:
    """The answer that a message is; the decision has the name of its turn, and the agent gets the message itself."""
    return RespondAction(
        action_id=question.request.action_id,
        rev=question.rev,
        digest=question.request.digest,
        decision_id=message.turn_id,
        content=describe_answer(message.command.message),
    )


def _remember(message: FollowUp) -> IdempotencyRow | None:
    if message.idem is None:
        return None
    record = message.record
    receipt = TurnReceipt(
        record.session_id,
        record.thread_id or "",
        message.turn_id,
        record.task_id,
        record.scope.context_id,
    )
    return remember(message.principal, message.idem, message.digest, receipt)


def _accept(record: TaskRecord, turn_id: str, *, repeated: bool) -> TurnAccepted:
    return TurnAccepted(
        session_id=record.session_id,
        thread_id=record.thread_id or "",
        turn_id=turn_id,
        task_id=record.task_id,
        facade=expose(TaskId(record.task_id), record.exposure),
        context_id=record.scope.context_id,
        repeated=repeated,
    )
