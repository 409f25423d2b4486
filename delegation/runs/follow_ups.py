"""A message that names a task: an answer, a further input, or a remark on a task that waits (LT-5).

A text for a task that waits for text is the answer. For a permission it decides nothing: only the typed part does
(CHN-7); the text is stored as a turn, whose answer is the task, still waiting. A task that works gets the message as
further input on its live run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.extensions import NAMED
from passerelle.a2a_mapping.inbound import read_named
from passerelle.a2a_mapping.members import object_at, texts_at
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import RespondAction, TurnAccepted
from passerelle.core.errors import (
    CallerError,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    UnsupportedOperation,
    WriteConflict,
)
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.task.machine import scope_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, WAITING
from passerelle.core.wire.codec import from_bytes
from passerelle.delegation.runs.follow_up_facts import (
    FollowUp,
    TaskChangedError,
    accept,
    add_message,
    answer_in_words,
    check_place,
    find_approval,
    has_task_changed,
    remember_turn,
    schedule_send,
    takes_message,
)
from passerelle.delegation.runs.remarks import advise, explain_kept, remark
from passerelle.permission_bridge.answers.actions import CarryingMessage
from passerelle.permission_bridge.answers.native_answers import find_decisions
from passerelle.permission_bridge.send_judgement import (
    SendCase,
    check_judgement,
    judge_send,
    note_judgement,
)
from passerelle.runtime.common.carried import EXTENSIONS
from passerelle.runtime.records.blob_overflow import BlobOverflow
from passerelle.runtime.records.idempotency import TurnReceipt
from passerelle.runtime.records.message_summary import digest_request, read_input, submit
from passerelle.runtime.records.ownership import NOTHING_KNOWN
from passerelle.runtime.records.places import hash_key
from passerelle.runtime.records.references import MEMBER
from passerelle.runtime.records.writes import MAX_TRIES, AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Decision, Held
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.inputs import Inputs
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.answers.native_answers import NativeDecision
    from passerelle.permission_bridge.send_judgement import JudgedSend
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import WriteRefusal, Writes


@frozen
class FollowUps:
    """Accepts messages that name a task."""

    writes: Writes
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
        """Stores the message and applies it, once per idempotency key.

        Raises:
            NotFound: no such task of the caller (G3).
            InvalidInput: a context that is not the task's (G4).
            UnsupportedOperation: the task has ended (LT-12).
            Conflict: others changed the task in every try.
        """
        known = self._recall(command.task or "")
        for _ in range(MAX_TRIES):
            with suppress(TaskChangedError):
                return await self._take(principal, command, idem, catalog, known)
            known = NOTHING_KNOWN
        raise WriteConflict("the task was changed by others again and again; try once more")

    def _recall(self, facade: str) -> Mapping[EntityRef, Held]:
        """What the local driver of a waiting task holds of it; other writers may have changed it since.

        Empty if rules judge the message: the record of a judgement is stored before the answer, which the driver's copy
        lacks then, and a second try would ask the hooks again.
        """
        if self.dispatch.consulting.find_rules().judges_sends:
            return NOTHING_KNOWN
        parsed = parse_facade(facade)
        driver = self.dispatch.find(parsed[0]) if parsed is not None else None
        return NOTHING_KNOWN if driver is None else driver.run.recall_waiting()

    async def _take(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        catalog: ToolCatalogResolved | None,
        known: Mapping[EntityRef, Held],
    ) -> TurnAccepted:
        owned = await self.ownership.find(principal, command.task or "", command.agent, known=known)
        record = owned.record
        check_place(command, record)
        turn_id = self.writes.ids.mint("turn", owned.ref.shard)
        digest = "" if idem is None else digest_request(command)
        message = FollowUp(principal, command, idem, owned.ref, record, turn_id, digest, catalog)
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
            raise UnsupportedOperation("the agent has ended the task; its result is being checked")
        held = known or await self._read_open(message)
        records = (one.record for one in held.values())
        opened = [one for one in records if isinstance(one, ActionRecord) and one.is_open]
        question = next((one for one in opened if takes_message(one, opened)), None)
        # A question of the gateway itself is answered to the gateway: nothing of the answer is sent to the agent.
        is_ours = question is not None and question.request.origin.asked_by == "gateway"
        is_withheld = question is not None and question.request.kind == "auth"
        if message.works or (question is not None and not is_ours):
            message = await self._govern(message, is_withheld=is_withheld)
        if question is not None:
            if is_withheld:
                message = await self._withhold(message)
            answer = answer_in_words(message, question)
            return await self._answer(message, answer, held, is_recalled=bool(known))
        approval = find_approval(record, opened)
        if approval is not None and record.shown:
            kept = explain_kept(approval)
            return await self._remark_on(message, kept, f"{kept}. {advise(approval)}")
        return await self._store(message, goes_on=False)

    async def _refer(self, message: FollowUp) -> FollowUp:
        """The message with the tasks that it refers to; without references it costs nothing."""
        content, record = message.command.message, message.record
        if "metadata" in content and read_named(content):
            field = f"message.metadata.{NAMED}"
            raise InvalidInput(field, "names go with a message that opens a task; refer to tasks")
        if MEMBER not in content:
            return message
        peer = record.peer or record.kind
        found = await self.dispatch.references.find(message.principal, peer, content)
        return replace(message, referred=found)

    async def _take_decision(self, message: FollowUp) -> TurnAccepted | None:
        """Handles a message that is a decision, in the gateway's form or the agent's; None for any other one."""
        record, content = message.record, message.command.message
        answer = read_decision(content)
        try:
            decided = await find_decisions(
                self.writes, record, content, message.turn_id, has_own=answer is not None
            )
            if decided:
                await self._judge_beside(message)
                return await self._decide_natively(message, decided)
        except CallerError as refused:
            if record.status not in WAITING:
                raise
            return await self._turn_down(message, refused)
        if answer is None:
            return None
        await self._judge_beside(message)
        return await self._answer(message, answer)

    async def _govern(self, message: FollowUp, *, is_withheld: bool) -> FollowUp:
        """The message as it may be sent to the agent, after rules and hooks.

        Raises:
            Forbidden: it is denied, or needs an approval: then it has to come as a task of its own.
        """
        judged = await self._judge(message, is_withheld=is_withheld)
        if judged is None or judged.hook_results.message is None:
            return message
        # References that were resolved stay if the changed message still contains them.
        kept = [one for one in texts_at(judged.message, MEMBER) if one in message.referred.ids]
        changed: JsonObject = judged.message
        if MEMBER in changed:
            changed = {**changed, MEMBER: [*kept]}
        return replace(message, command=replace(message.command, message=changed))

    async def _judge(self, message: FollowUp, *, is_withheld: bool) -> JudgedSend | None:
        """The evaluation of what the agent gets; None if nothing judges it, or all of it allows the message as it is.

        Raises:
            Forbidden: it is denied, or needs an approval.
        """
        consulting, record = self.dispatch.consulting, message.record
        if not consulting.find_rules().judges_sends:
            return None
        run = record.attempts[-1] if record.attempts else None
        send = SendCase(
            peer=record.peer or record.kind,
            agent=record.agent,
            caller=record.scope.principal,
            tags=self.dispatch.find_terms(record.peer or record.kind).tags,
            card_hash=run.worker.card_hash if run else None,
            scope=scope_of(record),
            is_call=False,
            metadata=message.metadata,
        )
        shard = message.task.shard
        judged = await judge_send(
            consulting,
            send,
            message.referred.join(message.command.message),
            lambda name: self.writes.ids.mint(name, shard),
            is_withheld=is_withheld,
        )
        if judged.strictest.decision == "allow" and not judged.hook_results.notes:
            return None
        await note_judgement(self.writes, self.dispatch.blobs, send.scope, judged)
        check_judgement(judged)
        return judged

    async def _judge_beside(self, message: FollowUp) -> None:
        """Evaluates a decision that the agent gets with the metadata of its request; without it nothing is judged here.

        Raises:
            Forbidden: it is denied, needs an approval, or a hook would change it.
        """
        run = message.record.run
        if not message.metadata or run is None or run.gated:
            return  # of an answer to the gateway itself, nothing is sent
        judged = await self._judge(message, is_withheld=False)
        if judged is not None and judged.hook_results.message is not None:
            raise Forbidden(
                "the decision is not sent: a hook would change it; send it without metadata",
                why="policy",
            )

    async def _find_repeat(self, message: FollowUp) -> TurnAccepted | None:
        if message.idem is None:
            return None
        key = hash_key(message.principal, message.idem)
        stored = await self.writes.log.read_idempotency(message.task.shard, key)
        if stored is None:
            return None
        if stored[0] != message.digest:
            raise IdempotencyConflict("the idempotency key was used for another request")
        return accept(message.record, from_bytes(TurnReceipt, stored[1]).turn_id, repeated=True)

    async def _answer(
        self,
        message: FollowUp,
        answer: RespondAction,
        held: Mapping[EntityRef, Held] | None = None,
        *,
        is_recalled: bool = False,
    ) -> TurnAccepted:
        """Stores message and answer in one append: a refused answer leaves nothing behind, and a repeat finds both.

        ``held``: the message text is the answer, to the questions in ``held``, just read or taken from the driver.

        Raises:
            TaskChangedError: what the driver held was outdated.
        """
        body = await self._prepare(message, goes_on=True)
        refs, tries = (message.task, message.thread), count()

        def decide(decision: Decision) -> IdempotencyRow | None:
            if next(tries) and is_recalled:
                raise TaskChangedError
            return body(decision).idem

        beside = CarryingMessage(refs, decide, held=held or {})
        turn_id = message.turn_id if held else None
        written = await self.actions.answer(message.principal, answer, turn_id, beside)
        accepted = await self._conclude(message, written, sends=False)
        self.dispatch.wake(message.record.task_id, answer.action_id, written)
        return accepted

    async def _decide_natively(
        self, message: FollowUp, decided: Sequence[NativeDecision]
    ) -> TurnAccepted:
        """Stores message and answers in one append, as with an answer in the gateway's form."""
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
                    "The answer is recorded. More answers are needed.",
                )

        refs = (message.task, message.thread)
        beside = CarryingMessage(refs, lambda decision: body(decision).idem, conclude)
        written = await self.actions.answer_together(message.principal, decided, beside)
        accepted = await self._conclude(message, written, sends=False)
        for one in decided:
            self.dispatch.wake(message.record.task_id, one.command.action_id, written)
        return accepted

    async def _turn_down(self, message: FollowUp, why: CallerError) -> TurnAccepted:
        """Explains why a decision was not accepted, in the status of the task that still waits."""
        text = f"This answer was not accepted, and not sent to the agent: {why.message}"
        return await self._remark_on(message, text, text)

    async def _remark_on(self, message: FollowUp, kept: str, text: str) -> TurnAccepted:
        """Stores a message that is not sent, and explains that in the status of the task that still waits."""
        prepared = await self._prepare(message, goes_on=True, kept=kept)
        shown = await self._read_status(message)

        def body(decision: Decision) -> AppendOptions:
            terms = prepared(decision)
            task = decision.state(message.task)
            if not isinstance(task, TaskRecord) or has_task_changed(task, message.record):
                raise TaskChangedError
            remark(decision, message.task, message.thread, message.turn_id, shown, text)
            return terms

        refs = [message.task, message.thread]
        written = await self.writes.decide(message.record.session_id, refs, body)
        return await self._conclude(message, written, sends=False)

    async def _read_status(self, message: FollowUp) -> JsonObject:
        """The status of the task as its callers see it."""
        held = await self.writes.load_one(message.task)
        task = await self.dispatch.contents.read_task(message.record, held.fields)
        return object_at(task or {}, "status")

    async def _read_open(self, message: FollowUp) -> dict[EntityRef, Held]:
        """The open questions of the task, with the task and its thread, in one read; nothing if none is open."""
        opened = message.record.open_actions
        refs = [EntityRef(EntityKind.ACTION, one) for one in opened]
        return await self.writes.load([message.task, message.thread, *refs]) if refs else {}

    async def _withhold(self, message: FollowUp) -> FollowUp:
        """The message as it is stored: its content may be a credential, which only the agent may read."""
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
            await self.dispatch.blobs.put(message.task.shard, blob)

        def body(decision: Decision) -> AppendOptions:
            add_message(decision, message, submitting, goes_on=goes_on)
            at_ms = decision.now_ms + self.dispatch.find_doubt_ms(message.record.peer or "")
            owed = () if goes_on or not message.works else schedule_send(message, at_ms)
            return AppendOptions(due=owed, idem=remember_turn(message))

        return body

    async def _conclude(
        self, message: FollowUp, written: Written | WriteRefusal, *, sends: bool
    ) -> TurnAccepted:
        record = message.record
        if isinstance(written, Written) and written.repeated is not None:
            receipt = from_bytes(TurnReceipt, written.repeated)
            # Its own receipt comes back if the reply to the first try of this very append was lost.
            if receipt.turn_id != message.turn_id:
                return accept(record, receipt.turn_id, repeated=True)
        news = None
        if isinstance(written, Written):
            turn = message.turn_id, read_input(message.command, EXTENSIONS.get())
            written = replace(written, turn=turn)
            news = written
        await self.dispatch.refresh(record.task_id, news)
        if sends:
            params = message.command.params or {}
            self.inputs.send(record.task_id, message.turn_id, message.command.message, params)
        return accept(record, message.turn_id, repeated=False)
