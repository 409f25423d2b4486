"""What is stored for a message that names a task: a turn, and what follows from the state of the task.

Pure: ``follow_ups`` reads and appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import object_at
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.commands import RespondAction, TurnAccepted
from passerelle.core.errors import InvalidInput
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnCompleted
from passerelle.core.payloads.run import ModelRequested
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import EndTurn, ResolveTools, SubmitMessage, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask, SendInput
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, WAITING
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.inputs import name_row
from passerelle.runtime.records.idempotency import TurnReceipt, remember
from passerelle.runtime.records.message_summary import describe_answer
from passerelle.runtime.records.references import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.task import TaskDependencyUpdated
    from passerelle.core.payloads.tool import ToolCatalogResolved
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.references import ResolvedReferences


@frozen
class FollowUp:
    """A message to an existing task."""

    principal: Principal
    command: SubmitTurn
    idem: str | None
    task: EntityRef
    record: TaskRecord
    turn_id: str
    digest: str
    """Identifies the request under its key: a hook may change the message, and a repeat is still the same request."""
    catalog: ToolCatalogResolved | None
    """The tools of its caller, if a rule withholds any of them."""
    referred: ResolvedReferences = NOTHING
    """The tasks that it refers to."""

    @property
    def works(self) -> bool:
        """Whether the message is sent to the peer at once."""
        run = self.record.run
        return self.record.status not in WAITING and run is not None and not run.gated

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the request, which the peer gets beside the message."""
        return object_at(self.command.params or {}, "metadata")

    @property
    def thread(self) -> EntityRef:
        """The thread of the task."""
        return EntityRef(EntityKind.THREAD, self.record.thread_id or "")

    @property
    def scope(self) -> Scope:
        """The ids of the turn."""
        record = self.record
        return Scope(record.session_id, record.thread_id, self.turn_id, record.task_id)


class TaskChangedError(Exception):
    """The task has changed since the effect of the message on it was decided."""


def check_place(command: SubmitTurn, record: TaskRecord) -> None:
    """Raises InvalidInput where a message names another context or thread than that of its task (G4)."""
    if command.context_id not in {None, record.scope.context_id}:
        raise InvalidInput("message.contextId", "it is not the context of the task")
    if command.thread_id not in {None, record.thread_id}:
        raise InvalidInput("threadId", "it is not the thread of the task")


def add_message(
    decision: Decision, message: FollowUp, submitting: SubmitMessage, *, goes_on: bool
) -> None:
    """Adds the turn of a message, and what follows from it; ``goes_on``: an answer in the same decision moves the task.

    Raises:
        TaskChangedError: the message may mean something else now.
    """
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
    # An answer that is stored with its message has moved the task in this decision.
    if not goes_on and isinstance(task, TaskRecord) and has_task_changed(task, message.record):
        raise TaskChangedError
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
    """Records the tasks that the message refers to, and what is sent with it in their place."""
    record = message.record
    payloads = message.referred.list_facts(record.peer or record.kind)
    decision.add([Fact(message.scope, payload) for payload in payloads])
    own = {record.task_id, *(attempt.run_id for attempt in record.attempts)}
    for edge in message.referred.list_edges():
        task = decision.state(message.task)
        if isinstance(task, TaskRecord) and edge.target not in own and not _has(task, edge):
            decision.add(tasks.decide(task, LinkTask(edge)))


def _has(task: TaskRecord, edge: TaskDependencyUpdated) -> bool:
    return any(
        one.edge_id == edge.edge_id and one.status == edge.status for one in task.relationships
    )


def has_task_changed(task: TaskRecord, known: TaskRecord) -> bool:
    """Whether a message could mean something else now: text for a working agent would answer a question.

    Also true if the task has another owner now.
    """
    return (task.owner, task.status in WAITING, task.status in ENDED, task.open_actions) != (
        known.owner,
        known.status in WAITING,
        known.status in ENDED,
        known.open_actions,
    )


def schedule_send(message: FollowUp, at_ms: int) -> tuple[DueChange, ...]:
    """The due row for a send that begins now; it checks whether the message has arrived (I9)."""
    return (DueChange(name_row(message.record.task_id, message.turn_id), at_ms),)


def find_approval(record: TaskRecord, opened: Sequence[ActionRecord]) -> ActionRecord | None:
    """The open approval that blocks messages: none is sent to the agent before its decision."""
    if record.status not in WAITING:
        return None
    return next((one for one in opened if not takes_message(one, opened)), None)


def takes_message(action: ActionRecord, opened: Sequence[ActionRecord]) -> bool:
    """Whether a message answers it. A credential in a form is sent whole, so it must be the only open question."""
    request = action.request
    if request.kind == "auth" and not any(option.kind == "answer" for option in request.options):
        return request.remote is not None and len(opened) == 1
    return request.kind in {"input", "auth"}


def answer_in_words(message: FollowUp, question: ActionRecord) -> RespondAction:
    """The answer that a message gives; the decision has the id of its turn, and the agent gets the message itself."""
    return RespondAction(
        action_id=question.request.action_id,
        rev=question.rev,
        digest=question.request.digest,
        decision_id=message.turn_id,
        content=describe_answer(message.command.message),
    )


def remember_turn(message: FollowUp) -> IdempotencyRow | None:
    """The idempotency row of the message; None without a key."""
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


def accept(record: TaskRecord, turn_id: str, *, repeated: bool) -> TurnAccepted:
    """The receipt for its caller."""
    return TurnAccepted(
        session_id=record.session_id,
        thread_id=record.thread_id or "",
        turn_id=turn_id,
        task_id=record.task_id,
        facade=expose(TaskId(record.task_id), record.exposure),
        context_id=record.scope.context_id,
        repeated=repeated,
    )
