"""Packets and messages: inputs and results of tasks (MK-34), and a thread as messages to and from agents (MK-33).

Both are derived from a stored event; nothing is stored for them. The ``id`` is derived from the subject: two with one
id are the same, so a reader that writes them to a file can skip repeats.
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
"""Characters of input or output in a packet; the task has all of it."""

PACKET: Final = "packet."
"""The prefix of the types in a stream of packets."""
INPUT: Final = PACKET + "input"
RESULT: Final = PACKET + "result"

ResultStatus: TypeAlias = Literal["succeeded", "failed", "canceled"]
ENDS: Final[Mapping[str, ResultStatus]] = {
    EventType.TASK_COMPLETED: "succeeded",
    EventType.TASK_FAILED: "failed",
    EventType.TASK_TIMED_OUT: "failed",
    EventType.TASK_CANCELLED: "canceled",
}
"""The events that end a task, and the status of the result."""


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
    """Whether the text was cut."""


@record
class ResultUsage:
    """The cost of the run: millionths of ``currency`` (ISO 4217), and tokens if the agent reported them."""

    amount_micros: int
    currency: str
    input_tokens: int | None = None
    output_tokens: int | None = None


@record
class TaskResult:
    """The end of a task (MK-32). ``duration_ms`` counts from its first run; 0 without one."""

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
    """The ref of its session, once archived."""
    profile: str | None = None
    cut: Literal[True] | None = None
    """Whether the output was cut."""


@record
class InputPacket:
    """An input packet; ``cursor`` is the position after it."""

    id: str
    created_at: str
    payload: UserInput
    cursor: str


@record
class ResultPacket:
    """A result packet. ``id`` is derived from the task and its run: a repeat has the same one (MK-9)."""

    id: str
    created_at: str
    payload: TaskResult
    cursor: str


def cut_text(text: str) -> tuple[str, Literal[True] | None]:
    """The text cut to the limit of a packet, and whether it was cut."""
    return (text, None) if len(text) <= TEXT_LIMIT else (text[:TEXT_LIMIT], True)


def show_result(
    event: Event, task: TaskRecord, output: str, archive: str | None, facade: str | None
) -> TaskResult:
    """The result of an event of ``ENDS``; ``output`` is the task's whole text."""
    status = ENDS[event.type]
    run = _find_run(event, task)
    payload = event.fact.payload
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
        error=payload.error if isinstance(payload, TaskFailed) else None,
        usage=_show_usage(run),
        title=task.title or None,
        archive_path=archive,
        profile=tier if isinstance(tier, str) else None,
        cut=cut,
    )


def is_published(task: TaskRecord) -> bool:
    """Whether its result is published: hidden tasks are for operators only (TR-6)."""
    return task.visibility is not Visibility.HIDDEN


def _find_run(event: Event, task: TaskRecord) -> Attempt | None:
    """The run that the event ended: the one it names, else the last that had begun."""
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


MESSAGE: Final = "packet.message"
"""The event type in a stream of messages."""

Speaker: TypeAlias = Literal["user", "assistant", "system"]
"""A2A's roles ``user`` and ``agent`` are the first two; notices of the gateway are ``system``."""


@record
class HistoryMessage:
    """One message. ``quote`` are the tasks that it refers to; ``elapsed_ms`` counts from the first run of its task."""

    id: str
    role: Speaker
    text: str
    created_at: str
    thread_id: str
    cursor: str
    task_id: str | None = None
    agent: str | None = None
    usage: ResultUsage | None = None
    elapsed_ms: int | None = None
    quote: tuple[str, ...] | None = None
    cut: Literal[True] | None = None
    """Whether the text was cut."""
