"""The port for local workers: they ask before they act, wait, and report when they act (CMD-21).

Policy is evaluated as for every request. If it decides, the request is opened and closed in one append and no approver
is notified; otherwise the task waits for a person, or for the policy of a host. Right before it acts, an allowed worker
reports the action that it is about to do. That is compared with the allowed one, policy is evaluated again, and the
decision is used up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from passerelle.core.approval import machine as approval
from passerelle.core.approval.audience import may_read
from passerelle.core.approval.commands import CancelAction, ConsumeAction, OpenAction, SettleAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import RespondAction
from passerelle.core.errors import (
    ActionClosed,
    Forbidden,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id, parse_facade
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.policy.requests import PermissionView
from passerelle.core.principal import Principal
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import WaitFor
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.permission_bridge.answers.action_rows import close_rows, open_rows
from passerelle.permission_bridge.answers.actions import find_record, has_asked, is_asker
from passerelle.permission_bridge.grants import make_offer
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import Asking
from passerelle.permission_bridge.subject import find_whole, show_subject
from passerelle.permission_bridge.views import render_view
from passerelle.permission_bridge.worker_asks import (
    digest_use,
    find_fault,
    make_prompt,
    make_worker_request,
    read_worker,
)
from passerelle.runtime.records.blob_overflow import BlobOverflow, keep_subject, write_notes
from passerelle.runtime.records.writes import AppendOptions, Written

if TYPE_CHECKING:
    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.batch import DueChange
    from passerelle.core.decision import Decision
    from passerelle.core.policy.requests import (
        AskPermission,
        ResolvePermission,
        UsePermission,
        WithdrawPermission,
    )
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.cases import PeerAsks
    from passerelle.permission_bridge.governing.run_access import RunAccess
    from passerelle.permission_bridge.hooks.consultation import Consulted


@frozen
class WorkerApprovals:
    """Opens the requests of workers, and consumes their decisions."""

    actions: Actions
    dispatch: RunAccess

    async def ask(self, principal: Principal, command: AskPermission) -> PermissionView:
        """Opens a request, once per ``dedupe_key``, and returns its current state.

        Raises:
            Forbidden: the caller is a person; checked before the task is looked up.
            NotFound: no such task in the worker's tenant, or its credential does not cover the task's agent.
            UnsupportedOperation: the task has ended, or was never started.
        """
        task, record = await self._find_task(principal, command.task_id)
        known = derive_id("act", task.shard, "ask", task.id, principal.id, command.dedupe_key)
        action_ref = EntityRef(EntityKind.ACTION, known)
        writes, consulting = self.dispatch.writes, self.dispatch.consulting
        stored = (await writes.load_one(action_ref)).record
        if isinstance(stored, ActionRecord):
            return PermissionView(render_view(stored), repeated=True)
        prompt = make_prompt(
            command.action_type,
            command.subject,
            destructive=command.destructive,
            risk=command.risk,
        )
        case = read_worker(prompt, record.scope.principal, principal.id)
        fault = find_fault(command.subject)
        owner = Principal(record.scope.principal, record.scope.tenant)
        consulted = await consulting.consult(
            replace(case, is_allowable=case.is_allowable and fault is None),
            owner,
            tasks.scope_of(record),
            lambda prefix: writes.ids.mint(prefix, task.shard),
        )
        consulted = replace(consulted, facts=replace(consulted.facts, unsound=fault))
        whole = find_whole(prompt, show_subject(prompt).subject)
        if whole is not None:
            await self.dispatch.blobs.put(task.shard, whole)
        opening = _PermissionOpening(
            self.dispatch, task, known, prompt, case, principal.id, consulted, whole
        )
        spill = BlobOverflow()
        for content in (one for note in consulted.notes for one in note.contents.values()):
            await self.dispatch.blobs.put(task.shard, content)

        def body(decision: Decision) -> AppendOptions:
            return AppendOptions(due=opening.decide(decision, spill))

        written = await writes.decide(record.session_id, [task, action_ref], body)
        if not isinstance(written, Written):
            raise StoreUnavailable("the task is being moved", "no")
        await self._notify_driver(task.id)
        opened = find_record(await writes.load([action_ref]), known)
        return PermissionView(render_view(opened))

    async def use(self, principal: Principal, command: UsePermission) -> PermissionView:
        """Consumes a decision right before the action, once.

        Raises:
            NotFound: no request of this worker.
            ActionClosed: it was not allowed.
            StaleAnswer: another action was allowed.
            UnsupportedOperation: it was used, has expired, or policy denies it now.
        """
        held = await self.actions.load(command.action_id)
        before = find_record(held, command.action_id)
        if not is_asker(before, principal):
            raise NotFound("action", command.action_id)
        if before.is_open:
            raise UnsupportedOperation("it is not allowed yet", state=before.state)
        request = before.request
        prompt = make_prompt(
            request.action_type, command.subject, destructive=request.destructive, risk=request.risk
        )
        case = read_worker(prompt, request.principal, principal.id)
        writes, rules = self.dispatch.writes, self.dispatch.consulting.find_rules()
        facts = PolicyFacts(
            writes.ids.mint("eval", EntityRef(EntityKind.ACTION, command.action_id).shard),
            unsound=find_fault(command.subject),
        )
        found = evaluate(case, facts, writes.clock.now_ms(), rules)
        digest = digest_use(request, _make_asking(before, principal.id), prompt, found)
        outcome = await self.actions.close(
            command.action_id, ConsumeAction(found.to_payload(), digest)
        )
        if not isinstance(outcome, Written):
            raise UnsupportedOperation("it has expired", state=before.state)
        return PermissionView(render_view(find_record(outcome.held, command.action_id)))

    async def withdraw(self, principal: Principal, command: WithdrawPermission) -> PermissionView:
        """Closes an open request of the caller's own; it can no longer be answered, and its task resumes.

        An agent withdraws its request by continuing its task.

        Raises:
            NotFound: no request that the caller asked for or may see.
            Forbidden: another caller asked.
            ActionClosed: it is closed already.
        """
        action_id = command.action_id
        held = await self.actions.load(action_id)
        before = find_record(held, action_id)
        if not has_asked(before, principal):
            if not may_read(before, principal):
                raise NotFound("action", action_id)
            raise Forbidden(
                "only the caller that asked for an approval may withdraw it", why="not_asker"
            )
        try:
            outcome = await self.actions.close(action_id, CancelAction("asker_withdrew"), held=held)
        except ActionClosed:
            found = find_record(await self.actions.load(action_id), action_id)
            if found.decision is None or found.decision.cause != "asker_withdrew":
                raise
            return PermissionView(render_view(found), repeated=True)
        if not isinstance(outcome, Written):
            raise UnsupportedOperation("it has expired", state=before.state)
        self.dispatch.wake(before.scope.task_id or "", action_id)
        return PermissionView(render_view(find_record(outcome.held, action_id)))

    async def resolve(self, principal: Principal, command: ResolvePermission) -> PermissionView:
        """Stores the decision of a host's policy in place of a person's.

        Raises:
            NotFound, Forbidden, ActionClosed, StaleAnswer, UnknownOption: nothing is written.
        """
        answer = RespondAction(
            action_id=command.action_id,
            rev=command.rev,
            digest=command.digest,
            decision_id=command.decision_id,
            option_id=command.option_id,
            comment=command.comment,
        )
        record, task_id = await self.actions.resolve(principal, answer)
        self.dispatch.wake(task_id, command.action_id)
        return PermissionView(render_view(record))

    async def _find_task(self, worker: Principal, name: str) -> tuple[EntityRef, TaskRecord]:
        if worker.kind == "person":
            raise Forbidden("a person needs no permission", kind=worker.kind)
        parsed = parse_facade(name)
        ref = EntityRef(EntityKind.TASK, parsed[0]) if parsed else None
        record = (await self.dispatch.writes.load_one(ref)).record if ref else None
        if ref is None or not isinstance(record, TaskRecord):
            raise NotFound("task", name)
        if not _works_for(worker, record):
            raise NotFound("task", name)
        if record.status in ENDED or record.turn_id is None:
            raise UnsupportedOperation("the task is not running", status=record.status, task=name)
        return ref, record

    async def _notify_driver(self, task_id: str) -> None:
        await self.dispatch.refresh(task_id)
        self.dispatch.wake(task_id)


def _works_for(worker: Principal, record: TaskRecord) -> bool:
    """Whether a credential may ask for this task: it owns the task, or it covers the task's agent.

    Other tasks look as if they did not exist.
    """
    if record.scope.tenant != worker.tenant:
        return False
    agent = record.peer or record.kind
    return record.scope.principal == worker.id or worker.sees(agent)


@frozen
class _PermissionOpening:
    dispatch: RunAccess
    task: EntityRef
    action_id: str
    prompt: PeerPrompt
    case: PeerAsks
    worker: str
    consulted: Consulted
    whole: bytes | None

    def decide(self, decision: Decision, spill: BlobOverflow) -> tuple[DueChange, ...]:
        """Adds the request, and the decision of policy; adds nothing if the request was opened meanwhile."""
        ref = EntityRef(EntityKind.ACTION, self.action_id)
        record = decision.state(self.task)
        if decision.state(ref) is not None:
            return ()
        if not isinstance(record, TaskRecord) or record.status in ENDED:
            raise UnsupportedOperation("the task is not running")
        rules, now_ms = self.dispatch.consulting.find_rules(), decision.now_ms
        evaluation = evaluate(self.case, self.consulted.facts, now_ms, rules)
        evaluation = replace(evaluation, case=state_case(self.case))
        scope = tasks.scope_of(record)
        asking = Asking(
            action_id=self.action_id,
            owner=record.owner,
            tenant=record.scope.tenant,
            principal=record.scope.principal,
            peer=self.worker,
            scope=scope,
            offer=make_offer(self.case, evaluation, rules.grants),
            tier=rules.find_tier(evaluation.rules, evaluation.risk),
        )
        request = make_worker_request(self.prompt, asking, evaluation, now_ms)
        decision.add(write_notes(spill, scope, self.consulted.notes))
        decision.add([Fact(scope, evaluation.to_payload())])
        facts = approval.decide(None, OpenAction(request, scope), now_ms)
        decision.add(keep_subject(spill, facts, self.whole))
        if evaluation.decision == "ask":
            if record.status in tasks.TABLE[WaitFor]:
                decision.add(tasks.decide(record, _wait(request.title, self.action_id)))
            return open_rows(request)
        opened = decision.state(ref)
        if not isinstance(opened, ActionRecord):
            raise InvalidInput("actionId", "was not opened")
        settling = SettleAction(
            evaluation.decision == "allow", evaluation.cause, evaluation.grant_id
        )
        decision.add(approval.decide(opened, settling, now_ms))
        closed = decision.state(ref)
        return close_rows(closed, now_ms) if isinstance(closed, ActionRecord) else ()


def _wait(title: str, action_id: str) -> WaitFor:
    return WaitFor(
        TaskWaiting(
            waiting_for="permission",
            status=Status.WAITING_PERMISSION,
            reason=title,
            action_ids=(action_id,),
        )
    )


def _make_asking(record: ActionRecord, worker: str) -> Asking:
    request = record.request
    return Asking(
        action_id=request.action_id,
        owner=request.owner,
        tenant=request.tenant,
        principal=request.principal,
        peer=worker,
        scope=record.scope,
    )
