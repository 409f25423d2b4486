"""Decides approval requests: the first valid answer wins, once, and every later answer learns the winner (I7, CMD-14).

The decision, the task's next state and the due row of its delivery are one append. It carries ``not_after``, checked
against the server's clock, so instances cannot disagree about an expiry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.frames import make_status, status_frame
from passerelle.a2a_mapping.states import WORKING
from passerelle.core.approval import machine as approval
from passerelle.core.approval.audience import may_read
from passerelle.core.approval.commands import AnswerAction, Expire
from passerelle.core.approval.record import ActionRecord
from passerelle.core.approval.votes import count_agreeing
from passerelle.core.batch import EntityKind, EntityRef, Late
from passerelle.core.commands import ActionAnswered
from passerelle.core.errors import ActionClosed, InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose, read_shard, shard_of
from passerelle.core.session.device import name_list
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import EndWait
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import WAITING
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.answers.action_rows import close_rows
from passerelle.permission_bridge.devices.assurance import Assured
from passerelle.permission_bridge.devices.device_lists import refer
from passerelle.permission_bridge.views import render_view
from passerelle.runtime.records.action_index import read_ahead, take_ahead
from passerelle.runtime.records.blob_overflow import BlobOverflow, show
from passerelle.runtime.records.refusals import RECORDED, Refusals
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.core.approval.commands import ActionCommand
    from passerelle.core.batch import DueClaim, IdempotencyRow
    from passerelle.core.commands import RespondAction
    from passerelle.core.decision import Decision, Held
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.native_answers import NativeDecision
    from passerelle.permission_bridge.answers.words import AnswerTextPolicy
    from passerelle.permission_bridge.devices.assurance import Assurance
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.writes import Writes


@frozen
class CarryingMessage:
    """The message that carried an answer; it is stored in the same append as the answer."""

    refs: tuple[EntityRef, ...]
    decide: Callable[[Decision], IdempotencyRow | None]
    conclude: Callable[[Decision], None] | None = None
    """Called after the answers are decided, with the state that the task has then."""
    held: Mapping[EntityRef, Held] = field(default_factory=dict[EntityRef, "Held"])
    """The entities of the request and of ``refs``, if they were read already."""

    def names_task_of(self, record: ActionRecord) -> bool:
        """Whether the message was sent to the task that the request belongs to."""
        return EntityRef(EntityKind.TASK, record.scope.task_id or "") in self.refs


@dataclass(slots=True)
class Actions:
    """Reads and closes approval requests."""

    writes: Writes
    assurance: Assurance
    refusals: Refusals
    arrivals: InboxArrivals
    words: AnswerTextPolicy

    async def respond(
        self, principal: Principal, command: RespondAction
    ) -> tuple[ActionAnswered, Written]:
        """Stores an answer; returns its outcome and what was stored.

        Raises:
            NotFound, Forbidden, ActionClosed, StaleAnswer, UnknownOption, InvalidContent: nothing is written.
        """
        outcome = await self.answer(principal, command)
        record = find_record(outcome.held, command.action_id)
        return _describe(record, principal, replayed=outcome.unchanged), outcome

    async def resolve(
        self, principal: Principal, command: RespondAction
    ) -> tuple[ActionRecord, str]:
        """Stores the answer of a host's policy; returns the request and the id of its task (CMD-21).

        Raises:
            NotFound, Forbidden, ActionClosed, StaleAnswer, UnknownOption, InvalidContent: nothing is written.
        """
        held, devices = await self._read_for(principal, command)
        before = find_record(held, command.action_id)
        if before.request.tenant != principal.tenant:
            raise NotFound("action", command.action_id)
        assured = await self.assurance.judge(principal, command, before, devices)
        answer = replace(_make_answer(assured, command, None), is_host=True)
        await self._judge_words(before, answer)
        outcome = await self.close(command.action_id, answer, held=held)
        if not isinstance(outcome, Written):
            raise await self._close_late(command.action_id, outcome)
        record = find_record(outcome.held, command.action_id)
        return record, record.scope.task_id or ""

    async def answer(
        self,
        principal: Principal,
        command: RespondAction,
        turn_id: str | None = None,
        carrier: CarryingMessage | None = None,
    ) -> Written:
        """Stores an answer together with the message that carried it; the caller notifies the driver of the task.

        ``turn_id``: the turn of a message to the task whose text is the answer.

        Raises:
            NotFound, Forbidden, ActionClosed, StaleAnswer, UnknownOption, InvalidContent: nothing is written.
            InvalidInput: the message was sent to another task.
        """
        # A text answer needs no device, so entities that were just read are not read again.
        known = carrier.held if carrier is not None and turn_id is not None else None
        held, devices = (known, {}) if known else await self._read_for(principal, command)
        before = find_record(held, command.action_id)
        if not may_read(before, principal):
            raise NotFound("action", command.action_id)
        if carrier is not None and not carrier.names_task_of(before):
            raise InvalidInput("message.parts", "decides an approval of another task")
        assured = Assured(principal)
        try:
            # A text answer is no decision: the owner of the task may send it from any device.
            if turn_id is None:
                assured = await self.assurance.judge(principal, command, before, devices)
            answer = _make_answer(assured, command, turn_id)
            if turn_id is None:
                await self._judge_words(before, answer)
            outcome = await self.close(
                command.action_id, answer, carrier=carrier, held=held, is_notified=True
            )
        except RECORDED as refused:
            await self.refusals.record(assured.who, before, refused)
            raise
        if isinstance(outcome, Written):
            return outcome
        raise await self._close_late(command.action_id, outcome)

    async def answer_together(
        self, principal: Principal, decided: Sequence[NativeDecision], carrier: CarryingMessage
    ) -> Written:
        """Stores the answers of one message in one append, all or none. The caller notifies the driver.

        Raises:
            NotFound, Forbidden, ActionClosed, StaleAnswer, UnknownOption, InvalidContent: nothing is written.
        """
        held: dict[EntityRef, Held] = {}
        answers: dict[str, AnswerAction] = {}
        for one in decided:
            found, devices = await self._read_for(principal, one.command)
            held |= found
            before = find_record(found, one.command.action_id)
            if not may_read(before, principal) or not carrier.names_task_of(before):
                raise NotFound("action", one.command.action_id)
            try:
                assured = await self.assurance.judge(principal, one.command, before, devices)
                answer = replace(_make_answer(assured, one.command, None), native=one.native)
                # Decided one by one before the append, so that a refusal can be attributed to its request.
                approval.decide(before, answer, self.writes.clock.now_ms())
                await self._judge_words(before, answer)
            except RECORDED as refused:
                await self.refusals.record(principal, before, refused)
                raise
            answers[one.command.action_id] = answer
        return await self._close_together(answers, held, carrier)

    async def _judge_words(self, question: ActionRecord, answer: AnswerAction) -> None:
        if self.words.concerns(question, answer):
            # An answer that would not count is refused before its text is evaluated.
            approval.decide(question, answer, self.writes.clock.now_ms())
            await self.words.judge(question, answer)

    async def _close_together(
        self,
        answers: Mapping[str, AnswerAction],
        held: Mapping[EntityRef, Held],
        carrier: CarryingMessage,
    ) -> Written:
        frames: list[JsonObject] = []
        tasks_of = [ref for ref in held if ref.kind is EntityKind.TASK]

        def body(decision: Decision) -> AppendOptions:
            idem = carrier.decide(decision)
            frames.clear()
            terms: list[AppendOptions] = []
            for action_id, answer in answers.items():
                refs = [EntityRef(EntityKind.ACTION, action_id), *tasks_of]
                terms.append(self._decide(decision, refs, answer, None, frames, is_notified=True))
            if carrier.conclude is not None:
                carrier.conclude(decision)
            ends = [one.not_after_ms for one in terms if one.not_after_ms is not None]
            due = tuple(row for one in terms for row in one.due)
            return AppendOptions(not_after_ms=min(ends, default=None), due=due, idem=idem)

        first = next(iter(answers))
        session = find_record(held, first).scope.session_id
        outcome = await self.writes.decide(session, [*held, *carrier.refs], body)
        if isinstance(outcome, Written):
            return replace(outcome, frames=tuple(frames))
        if isinstance(outcome, Late):
            raise await self._close_late(first, outcome)
        raise UnsupportedOperation("another caller is closing the approval; read it again")

    async def _close_late(self, action_id: str, late: Late) -> ActionClosed:
        """The error for an answer that the store refused as late; closes the request."""
        await self.expire(action_id, late.now_ms)
        record = find_record(await self.load(action_id), action_id)
        return ActionClosed(record.closed_as or "expired", record.describe_winner())

    async def expire(
        self, action_id: str, now_ms: int, claim: DueClaim | None = None
    ) -> Written | None:
        """Closes a request that has expired by the store's clock; a request that is already closed stays as it is."""
        held = await self.load(action_id)
        if not find_record(held, action_id).is_open:
            return None
        outcome = await self.close(action_id, Expire(now_ms), claim)
        return outcome if isinstance(outcome, Written) else None

    async def close(
        self,
        action_id: str,
        command: ActionCommand,
        claim: DueClaim | None = None,
        carrier: CarryingMessage | None = None,
        held: Mapping[EntityRef, Held] | None = None,
        *,
        is_notified: bool = False,
    ) -> Written | Late:
        """Applies one command and its consequences in one append. ``held``: the entities it touches, if already read.

        ``is_notified``: the caller notifies the driver of the task next.
        """
        held = held or await self.load(action_id)
        record = find_record(held, action_id)
        refs = [EntityRef(EntityKind.ACTION, action_id), *_refer_task(record.scope.task_id)]
        frames: list[JsonObject] = []

        def body(decision: Decision) -> AppendOptions:
            idem = carrier.decide(decision) if carrier else None
            frames.clear()
            decided = self._decide(decision, refs, command, claim, frames, is_notified=is_notified)
            return replace(decided, idem=idem)

        wanted = dict.fromkeys((*refs, *(carrier.refs if carrier else ())))
        known = {ref: held[ref] for ref in wanted if ref in held}
        outcome = await self.writes.decide(
            record.scope.session_id, wanted, body, known if len(known) == len(wanted) else None
        )
        if isinstance(outcome, Written):
            return replace(outcome, frames=tuple(frames))
        if isinstance(outcome, Late):
            return outcome
        raise UnsupportedOperation("another caller is closing the approval; read it again")

    def _decide(
        self,
        decision: Decision,
        refs: list[EntityRef],
        command: ActionCommand,
        claim: DueClaim | None,
        frames: list[JsonObject],
        *,
        is_notified: bool,
    ) -> AppendOptions:
        action_ref = next(ref for ref in refs if ref.kind is EntityKind.ACTION)
        action = decision.state(action_ref)
        record = action if isinstance(action, ActionRecord) else None
        facts = approval.decide(record, command, decision.now_ms)
        if not facts:
            return AppendOptions()
        decision.add(facts)
        not_after = approval.find_not_after(record, command)
        closed = decision.state(action_ref)
        if not isinstance(closed, ActionRecord) or closed.is_open or closed.consumed_at:
            return AppendOptions(not_after_ms=not_after, claim=claim)
        frames += _resume_task(decision, refs)
        is_here = any(self.writes.find_writer_lock(ref) is not None for ref in refs)
        due = close_rows(closed, decision.now_ms, is_carried=is_notified and is_here)
        return AppendOptions(not_after_ms=not_after, due=due, claim=claim)

    async def load(self, action_id: str) -> dict[EntityRef, Held]:
        """Reads a request with its task, in one read if the task is known.

        Raises:
            NotFound: there is no such request.
        """
        return await self._load(action_id)

    async def _load(self, action_id: str, *others: EntityRef) -> dict[EntityRef, Held]:
        if read_shard(action_id) is None:
            raise NotFound("action", action_id)
        known = self.writes.action_index.find(action_id)
        wanted = [EntityRef(EntityKind.ACTION, action_id), *others]
        held = await self.writes.load([*wanted, *_refer_task(known)])
        record = find_record(held, action_id)
        missing = [ref for ref in _refer_task(record.scope.task_id) if ref not in held]
        return held | (await self.writes.load(missing) if missing else {})

    def read_ahead(self, action_id: str, list_id: str) -> None:
        """Prefetches what an answer will read, while the sender is still being authenticated."""
        read_ahead(action_id, list_id, self._load(action_id, refer(list_id)))

    async def _read_for(
        self, principal: Principal, command: RespondAction
    ) -> tuple[dict[EntityRef, Held], dict[EntityRef, Held]]:
        """The entities that an answer touches, and the devices of its sender, in one read."""
        action_id, list_id = command.action_id, name_list(principal)
        found = await take_ahead(action_id, list_id)
        found = found or await self._load(action_id, refer(list_id))
        devices = {ref: one for ref, one in found.items() if ref.kind is EntityKind.DEVICES}
        return {ref: one for ref, one in found.items() if ref not in devices}, devices

    async def read_open(self, principal: Principal, action_ids: Sequence[str]) -> list[JsonObject]:
        """The views of the open requests among these that the principal may decide, in one read."""
        records = await self.load_open(action_ids)
        return [render_view(record) for record in records if may_read(record, principal)]

    async def read_closed(
        self, principal: Principal, action_ids: Sequence[str], states: Sequence[str]
    ) -> list[JsonObject]:
        """The views of those requests that were closed in ``states`` and that the principal may see."""
        found = await self.writes.read_all(ActionRecord, action_ids)
        return [
            render_view(one)
            for one in found.values()
            if one.state in states and may_read(one, principal)
        ]

    async def load_open(self, action_ids: Sequence[str]) -> list[ActionRecord]:
        """The open requests among these."""
        found = await self.writes.read_all(ActionRecord, action_ids)
        return [one for one in found.values() if one.is_open]

    async def read(self, principal: Principal, action_id: str) -> JsonObject:
        """The view of a request, for those who may read it and for the worker that asked."""
        held = await self.load(action_id)
        record = find_record(held, action_id)
        if not (may_read(record, principal) or is_asker(record, principal)):
            raise NotFound("action", action_id)
        if record.is_open and may_read(record, principal):
            self.arrivals.note(principal.key, shard_of(record.scope.session_id))
        return render_view(record)


def is_asker(record: ActionRecord, who: Principal) -> bool:
    """Whether this worker waits for the decision."""
    request = record.request
    waits = request.origin.asked_by == "worker" and request.origin.peer == who.id
    return waits and request.tenant == who.tenant


def has_asked(record: ActionRecord, who: Principal) -> bool:
    """Whether this worker asked, or the request is about a command of this caller."""
    origin = record.request.origin
    is_command = origin.asked_by == "principal" and origin.peer == who.id
    return is_asker(record, who) or (is_command and record.request.tenant == who.tenant)


def _describe(record: ActionRecord, who: Principal, *, replayed: bool) -> ActionAnswered:
    agree = count_agreeing(record)
    need = record.request.quorum.need
    if record.decision is not None:
        return ActionAnswered(
            "replayed" if replayed else "won", record.rev, record.decision, agree, need
        )
    if any(vote.principal == who.id for vote in record.votes):
        return ActionAnswered("vote_recorded", record.rev, None, agree, need)
    raise UnsupportedOperation("the answer was not recorded; try again")


def _make_answer(assured: Assured, command: RespondAction, turn_id: str | None) -> AnswerAction:
    return AnswerAction(
        who=assured.who,
        rev=command.rev,
        digest=command.digest,
        decision_id=command.decision_id,
        option_id=command.option_id,
        content=command.content,
        comment=command.comment,
        turn_id=turn_id,
        rights=assured.rights,
        signature=assured.signature,
        must_sign=assured.must_sign,
        void=assured.void,
    )


def find_record(held: Mapping[EntityRef, Held], action_id: str) -> ActionRecord:
    """The request among the entities that were read.

    Raises:
        NotFound: it does not exist.
    """
    record = held[EntityRef(EntityKind.ACTION, action_id)].record
    if not isinstance(record, ActionRecord):
        raise NotFound("action", action_id)
    return record


def _refer_task(task_id: str | None) -> list[EntityRef]:
    return [EntityRef(EntityKind.TASK, task_id)] if task_id else []


def _resume_task(decision: Decision, refs: list[EntityRef]) -> list[JsonObject]:
    """Resumes the task once no request is open; returns the frames for callers that follow the task."""
    frames: list[JsonObject] = []
    for ref in refs:
        record = decision.state(ref)
        if (
            not isinstance(record, TaskRecord)
            or record.open_actions
            or record.status not in WAITING
        ):
            continue
        facts = tasks.decide(record, EndWait("every question is answered"))
        if not record.shown:
            decision.add(facts)
            continue
        facade = expose(TaskId(record.task_id), record.exposure)
        status = make_status(WORKING, format_ms(decision.now_ms))
        frame = status_frame(facade, record.scope.context_id, status)
        decision.add(show(BlobOverflow(), facts[-1], frame, facade, "status"))
        frames.append(frame)
    return frames
