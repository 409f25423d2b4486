"""Packets: messages that came in and what tasks came to, in one form for those who work through them (MK-34).

A packet is read off a stored event and its task; nothing is stored for it. Its ``id`` says what it is about: two with
one id are the same thing, met twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.ids import TaskId, expose
from passerelle.core.payloads.task import TaskFailed
from passerelle.core.task.status import Visibility
from passerelle.core.wire.record import record
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.events import Event
    from passerelle.core.task.record import Attempt, TaskRecord

TEXT_LIMIT: Final = 65_536
"""Characters of an input or output that a packet has; the whole stands where the task is read."""

PACKET: Final = "packet."
"""How the type of what is shown of a stream of packets begins."""
INPUT: Final = PACKET + "input"
RESULT: Final = PACKET + "result"

ResultStatus: TypeAlias = Literal["succeeded", "failed", "canceled"]
ENDS: Final[Mapping[str, ResultStatus]] = {
    EventType.TASK_COMPLETED: "succeeded",
    EventType.TASK_FAILED: "failed",
    EventType.TASK_TIMED_OUT: "failed",
    EventType.TASK_CANCELLED: "canceled",
}
"""The events with which a task ends, and what its result is called then."""


@record
class UserInput:
    """A message to an agent. ``id`` is that of its turn, ``quote`` names the tasks that it refers to (MK-29)."""

    id: str
    text: str
    created_at: str
    message_id: str
    agent: str
    quote: tuple[str, ...] | None = None
    cut: Literal[True] | None = None
    """Whether there is more text than stands here."""


@record
class ResultUsage:
    """What the run cost: millionths of ``currency`` (ISO 4217), and tokens where the agent has told them."""

    amount_micros: int
    currency: str
    input_tokens: int | None = None
    output_tokens: int | None = None


@record
class TaskResult:
    """How a task ended (MK-32). ``duration_ms`` goes from its first run to this end; 0 where none began."""

    task_id: str
    status: ResultStatus
    ok: bool
    output: str
    duration_ms: int
    completed_at: str
    run_id: str | None = None
    agent: str | None = None
    error: ErrorDetail | None = None
    usage: ResultUsage | None = None
    title: str | None = None
    archive_path: str | None = None
    """The ref of its session, once that has left memory."""
    profile: str | None = None
    cut: Literal[True] | None = None
    """Whether there is more output than stands here."""


@record
class InputPacket:
    """An input in its packet; ``cursor`` is the place behind it."""

    id: str
    created_at: str
    payload: UserInput
    cursor: str


@record
class ResultPacket:
    """A result in its packet. ``id`` is made of the task and its run: what comes again has the same one (MK-9)."""

    id: str
    created_at: str
    payload: TaskResult
    cursor: str


def cut_text(text: str) -> tuple[str, Literal[True] | None]:
    """As much of a text as a packet has, and whether there is more."""
    return (text, None) if len(text) <= TEXT_LIMIT else (text[:TEXT_LIMIT], True)


def show_result(
    event: Event, task: TaskRecord, output: str, archive: str | None, facade: str | None
) -> TaskResult:
    """The result that an event of ``ENDS`` is; ``output`` is all text of it that there is."""
    status = ENDS[event.type]
    run = _find_run(event, task)
    said = event.fact.payload
    text, cut = cut_text(output)
    began = task.started_at
    took = 0 if began is None else max(0, parse_ms(event.timestamp) - parse_ms(began))
    tier = task.profile.get("tier")
    return TaskResult(
        task_id=facade or expose(TaskId(task.task_id), task.exposure),
        status=status,
        ok=status == "succeeded",
        output=text,
        duration_ms=took,
        completed_at=event.timestamp,
        run_id=None if run is None else run.run_id,
        agent=task.peer,
        error=said.error if isinstance(said, TaskFailed) else None,
        usage=_show_usage(run),
        title=task.title or None,
        archive_path=archive,
        profile=tier if isinstance(tier, str) else None,
        cut=cut,
    )


def is_published(task: TaskRecord) -> bool:
    """Whether its result is told: a hidden task is for those who operate the runtime alone (TR-6)."""
    return task.visibility is not Visibility.HIDDEN


def _find_run(event: Event, task: TaskRecord) -> Attempt | None:
    """The run that ended with the event: the one that it names, else the last that had begun."""
    named = event.fact.scope.run_id
    for run in reversed(task.attempts):
        if run.run_id == named or (named is None and run.started_at <= event.timestamp):
            return run
    return None


def _show_usage(run: Attempt | None) -> ResultUsage | None:
    cost = None if run is None else run.cost
    if cost is None:
        return None
    return ResultUsage(cost.amount_micros, cost.currency, cost.input_tokens, cost.output_tokens)
