"""Attempts that wait for their agent: queued instead of begun, and begun when their turn has come (MK-6).

A waiting task has no run and no driver: it is a record, a row in the queue of its agent, and a due row of its own.
The fact that it is queued contains the whole attempt, so any instance that begins it sends what the caller requested.
If two instances begin it at the same moment, one append is stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import DueChange, EntityKind, EntityRef, RunMove
from passerelle.core.errors import NotFound, RemoteError, UnsupportedOperation
from passerelle.core.facts import ErrorCategory, ErrorDetail, Worker
from passerelle.core.frozen import frozen
from passerelle.core.payloads.conversation import QueueChanged
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import ChangeQueue, StartTurn, ThreadRecord
from passerelle.core.task.commands import StartRun
from passerelle.core.task.record import TaskRecord, waits_for_quota, waits_for_turn
from passerelle.core.task.status import Status
from passerelle.delegation.runs.draft import compose_input
from passerelle.delegation.runs.finish import fail_pending_attempt
from passerelle.delegation.runs.holds import FIRST_LOOK_MS, QUEUED, make_command
from passerelle.delegation.runs.limits import bound_policy, find_obstacle, list_limits
from passerelle.runtime.records.starting_tasks import load_assigned, load_waiting
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.batch import DueClaim
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.limit import LimitPayload
    from passerelle.core.payloads.task import TaskAttemptStarted
    from passerelle.core.peer import Peer, PeerCard, SendSlot
    from passerelle.core.task.record import QueuedAttempt
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.holds import QueueHold
    from passerelle.delegation.runs.run import Run
    from passerelle.runtime.records.references import References

_CARD_S: Final = 3.0
"""How long the card of an agent is waited for. Without one the attempt begins all the same, and fails with a reason."""


@frozen
class QueuedAttempts:
    """Queues attempts and begins them."""

    dispatch: Dispatch
    references: References

    async def hold(
        self, run: Run, attempt: TaskAttemptStarted, hold: QueueHold, claim: DueClaim
    ) -> None:
        """Queues the further attempt of a claimed row; the row is replaced by one of the queue."""

        def wait(draft: DecisionDraft) -> None:
            draft.add(draft.decide(make_command(attempt, hold)))

        def conclude(draft: DecisionDraft) -> AppendOptions:
            at_ms = draft.decision.now_ms + FIRST_LOOK_MS
            row = DueChange(f"{QUEUED}:{run.record.task_id}", at_ms)
            return AppendOptions(claim=claim, due=(row,))

        await run.append(wait, conclude)

    async def list_turns(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The turns of tasks that wait in a context, in their order; tasks that have stopped waiting are left out."""
        waiting = await load_waiting(self.dispatch.writes, tasks)
        return tuple(one.turn_id or "" for one in waiting)

    async def leave_line(self, record: TaskRecord, order: tuple[str, ...]) -> None:
        """Updates the queue of a context after one of its turns has ended before it began.

        Raises:
            StoreUnavailable, WriteConflict: it is not known to be written; a retry is harmless.
        """
        if record.thread_id is None or record.attempts:
            return
        ref = EntityRef(EntityKind.THREAD, record.thread_id)

        def body(decision: Decision) -> AppendOptions:
            thread = decision.state(ref)
            if isinstance(thread, ThreadRecord) and thread.waiting_turns > len(order):
                decision.add(threads.decide(thread, ChangeQueue(QueueChanged("removed", order))))
            return AppendOptions()

        await self.dispatch.writes.decide(record.session_id, [ref], body)

    async def move_on(
        self,
        task_id: str,
        hold: QueueHold,
        behind: tuple[str, ...] | None,
        paid: tuple[LimitPayload, ...],
    ) -> TaskRecord | None:
        """Has a task whose turn has come wait for something else, such as a slot at its agent.

        ``behind`` are the turns that then wait in its context, if it has waited for turns of that context. ``paid`` are
        the facts of the quota that it was charged to. Returns None if it does not wait for that any more, or another
        turn of its context is running.
        """
        run = await self.dispatch.hold(task_id)
        queued = run.record.queued
        waits = waits_for_quota(run.record) if behind is None else waits_for_turn(run.record)
        if queued is None or not waits:
            return None

        def start(draft: DecisionDraft) -> None:
            if behind is not None:
                _start_turn(draft, behind)
            elif not waits_for_quota(draft.record):
                raise UnsupportedOperation("it does not wait for a quota any more")
            draft.note(*paid)
            kept = replace(hold, send_options=queued.send_options)
            _record_wait(draft, queued, kept)

        try:
            await run.append(start)
        except UnsupportedOperation:
            return None
        return run.record

    async def wait_on(self, task_id: str, hold: QueueHold) -> None:
        """Updates the time until which a task waits for a quota.

        Raises:
            StoreUnavailable, WriteConflict: it is not known to be written; a retry is harmless.
        """
        run = await self.dispatch.hold(task_id)

        def update(draft: DecisionDraft) -> None:
            queued = draft.record.queued
            if queued is not None and waits_for_quota(draft.record):
                _record_wait(draft, queued, hold)

        await run.append(update)

    async def begin(
        self,
        task_id: str,
        place: SendSlot | None,
        behind: tuple[str, ...] | None = None,
        paid: tuple[LimitPayload, ...] = (),
    ) -> bool:
        """Begins the attempt of a task whose turn has come; False if there is none (any more).

        ``place`` is the reserved slot of its agent's limits; the run owns it once it begins. ``behind``: the turns that
        then wait in its context, if it has waited for turns of that context. ``paid``: the facts of the quota that it
        was just charged to.

        Raises:
            StoreUnavailable: the due row of the task stays, and queues it again.
        """
        run = await self.dispatch.hold(task_id)
        queued = run.record.queued
        is_ready = run.record.status is Status.QUEUED or waits_for_quota(run.record)
        if queued is None or not is_ready:
            return False
        try:
            peer = self.dispatch.find_peer(run.context.peer)
        except NotFound as error:
            await self._fail(run, "peer_gone", str(error), behind)
            return False
        card = await find_card(peer)
        price = run.context.price.estimate() if run.context.price else 0
        obstacle = find_obstacle(run.record, peer.name, card.endpoint if card else None, price)
        if obstacle is not None:
            await self._fail(run, "constraint", obstacle, behind)
            return False
        started = self._compose(run, queued, card)
        try:
            await self._start(run, queued, started, peer, place, behind, paid)
        except UnsupportedOperation:
            return False  # another instance has begun it, or it has ended
        return True

    async def _start(
        self,
        run: Run,
        queued: QueuedAttempt,
        started: TaskAttemptStarted,
        peer: Peer,
        place: SendSlot | None,
        behind: tuple[str, ...] | None,
        paid: tuple[LimitPayload, ...],
    ) -> None:
        task = run.context.task
        message = {**compose_input(run.context.accepted), "messageId": started.message_id}
        params: JsonObject = {**(queued.send_options or {}), "message": message}
        referred = await self.references.recall(run.record, peer.name, message)
        run_id, driver = run.context.mint("run"), self.dispatch.drives(task.shard)
        thread, held = await load_assigned(self.dispatch.writes, run.record, None)
        other = None if thread is None else thread.thread_id
        run.held |= held

        def start(draft: DecisionDraft) -> None:
            if behind is not None:
                _start_turn(draft, behind)
            draft.note(*paid)
            draft.add(draft.decide(StartRun(run_id, started, thread_id=other)))
            draft.decision.set_field(task, OWNER, str(driver).encode())

        def conclude(draft: DecisionDraft) -> AppendOptions:
            limits = list_limits(task.id, started.retry_policy, draft.decision.now_ms)
            return AppendOptions(
                runs=(RunMove(run_id, task.id, driver, enters=True),),
                due=(DueChange(f"{QUEUED}:{task.id}", None), *limits),
            )

        await run.append(start, conclude)
        self.dispatch.start(run, peer, driver, params, referred, place)

    async def _fail(self, run: Run, code: str, reason: str, behind: tuple[str, ...] | None) -> None:
        failure = ErrorDetail(code, ErrorCategory.POLICY, reason, source=run.context.peer)

        def leave(draft: DecisionDraft) -> None:
            thread = draft.decision.state(draft.context.thread)
            if behind is not None and isinstance(thread, ThreadRecord):
                draft.add(threads.decide(thread, ChangeQueue(QueueChanged("removed", behind))))

        row = DueChange(f"{QUEUED}:{run.record.task_id}", None)
        await fail_pending_attempt(run, failure, drops=(row,), before=leave)

    def _compose(
        self, run: Run, queued: QueuedAttempt, card: PeerCard | None
    ) -> TaskAttemptStarted:
        """The attempt as it was queued, at the agent as it is now."""
        meant = queued.attempt
        gated = meant.gated or self.dispatch.find_rules().judges_sends
        started = replace(
            meant, retry_policy=bound_policy(run.record, meant.retry_policy), gated=gated
        )
        if card is None:
            return started
        streams = card.streaming and meant.delivery_mechanism == "streaming"
        return replace(
            started,
            worker=Worker("agent", meant.worker.peer, card.endpoint, card.sha256),
            native_protocol=card.protocol,
            delivery_mechanism="streaming" if streams else "unary",
        )


def _record_wait(draft: DecisionDraft, queued: QueuedAttempt, hold: QueueHold) -> None:
    """Records what a task waits for; callers are notified of a wait for a quota, whose length is unknown or days."""
    facts = draft.decide(make_command(queued.attempt, hold))
    if hold.cause != "quota":
        draft.add(facts)
        return
    parts: list[Json] = [{"text": hold.text}]
    draft.show_status(facts, hold.state, parts, hold.describe(), whole=not draft.record.shown)


def _start_turn(draft: DecisionDraft, behind: tuple[str, ...]) -> None:
    """Takes the turn of the task out of the queue of its context.

    Raises:
        UnsupportedOperation: it has left the queue before, or another turn of the context is running.
    """
    thread, record = draft.decision.state(draft.context.thread), draft.record
    if not waits_for_turn(record) or (isinstance(thread, ThreadRecord) and thread.active_turns):
        raise UnsupportedOperation("it is not the turn of this message")
    if isinstance(thread, ThreadRecord) and record.turn_id is not None:
        changed = QueueChanged("dequeued", behind)
        draft.add(threads.decide(thread, ChangeQueue(changed)))
        draft.add(threads.decide(thread, StartTurn(record.turn_id, record.task_id)))


async def find_card(peer: Peer) -> PeerCard | None:
    """The card of an agent, if it is available in a moment; else the last known one."""
    try:
        async with asyncio.timeout(_CARD_S):
            return await peer.describe()
    except (RemoteError, TimeoutError):
        return peer.peek()
