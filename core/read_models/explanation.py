"""Why a task went to its agent, why it waits, and the decisions of policy, limits and retries (VAL-8, VAL-9).

Each reason cites its fact by sequence and class; a topic without a fact is marked, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from passerelle.core.events import Event
from passerelle.core.read_models.blockers import AskedQuestions, BlockedTask, list_blocked
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unknown
from passerelle.core.read_models.reasons import REASONS, Topic
from passerelle.core.read_models.task import doubt_status, name_task
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record

_RETRIED: Final = 2


@record
class Cited:
    """The fact behind a reason."""

    sequence: int
    event_id: str
    type: str
    at: str


@record
class Reason:
    """``code`` is for programs, ``text`` for people."""

    topic: Topic
    code: str
    text: str
    fact: Cited
    run_id: str | None = None


@record
class Explanation:
    """All reasons by topic, oldest first. ``blocked`` is what the task waits for now."""

    task_id: str
    sequence: int
    status: Status
    agent: tuple[Reason, ...]
    waiting: tuple[Reason, ...]
    policy: tuple[Reason, ...]
    limits: tuple[Reason, ...]
    retries: tuple[Reason, ...]
    end: tuple[Reason, ...]
    messages: tuple[Reason, ...] = ()
    """Messages that were refused or got stuck."""
    blocked: BlockedTask | None = None
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def explain_task(
    task: TaskRecord,
    events: Iterable[Event],
    now_ms: int,
    questions: AskedQuestions | None = None,
) -> Explanation:
    """The reasons of a record; ``events`` are the readable ones of its task and turns.

    ``questions`` are the open approvals of the task that were read.
    """
    reasons = [reason for event in events if (reason := _explain(event)) is not None]

    def about(topic: Topic) -> tuple[Reason, ...]:
        return tuple(reason for reason in reasons if reason.topic == topic)

    found = Explanation(
        task_id=name_task(task),
        sequence=task.last,
        status=task.status,
        agent=about("agent"),
        waiting=about("waiting"),
        policy=about("policy"),
        limits=about("limits"),
        retries=about("retries"),
        end=about("end"),
        messages=about("messages"),
        blocked=next(iter(list_blocked([task], questions or {})), None),
    )
    found.marks.update(_mark(found, task))
    doubt = doubt_status(task, now_ms)
    if doubt is not None:
        found.marks["status"] = doubt
    return found


def _mark(found: Explanation, task: TaskRecord) -> dict[str, FreshnessMark]:
    marks: dict[str, FreshnessMark] = {}
    if not found.agent:
        marks["agent"] = unknown("no fact records how the agent was chosen")
    if not found.policy:
        marks["policy"] = unknown("no evaluation is recorded")
    if not found.limits:
        marks["limits"] = unknown("no fact records that a limit was reached")
    if not found.messages:
        marks["messages"] = not_applicable("no message was refused or kept")
    if found.blocked is None:
        marks["blocked"] = not_applicable("the task is not waiting")
    if len(task.attempts) < _RETRIED:
        marks["retries"] = not_applicable("no run was tried again")
    if not found.end:
        ended = task.status in ENDED
        marks["end"] = unknown("no end is recorded") if ended else not_applicable("not ended")
    return marks


def _explain(event: Event) -> Reason | None:
    payload = event.fact.payload
    if type(payload) not in REASONS:
        return None
    topic, explain = REASONS[type(payload)]
    words = explain(payload)
    if words is None:
        return None
    cited = Cited(event.sequence, event.event_id, event.type, event.timestamp)
    return Reason(topic, *words, cited, event.fact.scope.run_id)
