"""Pending attempts: any instance that finds the due row begins the attempt when it is due (I9, ATT-13…ATT-17).

A further attempt is a run of its own: another message to the agent, another task there, with everything sent to the
task so far as its input. The append that begins it drops the due row, so one of two instances begins it, and the other
finds nothing to do.

The message is sent with its caller's id, except to an agent that has made a task of it before: an agent may treat a
known id as a repeat and answer with the task that failed (A2A 1.0 section 3.3.1), so there the ordinal of the attempt
is added to the id. Callers always read their own id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.inbound import read_named
from passerelle.a2a_mapping.members import text_at
from passerelle.core.batch import DueClaim, RunMove
from passerelle.core.errors import Draining, NotFound
from passerelle.core.facts import ErrorCategory, ErrorDetail, Worker
from passerelle.core.frozen import frozen
from passerelle.core.ids import REMOTE_CONTEXT
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.commands import BlockTask, StartRun
from passerelle.core.task.machine import describe_blocker
from passerelle.core.task.status import Status
from passerelle.delegation.runs.draft import compose_input
from passerelle.delegation.runs.finish import confirm_stop, fail_pending_attempt
from passerelle.delegation.runs.limits import bound_policy, find_obstacle, list_limits
from passerelle.delegation.runs.queued_attempts import find_card
from passerelle.runtime.records.starting_tasks import load_assigned
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.peer import Peer, PeerCard, SendSlot
    from passerelle.core.ports.due import DueRow
    from passerelle.delegation.runs.agent_queues import AgentQueues
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.delegation.runs.run import Run
    from passerelle.runtime.records.references import References


@frozen
class Retries:
    """Begins pending attempts."""

    dispatch: Dispatch
    references: References
    queues: AgentQueues

    async def begin(self, row: DueRow) -> bool:
        """Begins the attempt of a claimed row; False if none is pending (any more).

        Raises:
            StoreUnavailable, Draining: the row stays, and comes due again.
        """
        run = await self.dispatch.hold(row.entity)
        if run.record.status is Status.CANCELLING and run.record.run is None:
            await confirm_stop(run, row)
            return True
        if run.record.status is not Status.RETRYING:
            return False
        if run.record.blocker is not None:
            await _hold(run, row)
            return True
        try:
            peer = self.queues.find_peer(run.context.peer)
        except NotFound as error:
            gone = ErrorDetail(
                "peer_gone", ErrorCategory.POLICY, str(error), source=run.context.peer
            )
            await fail_pending_attempt(run, gone, row)
            return True
        if self.dispatch.runs.is_draining:
            raise Draining("this instance is shutting down", retry_after_s=1)
        card = await find_card(peer)
        price = run.context.price.estimate() if run.context.price else 0
        obstacle = find_obstacle(run.record, peer.name, card.endpoint if card else None, price)
        if obstacle is not None:
            broken = ErrorDetail("constraint", ErrorCategory.POLICY, obstacle, source=peer.name)
            await fail_pending_attempt(run, broken, row)
            return True
        admitted = await self.queues.admission.admit(peer.name, peer)
        if isinstance(admitted, str):
            hold = await self.queues.admission.explain(peer.name, admitted)
            attempt = self._describe(run, card, peer.name, await self._find_thread(run))
            await self.queues.attempts.hold(run, attempt, hold, row)
            await self.queues.enter(run.record)
            return True
        try:
            await self._start(run, peer, card, row, admitted)
        except BaseException:
            if admitted is not None:
                admitted.give_back()
            raise
        return True

    async def _start(
        self,
        run: Run,
        peer: Peer,
        card: PeerCard | None,
        claim: DueClaim,
        place: SendSlot | None,
    ) -> None:
        task = run.context.task
        thread = await self._find_thread(run)
        started = self._describe(run, card, peer.name, thread)
        other = thread.thread_id if thread and thread.thread_id != run.record.thread_id else None
        message = {**compose_input(run.context.accepted), "messageId": started.message_id}
        referred = await self.references.recall(run.record, peer.name, message)
        is_other = run.record.attempts[-1].worker.peer != peer.name
        run_id, driver = run.context.mint("run"), self.dispatch.drives(task.shard)

        def start(draft: DecisionDraft) -> None:
            draft.add(draft.decide(StartRun(run_id, started, thread_id=other)))
            if is_other and referred.tasks:
                draft.note(referred.resolve(peer.name))
            draft.decision.set_field(task, OWNER, str(driver).encode())

        def conclude(draft: DecisionDraft) -> AppendOptions:
            return AppendOptions(
                claim=claim,
                runs=(RunMove(run_id, task.id, driver, enters=True),),
                due=list_limits(task.id, started.retry_policy, draft.decision.now_ms),
            )

        await run.append(start, conclude)
        self.dispatch.start(run, peer, driver, {"message": message}, referred, place)

    async def _find_thread(self, run: Run) -> ThreadRecord | None:
        """The thread that runs the task; appends of the run hold it from now on."""
        known = run.held[run.context.thread].record
        own = known if isinstance(known, ThreadRecord) else None
        thread, held = await load_assigned(self.dispatch.writes, run.record, own)
        run.held |= held
        return thread

    def _describe(
        self, run: Run, card: PeerCard | None, peer: str, thread: ThreadRecord | None
    ) -> TaskAttemptStarted:
        record = run.record
        remotes = {} if thread is None else thread.remotes
        last = record.attempts[-1]
        ordinal = last.ordinal + 1
        return TaskAttemptStarted(
            ordinal=ordinal,
            worker=Worker("agent", peer, card.endpoint, card.sha256)
            if card
            else Worker("agent", peer),
            native_protocol=card.protocol if card else "a2a/1.0",
            # The first frame of a stream names the remote task, so that it is found again after a crash.
            delivery_mechanism="streaming" if card and card.streaming else "unary",
            message_id=_choose_message_id(run, peer, ordinal),
            retry_policy=bound_policy(record, self.dispatch.find_terms(peer).policy),
            reason=record.status_reason or "retry",
            remote_context_id=remotes.get(peer) or run.context.mint(REMOTE_CONTEXT),
            traceparent=last.traceparent,
            tracestate=last.tracestate,
            extensions=last.extensions,
            gated=bool(read_named(run.context.accepted[0]))
            or self.dispatch.find_rules().judges_sends,
        )


async def _hold(run: Run, claim: DueClaim) -> None:
    """Blocks the attempt until another task has completed; then it becomes pending again."""

    def hold(draft: DecisionDraft) -> None:
        blocker = draft.record.blocker
        if blocker is not None and draft.record.status is Status.RETRYING:
            draft.add(draft.decide(BlockTask(describe_blocker(blocker.target, blocker.reason))))

    await run.append(hold, lambda _draft: AppendOptions(claim=claim))


def _choose_message_id(run: Run, peer: str, ordinal: int) -> str:
    own = text_at(run.context.accepted[0], "messageId")
    is_known = any(
        one.worker.peer == peer and one.remote_task_id is not None for one in run.record.attempts
    )
    return f"{own}~{ordinal}" if is_known else own
