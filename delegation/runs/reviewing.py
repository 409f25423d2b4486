"""A person is asked whether what an agent brought is what was wanted: a condition of the task (TR-13).

The question is one like any other: every device of the owner sees it, the first valid answer wins (I7). While it is
open the task waits, and callers who follow it see that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.dialects.presentation import list_request_parts
from passerelle.a2a_mapping.frames import make_message, make_status, status_frame
from passerelle.a2a_mapping.states import INPUT_REQUIRED
from passerelle.core import approval
from passerelle.core import task as tasks
from passerelle.core.approval_commands import OpenAction
from passerelle.core.events import Fact
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.status import Status
from passerelle.core.task_commands import WaitFor
from passerelle.core.times import format_ms
from passerelle.delegation.runs.step import Step, find_action
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import PeerAsks
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.requests import Asking
from passerelle.permission_bridge.reviews import make_review

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import Request

FIRST_REVISION = 1


def open_review(step: Step, question: str) -> str:
    """Opens the question and lets the task wait for it; the id of the action."""
    record, decision, sight = step.record, step.decision, step.sight
    facts = PolicyFacts(sight.mint("eval"), is_configured=True)
    evaluation = evaluate(
        PeerAsks(sight.peer, "free_input", tags=sight.peer_tags), facts, decision.now_ms
    )
    scope = tasks.scope_of(record)
    asking = Asking(
        action_id=sight.mint("act"),
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=sight.peer,
        scope=scope,
        card_hash=record.run.worker.card_hash if record.run else None,
    )
    request = make_review(question, asking, evaluation, decision.now_ms)
    decision.introduce(find_action(request.action_id))
    step.add([Fact(scope, evaluation.to_payload())])
    step.add(approval.decide(None, OpenAction(request, scope), decision.now_ms))
    step.due.extend(open_rows(request))
    _wait(step, request)
    return request.action_id


def _wait(step: Step, request: Request) -> None:
    waiting = TaskWaiting(
        waiting_for="permission",
        status=Status.WAITING_PERMISSION,
        reason=request.title,
        action_ids=(request.action_id,),
    )
    facts = step.tell(WaitFor(waiting))
    sight = step.sight
    if not step.record.shown:
        step.add(facts)
        return
    parts = list_request_parts(request, FIRST_REVISION)
    message = make_message(sight.mint("msg"), step.facade, sight.context_id, parts)
    status = make_status(INPUT_REQUIRED, format_ms(step.decision.now_ms), message)
    frame = status_frame(step.facade, sight.context_id, status)
    sight.content = fold(sight.content, frame)
    step.add_shown(facts, frame)
    step.end_turn("task")
