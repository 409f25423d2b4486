"""A draft of one decision about a run: what is known of the run, and the operations of every frame. Pure.

``RunContext`` is what a driver knows apart from the record. ``DecisionDraft`` adds facts to a decision, and shows
frames to callers on the facts that contain them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from passerelle.a2a_mapping.answer_metadata import read_usage
from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.frames import make_message, make_status, status_frame, task_frame
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.members import as_list, objects_at, text_at
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import CancelAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange, EntityKind, EntityRef
from passerelle.core.decision import MAX_EVENTS
from passerelle.core.events import Fact
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.conversation import TurnCompleted
from passerelle.core.payloads.run import ModelCompleted, ModelFailed, OutputRedacted
from passerelle.core.session import thread as threads
from passerelle.core.session.thread import EndTurn, FailTurn, ThreadRecord
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import EndRun, FailRun, WaitFor
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.delegation.runs.redaction import NO_REDACTION, Redaction
from passerelle.delegation.runs.volume import (
    LARGE_BYTES,
    NO_LIMITS_OF_ITS_OWN,
    Growth,
    OutputLimits,
    Volume,
    measure_task,
)
from passerelle.permission_bridge.answers.action_rows import close_rows
from passerelle.permission_bridge.rules import DEFAULT_POLICY
from passerelle.runtime.limits.costs import RunBill
from passerelle.runtime.records.blob_overflow import BlobOverflow, show
from passerelle.runtime.records.withheld import is_withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.a2a_mapping.content import Chunk
    from passerelle.core.approval.commands import CancelCause
    from passerelle.core.decision import Decision
    from passerelle.core.events import AnyPayload
    from passerelle.core.facts import NamedArtifact
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.run import RunStatus
    from passerelle.core.session.thread import ThreadCommand
    from passerelle.core.task.commands import TaskCommand
    from passerelle.core.task.record import ArtifactRef, Attempt
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.hooks.consultation import Consulted
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.limits.costs import Price

_TURNED_AWAY: Final = frozenset({"429", "503"})
_UNSENT: Final = frozenset({ErrorCategory.TRANSPORT, ErrorCategory.POLICY})
_ROOM: Final = 26
"""Events that one frame may cause, without those of artifacts: ends, turns, questions that close."""
_SHOWN_BYTES: Final = 128 * 1024
"""Bytes of frames in one append: half of what the store accepts."""
FACADE: Final = "facade"
"""The consumer whose delivery completion waits for: the record that callers read."""


@frozen
class AnswerProgress:
    """How far the artifacts of one answer are settled, if they exceed one append."""

    answer: JsonObject
    settled: int


@dataclass(slots=True)
class RunContext:
    """What is known of a run apart from its record: the facade Task as shown, and our messages in it.

    ``content`` is None until the peer's first Task frame. ``mint`` makes ids by prefix.
    """

    task: EntityRef
    shard: Shard
    """The shard of the task."""
    thread: EntityRef
    peer: str
    context_id: str
    mint: Callable[[str], str]
    peer_tags: frozenset[str] = frozenset()
    """The configured tags of the peer: they may raise the risk of what it asks."""
    find_rules: Callable[[], Policy] = lambda: DEFAULT_POLICY
    """Returns the rules in force when the peer asks."""
    consulted: dict[str, Consulted] | None = None
    """By occurrence, what hooks and grants said about a prompt; None: there are none to consult."""
    always_task: bool = False
    """Whether callers see a bare Message of the peer as a task (LT-8)."""
    fetches: bool = False
    """Whether files that the peer names by address are copied before the task completes."""
    redaction: Redaction = NO_REDACTION
    """Patterns that are removed from the peer's texts; each match is recorded."""
    price: Price | None = None
    """The price of runs at the peer."""
    chance: Callable[[], float] = lambda: 0.5
    """Random, in [0, 1): the jitter of the pause before a further attempt."""
    accepted: list[JsonObject] = field(default_factory=list["JsonObject"])
    catalogue: dict[str, ArtifactRef] = field(default_factory=dict["str", "ArtifactRef"])
    """Recorded artifacts by their name at the peer, if there are more than the record names."""
    standing: Mapping[str, NamedArtifact] = field(default_factory=dict[str, "NamedArtifact"])
    """By name, the artifacts of the tasks that the message refers to, also those that the thread has forgotten."""
    referred: dict[str, str] = field(default_factory=dict[str, str])
    """The tasks that messages to the peer refer to, by their ids at the peer: it may refer to them, too."""
    content: JsonObject | None = None
    answer: JsonObject | None = None
    """The Message that a peer answered with, in our context, when it made no task."""
    names_foreign: bool = False
    """Whether it is recorded that the peer names another task in its updates."""
    moves: tuple[int, ...] = ()
    """When the run was taken over by another driver, in ms."""
    place: AnswerProgress | None = None
    """How far an answer is taken that exceeds one append."""
    limits: OutputLimits = NO_LIMITS_OF_ITS_OWN
    """Limits of what the peer may bring."""
    volume: Volume | None = None
    """What the peer has brought; None until its first artifact."""


@frozen
class OpenedQuestions:
    """The facts of a peer that waits, and the parts that callers read in place of its message, if they differ.

    ``settled``: policy has answered, so callers see a task that works.
    """

    facts: list[Fact]
    parts: list[Json] | None = None
    settled: bool = False
    native: bool = False
    """Whether callers see the agent's own form after these parts, and may answer in it."""


@dataclass(slots=True)
class DecisionDraft:
    """One frame on its way into facts of a decision."""

    decision: Decision
    context: RunContext
    spill: BlobOverflow
    asks: Callable[[DecisionDraft, JsonObject, RunStatus], OpenedQuestions]
    """Opens what a waiting peer asks, through ``permission_bridge``."""
    step_id: str = ""
    whole: bool = False
    """Whether the last fact that callers see contains the whole Task itself."""
    frames: int = 0
    """Number of frames shown to callers so far."""
    due: list[DueChange] = field(default_factory=list["DueChange"])
    bill: RunBill | None = None
    """The cost of the run that ends with this step."""
    more: bool = False
    """Whether the answer exceeds this append: it has to be observed again."""
    place: AnswerProgress | None = None
    """How far it is taken, if ``more``."""
    catalogued: dict[str, ArtifactRef] = field(default_factory=dict["str", "ArtifactRef"])
    """Artifacts that this step records."""
    shown_bytes: int = 0
    turned_down: bool = False
    """Whether the peer did not take what it was sent, which has already ended the exchange."""
    is_done_with_answer: bool = False
    """Whether the peer is finished with an answer: a question that it still shows is asked again."""
    names_foreign: bool = False
    """Whether this step records that the peer names another task in its updates."""
    chunks: list[Chunk] = field(default_factory=list["Chunk"])
    """Text of artifacts in this step."""
    _growth: Growth | None = None

    @property
    def growth(self) -> Growth:
        """What this step adds to the volume of the run; made for the first artifact."""
        if self._growth is None:
            context = self.context
            if context.volume is None:
                context.volume = measure_task(context.content)
            self._growth = Growth(context.volume, context.limits)
        return self._growth

    @property
    def is_large(self) -> bool:
        """Whether the Task is written piece by piece."""
        return self.context.volume is not None and self.growth.total.content_bytes > LARGE_BYTES

    @property
    def record(self) -> TaskRecord:
        """The task after the facts so far."""
        record = self.decision.state(self.context.task)
        if not isinstance(record, TaskRecord):
            message = f"no task {self.context.task.id}"
            raise TypeError(message)
        return record

    @property
    def facade(self) -> str:
        """The task id that callers see."""
        record = self.record
        return expose(TaskId(record.task_id), record.exposure)

    def is_full(self) -> bool:
        """Whether the append may lack room for what one more frame can cause."""
        return len(self.decision.events) > MAX_EVENTS - _ROOM or self.shown_bytes > _SHOWN_BYTES

    def decide(self, command: TaskCommand) -> list[Fact]:
        """The facts of a command, not added yet; if it ends a run, with the cost of the run (EXT-7).

        Where the peer has answered, or never will, the end of that exchange is the first fact (EVC-6).
        """
        record = self.record
        facts = tasks.decide(record, command)
        if not facts:
            return facts
        answer = judge_exchange(command, record, self.context.peer)
        if answer is not None and not self.turned_down:
            facts.insert(0, Fact(tasks.scope_of(record, self.step_id or None), answer))
        if isinstance(command, EndRun | FailRun):
            facts += self._bill(command)
        return facts

    def _bill(self, command: EndRun | FailRun) -> list[Fact]:
        record, peer = self.record, self.context.peer
        failure = command.error if isinstance(command, FailRun) else None
        price, run = self.context.price, record.run
        if price is None or run is None:
            return []
        is_prepaid = run.ordinal == 1 or run.asked_by is not None
        if _never_began(failure, run):
            self.bill = RunBill(peer, price.currency, 0, is_prepaid)
            return []
        lasted_ms = max(0, self.decision.now_ms - parse_ms(run.started_at))
        usage = read_usage(self.context.content or self.context.answer or {})
        cost = price.record(peer, lasted_ms, usage)
        self.bill = RunBill(peer, cost.currency, cost.amount_micros, is_prepaid)
        return [Fact(tasks.scope_of(record, self.step_id or None), cost)]

    def add(self, facts: list[Fact]) -> None:
        """Adds facts that only the record shows."""
        self.decision.add(facts)

    def add_shown(
        self, facts: list[Fact], frame: JsonObject, of: Literal["status", "artifact"] = "status"
    ) -> None:
        """Adds facts, the last of which shows ``frame`` to callers."""
        self.decision.add(facts[:-1])
        if facts:
            struck = self.context.redaction.count(frame)
            if struck:
                scope = tasks.scope_of(self.record, self.step_id or None)
                self.add([Fact(scope, OutputRedacted(of, rule, count)) for rule, count in struck])
            shown = show(self.spill, facts[-1], frame, self.facade, of)
            self.whole = "task" in frame and len(shown) == 1
            self.decision.add(shown)
            self.shown_bytes += len(shown[-1].frame or b"")
            self.frames += 1

    def note(self, *payloads: AnyPayload) -> None:
        """Adds facts about the task that only the record shows."""
        scope = tasks.scope_of(self.record)
        self.decision.add(Fact(scope, payload) for payload in payloads)

    def make_status_frame(
        self,
        state: str,
        parts: list[Json],
        metadata: JsonObject | None,
        *,
        whole: bool,
    ) -> JsonObject:
        """A status in the gateway's words; ``whole``: as the first frame of a task that callers have not seen."""
        context = self.context
        message = make_message(context.mint("msg"), self.facade, context.context_id, parts)
        status = make_status(state, format_ms(self.decision.now_ms), message)
        if not whole:
            return status_frame(self.facade, context.context_id, status, metadata)
        task: JsonObject = {"id": self.facade, "contextId": context.context_id, "status": status}
        if metadata:
            task["metadata"] = metadata
        return task_frame(complete_history(task, context.accepted))

    def show_status(
        self,
        facts: list[Fact],
        state: str,
        parts: list[Json],
        metadata: JsonObject | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Adds facts, the last of which shows such a status to callers."""
        frame = self.make_status_frame(state, parts, metadata, whole=whole)
        self.context.content = fold(self.context.content, frame)
        self.add_shown(facts, frame)

    def end_with(
        self, facts: list[Fact], state: str, reason: str, *, is_answer: bool = False
    ) -> None:
        """Adds the facts of an end that the peer did not report: callers who see the task get it as a status.

        With ``is_answer`` those who do not see it yet get the task; otherwise their call ends with an error.
        """
        if not (self.record.shown or is_answer):
            self.add(facts)
            self.fail_turn(reason)
            return
        self.show_status(facts, state, [{"text": reason}], whole=not self.record.shown)
        self.end_turn("task")

    def fail_turn(self, reason: str) -> None:
        """Fails every open turn of the task: it has no answer and never will."""
        record = self.record
        error = record.last_error or ErrorDetail("failed", ErrorCategory.INTERNAL, reason)
        for turn_id in record.open_turns:
            more = turn_id != record.open_turns[-1]
            self._decide_thread(FailTurn(turn_id, record.task_id, error, more))

    def close_actions(self, cause: CancelCause) -> None:
        """Closes the open actions of the task: their answers are not needed any more."""
        for action_id in self.record.open_actions:
            ref = find_action(action_id)
            action = self.decision.state(ref)
            if not isinstance(action, ActionRecord) or not action.is_open:
                continue
            # That the peer goes on does not affect what a worker or a caller waits for.
            if cause != "peer_moved_on" or action.request.remote is not None:
                closing = approval.decide(action, CancelAction(cause), self.decision.now_ms)
                self.decision.add(closing)
                self.due.extend(close_rows(action, self.decision.now_ms))

    def refuse_turns(self, turns: Sequence[str], failure: ErrorDetail) -> None:
        """Fails the open ones of these turns, whose messages the agent refused; others stay open."""
        open_turns = [turn_id for turn_id in self.record.open_turns if turn_id in turns]
        for turn_id in open_turns:
            more = turn_id != open_turns[-1]
            self._decide_thread(FailTurn(turn_id, self.record.task_id, failure, more, refused=True))

    def end_turn(self, answer: str) -> None:
        """Ends every open turn of the task with this answer."""
        record = self.record
        completed = TurnCompleted("message" if answer == "message" else "task", record.status)
        for turn_id in record.open_turns:
            more = turn_id != record.open_turns[-1]
            self._decide_thread(EndTurn(turn_id, record.task_id, completed, more))

    def _decide_thread(self, command: ThreadCommand) -> None:
        thread = self.decision.state(self.context.thread)
        if isinstance(thread, ThreadRecord):
            self.decision.add(threads.decide(thread, command))


def judge_exchange(
    command: TaskCommand, record: TaskRecord, peer: str
) -> ModelCompleted | ModelFailed | None:
    """The end of the exchange with the peer that a command implies: answered, or failed (EVC-6); None for no end.

    A peer that ends a run as failed, or asks something, has answered.
    """
    run = record.run
    if run is None:
        return None
    match command:
        case EndRun() | FailRun(native_status=str()):
            return ModelCompleted(peer, run.steps)
        case FailRun(error=failure):
            return ModelFailed(peer, failure)
        case WaitFor(step_id=str()):
            return ModelCompleted(peer, run.steps)
        case _:
            return None


def find_action(action_id: str) -> EntityRef:
    """The reference of an action."""
    return EntityRef(EntityKind.ACTION, action_id)


def _never_began(failure: ErrorDetail | None, run: Attempt) -> bool:
    """Whether there is no sign that the peer ever took the work: that costs nothing."""
    return (
        failure is not None
        and run.remote_task_id is None
        and (failure.category in _UNSENT or failure.native in _TURNED_AWAY)
    )


def find_first(accepted: Sequence[JsonObject], run: Attempt) -> JsonObject | None:
    """The message of a run: the accepted one, or for a further attempt all messages until then."""
    if run.ordinal > 1:
        inputs = accepted[: len(run.input_refs)]
        return {**compose_input(inputs), "messageId": run.message_id} if inputs else None
    return next(
        (one for one in reversed(accepted) if text_at(one, "messageId") == run.message_id), None
    )


def compose_input(accepted: Sequence[JsonObject]) -> JsonObject:
    """All messages of a task as one: the first one, with the parts of the later ones.

    Decisions are left out: they answered questions of a run that is over. So are withheld messages: they are not here.
    """
    first, *later = accepted
    further = [one for one in later if read_decision(one) is None and not is_withheld(one)]
    parts = [part for one in (first, *further) for part in objects_at(one, "parts")]
    return {**first, "parts": as_list(parts)}
