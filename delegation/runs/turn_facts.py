"""What is stored for a turn that opens a task: facts, decided in order, with the Task if callers see it at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.frames import make_message, make_status, task_frame
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.states import REJECTED, SUBMITTED
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.ids import REMOTE_CONTEXT, TaskId, expose
from passerelle.core.payloads.conversation import (
    QueueChanged,
    ThreadStarted,
    TurnCompleted,
)
from passerelle.core.payloads.task import TaskCreated, TaskDependencyUpdated
from passerelle.core.routing.words import describe_routing
from passerelle.core.session import machine as sessions
from passerelle.core.session import thread as threads
from passerelle.core.session.machine import BeginSession
from passerelle.core.session.thread import (
    ChangeQueue,
    EndTurn,
    OpenThread,
    ResolveTools,
    ThreadRecord,
)
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import BeginTask, BlockTask, EndInError, LinkTask, StartRun
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status, Visibility
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.holds import make_command
from passerelle.delegation.runs.plan import begin_attempt
from passerelle.runtime.records.blob_overflow import show
from passerelle.runtime.records.message_summary import describe, submit
from passerelle.runtime.records.places import describe_session

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.facts import EdgeStatus
    from passerelle.core.payloads.task import TaskAttemptStarted
    from passerelle.core.ports.chance import Ids
    from passerelle.core.routing.table import Route
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.holds import QueueHold
    from passerelle.delegation.runs.turn_request import TurnRequest
    from passerelle.runtime.records.blob_overflow import BlobOverflow
    from passerelle.runtime.records.places import Place


@dataclass(slots=True)
class TurnFacts:
    """Adds the facts of a turn to a decision: ``begin``, then one of ``refuse``, ``wait`` and ``start``."""

    request: TurnRequest
    place: Place
    decision: Decision
    spill: BlobOverflow
    ids: Ids
    task: EntityRef
    turn_id: str
    waiting: tuple[str, ...] | None
    """The turns before it, if it waits behind others."""

    @property
    def thread(self) -> ThreadRecord | None:
        """The thread as decided so far."""
        thread = self.decision.state(self.place.thread)
        return thread if isinstance(thread, ThreadRecord) else None

    @property
    def record(self) -> TaskRecord | None:
        """The task as decided so far."""
        record = self.decision.state(self.task)
        return record if isinstance(record, TaskRecord) else None

    def begin(self) -> None:
        """Adds what is stored in any case: session, thread, task, turn, and the policy's judgement of the call."""
        plan, decision = self.request.plan, self.decision
        decision.belong(plan.trace)
        self._open_thread()
        scope = Scope(self.place.session.id, self.place.thread.id, self.turn_id, self.task.id)
        decision.add(tasks.decide(None, BeginTask(scope, self._describe())))
        for edge in plan.referred.list_edges():
            if (record := self.record) is not None:
                decision.add(tasks.decide(record, LinkTask(edge)))
        for blocker in plan.blockers:
            self._wait_for(blocker)
        if (thread := self.thread) is not None:
            submitting = submit(self.request.command, scope, self.spill)
            if self.waiting is not None:
                submitting = replace(submitting, waits=True)
            decision.add(threads.decide(thread, submitting))
        caller = self.request.principal.id
        if (route := plan.route) is not None:
            decision.add(Fact(scope, payload) for payload in route.list_facts())
        decision.add([Fact(scope, plan.judge(caller, self.ids, self.place.shard))])
        if (thread := self.thread) is not None:
            decision.add(threads.decide(thread, ResolveTools(scope, caller, plan.catalog)))
        if plan.facts:
            decision.add(Fact(scope, payload) for payload in plan.facts)

    def _open_thread(self) -> None:
        who, place, decision = self.request.principal, self.place, self.decision
        if place.session in decision.states and decision.state(place.session) is None:
            created = describe_session(who)
            decision.add(sessions.decide(None, BeginSession(place.session.id, created)))
        if decision.state(place.thread) is None:
            started = ThreadStarted(
                context_id=place.context_id,
                owner=who.key,
                tenant=who.tenant,
                principal=who.id,
                status="running",
            )
            opening = OpenThread(place.session.id, place.thread.id, started)
            decision.add(threads.decide(None, opening))

    def _describe(self) -> TaskCreated:
        command, plan, who = self.request.command, self.request.plan, self.request.principal
        words, is_waited_for = describe(command), command.wait != "none"
        return TaskCreated(
            objective=words.objective,
            title=words.title,
            kind=command.agent,
            family="job_item" if command.source == "job" else "delegation",
            requested_by=who.id,
            owner=who.key,
            tenant=who.tenant,
            context_id=self.place.context_id,
            assignee=plan.find_agent(command) or None,
            visibility=Visibility.FOREGROUND if is_waited_for else Visibility.BACKGROUND,
            root_task_id=self.task.id,
            profile=_show_profile(plan.route),
            acceptance=plan.acceptance,
        )

    def _wait_for(self, blocker_id: str) -> None:
        """Adds the edge to a task that has to complete first, at both ends: both tasks are in one session (GR-2)."""
        near, far = self.record, self.decision.state(EntityRef(EntityKind.TASK, blocker_id))
        if near is None or not isinstance(far, TaskRecord):
            raise NotFound("task", blocker_id)
        status: EdgeStatus = "satisfied" if far.status is Status.COMPLETED else "open"
        edge = TaskDependencyUpdated(f"blocked_by:{blocker_id}", "blocked_by", blocker_id, status)
        self.decision.add(tasks.decide(near, LinkTask(edge)))
        if status == "open":
            name = f"blocks:{self.task.id}"
            mirror = TaskDependencyUpdated(name, "blocks", self.task.id, status)
            self.decision.add(tasks.decide(far, LinkTask(mirror)))

    def refuse(self) -> JsonObject | None:
        """Ends the task without a call, since no agent fits; returns the Task as callers see it from here on."""
        record, route = self.record, self.request.plan.route
        if record is None or route is None:
            return None
        reason = describe_routing(route.list_facts()[-1])
        failure = ErrorDetail("no_agent", ErrorCategory.POLICY, reason, source=ROUTER)
        facts = tasks.decide(record, EndInError(failure, rejected=True))
        shown = self._show(facts, REJECTED, reason)
        thread, ended = self.thread, self.record
        if thread is not None and ended is not None:
            completed = TurnCompleted("task", ended.status)
            self.decision.add(
                threads.decide(thread, EndTurn(self.turn_id, self.task.id, completed))
            )
        return shown

    def start(self, run_id: str) -> JsonObject | None:
        """Adds the intent to send; returns the Task, if callers see it from here on."""
        record, started = self.record, self._compose()
        if started is None or record is None:
            return None
        facts = tasks.decide(record, StartRun(run_id, started))
        if not self.request.plan.shows_at_once:
            self.decision.add(facts)
            return None
        return self._show(facts, SUBMITTED)

    def wait(self, hold: QueueHold) -> JsonObject | None:
        """Adds that the attempt does not begin yet; returns the Task, if callers are notified at once."""
        record, attempt = self.record, self._compose()
        if attempt is None or record is None:
            return None
        thread = self.thread
        if self.waiting is not None and thread is not None:
            order = (*self.waiting, record.turn_id or "")
            self.decision.add(threads.decide(thread, ChangeQueue(QueueChanged("enqueued", order))))
        facts = tasks.decide(record, make_command(attempt, hold))
        if (blocker := record.blocker) is not None:
            self.decision.add(facts)
            if (queued := self.record) is not None:
                blocked = tasks.describe_blocker(blocker.target, blocker.reason)
                facts = tasks.decide(queued, BlockTask(blocked))
        if not (hold.notifies_caller or self.request.plan.shows_at_once):
            self.decision.add(facts)
            return None
        return self._show(facts, hold.state, hold.text, hold)

    def _compose(self) -> TaskAttemptStarted | None:
        """The first attempt, for now or later."""
        thread, record = self.thread, self.record
        if thread is None or record is None:
            return None
        agent = self.request.plan.find_agent(self.request.command)
        remote = thread.remotes.get(agent) or self.ids.mint(REMOTE_CONTEXT, self.place.shard)
        return begin_attempt(record, self.request.command, self.request.plan, remote)

    def _show(
        self, facts: list[Fact], state: str, text: str | None = None, hold: QueueHold | None = None
    ) -> JsonObject:
        """Adds the facts, the last one with the Task as callers see it; ``hold``: why it waits."""
        facade, context_id = expose(TaskId(self.task.id), 1), self.place.context_id
        message: JsonObject | None = None
        if text is not None:
            message_id = self.ids.mint("msg", self.place.shard)
            message = make_message(message_id, facade, context_id, [{"text": text}])
        status = make_status(state, format_ms(self.decision.now_ms), message)
        task: JsonObject = {"id": facade, "contextId": context_id, "status": status}
        if hold is not None:
            task["metadata"] = hold.describe()
        shown = complete_history(task, [self.request.command.message])
        shown_facts = show(self.spill, facts[-1], task_frame(shown), facade, "status")
        self.decision.add([*facts[:-1], *shown_facts])
        return shown


def _show_profile(route: Route | None) -> JsonObject:
    """The caller's request for an agent, as the record of the task stores it (TR-12)."""
    if route is None or route.profile.source != "caller":
        return {}
    profile = to_wire(route.profile)
    return {name: one for name, one in profile.items() if name != "source"}
