"""The gateway's message to the caller of a task that keeps waiting: it precedes the open question.

A caller of A2A reads only the status of its task. The text is a status message in the present state of the task, so
that streams show it too, and it ends the turn of the message that it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.a2a_mapping.content import is_remark, make_remark
from passerelle.a2a_mapping.frames import make_message, make_status, status_frame
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import SUBMITTED
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnCompleted
from passerelle.core.payloads.task import TaskBlocked, TaskWaiting
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import EndTurn, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import WaitFor
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.times import format_ms
from passerelle.runtime.records.blob_overflow import BlobOverflow, show

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Decision
    from passerelle.core.events import Fact
    from passerelle.core.wire.json import Json, JsonObject


WaitKind: TypeAlias = Literal["input", "permission", "resource"]
_KINDS: Final[dict[Status, WaitKind]] = {
    Status.WAITING_PERMISSION: "permission",
    Status.WAITING_RESOURCE: "resource",
}
_SHOWN: Final = 3


def remark(
    decision: Decision,
    task_ref: EntityRef,
    thread_ref: EntityRef,
    turn_id: str,
    status: JsonObject,
    text: str,
) -> None:
    """Adds ``text`` to the status of a task that waits, and ends the turn that it is about.

    ``status`` is what callers see now; its question stays unchanged.
    """
    task, thread = decision.state(task_ref), decision.state(thread_ref)
    if not isinstance(task, TaskRecord):
        return
    facade, context = expose(TaskId(task.task_id), task.exposure), task.scope.context_id
    asked = object_at(status, "message")
    kept: list[Json] = [part for part in objects_at(asked, "parts") if not is_remark(part)]
    parts: list[Json] = [make_remark(text), *kept]
    message = make_message(f"remark-{turn_id}", facade, context, parts)
    shown = make_status(text_at(status, "state"), format_ms(decision.now_ms), {**asked, **message})
    run = task.run
    native = run.native_status if run else None
    waiting = make_waiting(task.status, task.open_actions, native, text)
    facts = tasks.decide(task, WaitFor(waiting))
    frame = status_frame(facade, context, shown)
    decision.add([*facts[:-1], *show(BlobOverflow(), facts[-1], frame, facade, "status")])
    if isinstance(thread, ThreadRecord):
        completed = TurnCompleted("task", task.status)
        decision.add(threads.decide(thread, EndTurn(turn_id, task.task_id, completed)))


def show_wait(record: TaskRecord, facts: list[Fact], message_id: str, at: str) -> list[Fact]:
    """Facts of a task that keeps waiting, the last one for its callers: why a message of theirs is not sent yet.

    Shows nothing if callers have seen nothing of the task, or an attempt of it was sent.
    """
    if not (facts and record.shown) or record.attempts:
        return facts
    facade, context = expose(TaskId(record.task_id), record.exposure), record.scope.context_id
    payload = facts[-1].payload
    text = payload.reason if isinstance(payload, TaskBlocked) else None
    message = make_message(message_id, facade, context, [{"text": text or ""}])
    frame = status_frame(facade, context, make_status(SUBMITTED, at, message))
    return [*facts[:-1], *show(BlobOverflow(), facts[-1], frame, facade, "status")]


def explain_kept(approval: ActionRecord) -> str:
    """Why a message was kept: the approval that is pending, and its approvers."""
    name, title = approval.request.action_id, approval.request.title
    who = _name_deciders(approval)
    return f"This message was kept and not sent to the agent: approval {name} ({title}) waits for {who}"


def advise(approval: ActionRecord) -> str:
    """What the sender of a kept message can do."""
    return (
        "Text does not decide it. An approver answers with the typed answer that the status asks for, or over "
        f"/v1/approvals/{approval.request.action_id}; send the message again after that. CancelTask stops the task."
    )


def _name_deciders(approval: ActionRecord) -> str:
    """The present approvers, as text; more than three are counted."""
    begun = approval.request.audience[: approval.step + 1]
    named = [*dict.fromkeys(name for step in begun for name in step.principals)]
    if not named:
        return "its owner to decide"
    shown = ", ".join(named[:_SHOWN])
    return (
        f"{shown} to decide" if len(named) <= _SHOWN else f"{len(named)} people, {shown} among them"
    )


def make_waiting(
    status: Status, actions: tuple[str, ...], native_status: str | None, reason: str | None
) -> TaskWaiting:
    """The wait of a task whose agent asks something. A missing resource is always a credential."""
    return TaskWaiting(
        waiting_for=_KINDS.get(status, "input"),
        status=status,
        reason=reason,
        action_ids=actions,
        native_status=native_status,
        resource="credential" if status is Status.WAITING_RESOURCE else None,
    )
