"""From the last frame of a peer to the end of its task: what else has to be done first (I5, CF-17, CF-18). Pure.

A peer that reports COMPLETED ends only its run. If nothing is missing, the task ends in the same append. If something
is missing (a person's review, a file to fetch) the last frame is withheld: it is in the blob store, the record names
it, and the driver retries with ``go_on`` until the task has ended. Conditions that can be judged and are not met end
the task as failed.

A review by a person is a condition of the task (TR-13), and an ordinary question: every device of the owner shows it,
and the first valid answer wins (I7). While it is open the task waits, which its followers see.

Some frameworks lose the approval that a tool waits for: the task is completed, the tool never ran, and no error is
reported. No answer can be delivered then, so the completion carries a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.acceptance import judge
from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.dialects.presentation import list_request_parts
from passerelle.a2a_mapping.frames import (
    ROLE_AGENT,
    make_status,
    status_frame,
    task_frame,
)
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import CANCELED, COMPLETED, INPUT_REQUIRED, WORKING
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import OpenAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.events import Fact
from passerelle.core.facts import Coverage, ErrorCategory, ErrorDetail
from passerelle.core.payloads.run import RunStatus
from passerelle.core.payloads.task import TaskCancelled, TaskCompleted, TaskWaiting
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import (
    ConfirmCancel,
    Cover,
    EndRun,
    FailRun,
    RecordDelivery,
    SucceedTask,
    WaitFor,
    WithholdEnd,
)
from passerelle.core.task.completion import is_owed_to_parent, is_stored
from passerelle.core.task.status import Delivery, Phase, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.artifacts import list_all
from passerelle.delegation.runs.draft import FACADE, DecisionDraft, find_action
from passerelle.delegation.runs.failure import RunEnd, end_run
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import PeerAsks
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.requests import Asking
from passerelle.permission_bridge.reviews import make_review

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.wire.json import JsonObject

_STEERED: Final = frozenset({Status.PAUSED, Status.BLOCKED})
"""A command has stopped the task: it ends when it is resumed."""
PEER_LOST_APPROVAL: Final = "peer_lost_approval"
_GATED: Final = frozenset({"permission", "confirmation"})


def complete(
    draft: DecisionDraft, frame: JsonObject, reported: RunStatus, before: JsonObject | None
) -> None:
    """The peer is done: ends the task, or withholds the frame until it may end.

    ``before`` is the content without ``frame``.
    """
    coverage = measure(draft, is_done=True)
    accepted = coverage is None or coverage.state == "met"
    record = draft.record
    is_whole = is_stored(record) and not is_owed_to_parent(record)
    if accepted and is_whole and record.status not in _STEERED:
        _finish(draft, frame, reported)
        return
    draft.context.content = before
    go_on(draft, _withhold(draft, frame, reported))


def go_on(draft: DecisionDraft, frame: JsonObject) -> None:
    """Ends the task with the withheld frame if nothing is missing any more; else changes nothing."""
    record = draft.record
    if record.status is Status.CANCELLING:
        _stop(draft)
        return
    if record.status in _STEERED or record.open_actions:
        return
    coverage = measure(draft, is_done=True)
    if coverage is not None and coverage.state == "unmet":
        _refuse(draft, coverage)
    elif not is_stored(record):
        return
    elif coverage is not None and coverage.state == "pending":
        _open_review(draft, coverage)
    elif is_owed_to_parent(draft.record):
        return
    else:
        content = fold(draft.context.content, frame)
        draft.context.content = (
            complete_history(content, draft.context.accepted) if content else None
        )
        _finish(draft, frame, RunStatus(native_status=_native(draft)))


def measure(draft: DecisionDraft, *, is_done: bool) -> Coverage | None:
    """Judges the conditions on the present content, and records a change; None for a task without conditions."""
    record = draft.record
    if not record.acceptance:
        return None
    judged = judge(record.acceptance, draft.context.content or {})
    review = record.coverage.review if record.coverage else None
    verdict = _find_verdict(draft, review)
    unmet = judged.unmet
    if judged.review is not None and verdict != "allowed":
        unmet = (*unmet, f"review: {judged.review}")
    refused = bool(judged.unmet) or verdict == "refused"
    coverage = Coverage(
        met=len(record.acceptance) - len(unmet),
        of=len(record.acceptance),
        state="met" if not unmet else "unmet" if is_done and refused else "pending",
        unmet=unmet,
        review=review,
    )
    draft.add(draft.decide(Cover(coverage)))
    return coverage


def _find_verdict(
    draft: DecisionDraft, action_id: str | None
) -> Literal["allowed", "refused"] | None:
    """The decision of a reviewer; None while there is none."""
    action = draft.decision.state(find_action(action_id)) if action_id else None
    if not isinstance(action, ActionRecord) or action.is_open:
        return None
    return "allowed" if action.state == "allowed" else "refused"


def _open_review(draft: DecisionDraft, coverage: Coverage) -> None:
    question = judge(draft.record.acceptance, {}).review or ""
    action_id = open_review(draft, question)
    draft.add(draft.decide(Cover(change(coverage, review=action_id))))


def _withhold(draft: DecisionDraft, frame: JsonObject, reported: RunStatus) -> JsonObject:
    """Withholds the frame. A Task that callers do not see yet is shown as still working."""
    kept = frame
    task = object_at(frame, "task")
    if task:
        status, metadata = object_at(task, "status"), object_at(task, "metadata")
        kept = status_frame(draft.facade, draft.context.context_id, status, metadata)
    ref = draft.spill.keep(orjson.dumps(kept))
    facts = draft.decide(WithholdEnd(change(reported, phase=Phase.VERIFYING), draft.step_id, ref))
    if task:
        working = make_status(WORKING, format_ms(draft.decision.now_ms))
        draft.context.content = {**task, "status": working}
        draft.add_shown(facts, task_frame(draft.context.content))
    else:
        draft.add(facts)
    return kept


def _finish(draft: DecisionDraft, frame: JsonObject, reported: RunStatus) -> None:
    state = reported.native_status or ""
    verifying = change(reported, phase=Phase.VERIFYING)
    answer: Literal["message", "task"] = "message" if "message" in frame else "task"
    if answer == "message":
        draft.context.answer = object_at(frame, "message")
    draft.add(draft.decide(EndRun(state, reported.text, verifying, draft.step_id or None)))
    draft.add(draft.decide(RecordDelivery(FACADE, Delivery.DELIVERED)))
    record = draft.record
    completed = TaskCompleted(
        native_status=state,
        artifacts=tuple(artifact.artifact_id for artifact in record.artifacts),
        artifact_count=record.artifact_count,
        evidence=record.evidence_refs,
        delivery=record.delivery.get(FACADE, Delivery.PENDING),
        coverage=record.coverage,
        answer=answer,
    )
    draft.add_shown(draft.decide(SucceedTask(completed, list_all(draft))), frame)
    draft.end_turn(answer)


def _refuse(draft: DecisionDraft, coverage: Coverage) -> None:
    reason = "the task does not meet its conditions: " + "; ".join(coverage.unmet)
    failure = ErrorDetail(
        code="acceptance",
        category=ErrorCategory.POLICY,
        message=reason[:1000],
        retryable=True,
        source=draft.context.peer,
        native=_native(draft),
    )
    end_run(draft, RunEnd(failure, native=_native(draft), is_answer=True))


def _stop(draft: DecisionDraft) -> None:
    """The peer was done before it could be cancelled; the cancel counts all the same."""
    record, state = draft.record, _native(draft)
    draft.close_actions("task_cancelled")
    failure = ErrorDetail("cancelled", ErrorCategory.CALLER, "stopped", source=draft.context.peer)
    draft.add(draft.decide(FailRun(Status.CANCELLED, failure, state)))
    actor = record.cancel_requested_by or draft.context.peer
    facts = draft.decide(ConfirmCancel(TaskCancelled(actor, record.cancel_source or "user", state)))
    draft.end_with(facts, CANCELED, "cancelled before it was complete")


def _native(draft: DecisionDraft) -> str:
    return draft.record.attempts[-1].native_status or COMPLETED


FIRST_REVISION = 1


def open_review(draft: DecisionDraft, question: str) -> str:
    """Opens the review and has the task wait for it; returns the id of the action."""
    record, decision, context = draft.record, draft.decision, draft.context
    facts = PolicyFacts(context.mint("eval"), is_configured=True)
    evaluation = evaluate(
        PeerAsks(context.peer, "free_input", tags=context.peer_tags), facts, decision.now_ms
    )
    scope = tasks.scope_of(record)
    asking = Asking(
        action_id=context.mint("act"),
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=context.peer,
        scope=scope,
        card_hash=record.run.worker.card_hash if record.run else None,
    )
    request = make_review(question, asking, evaluation, decision.now_ms)
    decision.introduce(find_action(request.action_id))
    draft.add([Fact(scope, evaluation.to_payload())])
    draft.add(approval.decide(None, OpenAction(request, scope), decision.now_ms))
    draft.due.extend(open_rows(request))
    _wait(draft, request)
    return request.action_id


def _wait(draft: DecisionDraft, request: ApprovalRequest) -> None:
    waiting = TaskWaiting(
        waiting_for="permission",
        status=Status.WAITING_PERMISSION,
        reason=request.title,
        action_ids=(request.action_id,),
    )
    facts = draft.decide(WaitFor(waiting))
    if not draft.record.shown:
        draft.add(facts)
        return
    draft.show_status(facts, INPUT_REQUIRED, list_request_parts(request, FIRST_REVISION))
    draft.end_turn("task")


def find_lost(draft: DecisionDraft) -> str | None:
    """Why a completed task of a peer may lack something that needed approval; None without a sign of it.

    Call it before the questions of the task are closed.
    """
    actions = [state for state in draft.decision.states.values() if isinstance(state, ActionRecord)]
    if any(_is_unanswered(action) for action in actions if action.request.kind in _GATED):
        return "the agent completed without the answer to its approval request"
    if is_silent(draft.context.content or {}):
        return "the agent completed without a message and without output: the tool that needed approval did not run"
    return None


def is_silent(task: JsonObject) -> bool:
    """Whether a Task has no artifact and no message of its agent."""
    if objects_at(task, "artifacts"):
        return False
    messages = [*objects_at(task, "history"), object_at(object_at(task, "status"), "message")]
    return all(text_at(message, "role") != ROLE_AGENT for message in messages)


def _is_unanswered(action: ActionRecord) -> bool:
    """Whether the answer was never sent to the peer, which asked nothing else in its place."""
    if action.is_open:
        return True
    by_itself = action.decision is not None and action.decision.cause == "peer_moved_on"
    return by_itself or (action.return_state == "owed" and action.return_attempts == 0)
