"""Commands that rules apply to: denied, or executed on a repeat after an approval (EXT-1).

The approval request is about this exact command: its caller, its task and all its arguments. An approval is used by the
next attempt, once; a different command is a new request. An approved command never runs by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import ConsumeAction, OpenAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import CancelTask
from passerelle.core.errors import Forbidden, NotFound, WriteConflict
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id
from passerelle.core.policy.requests import Subject
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import RetryTask
from passerelle.core.wire.canonical import digest
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import ControlCommand
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import Asking
from passerelle.permission_bridge.subject import find_whole, show_subject
from passerelle.permission_bridge.worker_asks import make_prompt, make_worker_request
from passerelle.runtime.records.blob_overflow import BlobOverflow, keep_subject
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.commands import Command
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.approval import ActionType
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.governing.run_access import RunAccess
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.runtime.records.ownership import Owned, Ownership

_ASKED_AT_MOST: Final = 64
_NOTE_MS: Final = 600_000

GOVERNED: Final[Mapping[str, ActionType]] = {
    "cancel_task": "cancel_task",
    "retry_task": "delegation",
}
"""Commands that rules may apply to, with their action types."""


@frozen
class Governed:
    """A command as rules see it."""

    task: str
    tool: str
    action_type: ActionType
    args: JsonObject


@frozen
class CommandGate:
    """Enforces the rules about commands."""

    actions: Actions
    ownership: Ownership
    dispatch: RunAccess

    async def govern(self, principal: Principal, command: Command) -> None:
        """Lets a command pass, or raises.

        Raises:
            Forbidden: a rule denies it, or requires an approval; then ``actionId`` is the id of the request.
            NotFound: the task is not the caller's.
        """
        if not self.dispatch.consulting.find_rules().speaks_about("commands"):
            return
        governed = _describe(command)
        if governed is None:
            return
        find = (
            self.ownership.find_operated
            if isinstance(command, CancelTask | RetryTask)
            else self.ownership.find
        )
        owned = await find(principal, governed.task, None, hidden=True)
        if owned.record.turn_id is None:
            return  # never started: there is no turn that the evaluation could belong to, and nothing to stop
        evaluation = self._judge(principal, governed, owned)
        match evaluation.decision:
            case "allow":
                await self._note(owned, evaluation)
            case "deny":
                await self._note(owned, evaluation)
                raise Forbidden(f"policy forbids it: {evaluation.reason}", why="policy")
            case "ask":
                await self._ask(principal, governed, owned, evaluation)

    def _judge(self, principal: Principal, governed: Governed, owned: Owned) -> Evaluation:
        dispatch, record = self.dispatch, owned.record
        peer = record.peer or record.kind
        case = ControlCommand(
            caller=principal.id,
            tool=governed.tool,
            action_type=governed.action_type,
            args=governed.args,
            peer=peer,
            tags=dispatch.find_terms(peer).tags,
        )
        facts = PolicyFacts(dispatch.writes.ids.mint("eval", owned.ref.shard))
        now_ms, rules = dispatch.clock.now_ms(), dispatch.consulting.find_rules()
        return replace(evaluate(case, facts, now_ms, rules), case=state_case(case))

    async def _note(self, owned: Owned, evaluation: Evaluation) -> None:
        fact = Fact(tasks.scope_of(owned.record), evaluation.to_payload())
        key = evaluation.evaluation_id

        def body(decision: Decision) -> AppendOptions:
            decision.add([fact])
            return AppendOptions(idem=IdempotencyRow(key, key, b"", _NOTE_MS))

        await self.dispatch.writes.decide(owned.record.session_id, [], body)

    async def _ask(
        self, principal: Principal, governed: Governed, owned: Owned, evaluation: Evaluation
    ) -> None:
        """Uses an approval, or opens a request."""
        writes, about = self.dispatch.writes, digest(governed.args)
        names = (principal.id, governed.tool, about)
        for number in range(_ASKED_AT_MOST):
            action_id = derive_id(
                "act", owned.ref.shard, "command", owned.ref.id, *names, str(number)
            )
            ref = EntityRef(EntityKind.ACTION, action_id)
            known = (await writes.load_one(ref)).record
            if not isinstance(known, ActionRecord):
                await self._open(principal, governed, owned, evaluation, ref)
                raise _explain(evaluation, action_id)
            if known.is_open:
                raise _explain(evaluation, action_id)
            is_over = self.dispatch.clock.now_ms() >= known.request.expires_ms
            if known.state == "allowed" and known.consumed_at is None and not is_over:
                used = ConsumeAction(evaluation.to_payload(), known.request.digest)
                await self.actions.close(action_id, used)
                return
        raise WriteConflict("too many approvals were requested for this command")

    async def _open(
        self,
        principal: Principal,
        governed: Governed,
        owned: Owned,
        evaluation: Evaluation,
        ref: EntityRef,
    ) -> None:
        rules = self.dispatch.consulting.find_rules()
        prompt = make_prompt(
            governed.action_type, Subject(tool=governed.tool, arguments=governed.args)
        )

        whole = find_whole(prompt, show_subject(prompt).subject)
        if whole is not None:
            await self.dispatch.blobs.put(ref.shard, whole)

        def body(decision: Decision) -> AppendOptions:
            record = decision.state(owned.ref)
            if not isinstance(record, TaskRecord):
                raise NotFound("task", governed.task)
            if decision.state(ref) is not None:
                return AppendOptions()
            scope = tasks.scope_of(record)
            asking = Asking(
                action_id=ref.id,
                owner=record.owner,
                tenant=record.scope.tenant,
                principal=record.scope.principal,
                peer=principal.id,
                scope=scope,
                tier=rules.find_tier(evaluation.rules, evaluation.risk),
            )
            now_ms = decision.now_ms
            request = make_worker_request(prompt, asking, evaluation, now_ms, is_command=True)
            decision.add([Fact(scope, evaluation.to_payload())])
            opening = approval.decide(None, OpenAction(request, scope), now_ms)
            decision.add(keep_subject(BlobOverflow(), opening, whole))
            return AppendOptions(due=open_rows(request))

        await self.dispatch.writes.decide(owned.record.session_id, [owned.ref, ref], body)
        await self.dispatch.refresh(owned.ref.id)


def _explain(evaluation: Evaluation, action_id: str) -> Forbidden:
    return Forbidden(
        f"it needs an approval first; send it again after that: {evaluation.reason}",
        why="approval_required",
        actionId=action_id,
    )


def _describe(command: Command) -> Governed | None:
    """The parts of a command that rules apply to; None for any other command."""
    match command:
        case CancelTask():
            args: JsonObject = {"reason": command.reason, "propagation": command.propagation}
            return _govern(command.task, "cancel_task", args)
        case RetryTask():
            args = {"agent": command.agent, "reason": command.reason}
            return _govern(command.task_id, "retry_task", args)
        case _:
            return None


def _govern(task: str, tool: str, args: JsonObject) -> Governed:
    return Governed(task, tool, GOVERNED[tool], args)
