"""Why a task went to its agent, why it waits, and what policy, limits and retries decided (VAL-8, VAL-9).

Each reason cites the facts that it is made of, by sequence and class; a topic without a fact is marked, and never
filled in by guessing. Words of an agent are no reasons, but for those with which it refuses or fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from passerelle.core.events import Event
from passerelle.core.read_models.blocked import BlockedTask, list_blocked
from passerelle.core.read_models.mark import Mark, not_applicable, unknown
from passerelle.core.read_models.reasons import REASONS, Topic
from passerelle.core.read_models.task import doubt_status, name_task
from passerelle.core.record import record
from passerelle.core.status import ENDED, Status
from passerelle.core.task_record import TaskRecord

_RETRIED: Final = 2


@record
class Cited:
    """The fact that a reason is made of."""

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
    """All reasons by topic, the oldest first. ``blocked`` is what the task waits for at this moment."""

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
    """What became of messages that did not go as their senders wished."""
    blocked: BlockedTask | None = None
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def explain_task(task: TaskRecord, events: Iterable[Event], now_ms: int) -> Explanation:
    """The reasons of a record; ``events`` are those of its task and turns that could be read."""
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
        blocked=next(iter(list_blocked([task])), None),
    )
    found.marks.update(_mark(found, task))
    doubt = doubt_status(task, now_ms)
    if doubt is not None:
        found.marks["status"] = doubt
    return found


def _mark(found: Explanation, task: TaskRecord) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    if not found.agent:
        marks["agent"] = unknown("no fact says how the agent was chosen")
    if not found.policy:
        marks["policy"] = unknown("no evaluation is recorded")
    if not found.limits:
        marks["limits"] = unknown("no fact says that a limit was met")
    if not found.messages:
        marks["messages"] = not_applicable("no message was refused or kept")
    if found.blocked is None:
        marks["blocked"] = not_applicable("the task waits for nobody")
    if len(task.attempts) < _RETRIED:
        marks["retries"] = not_applicable("no run was tried again")
    if not found.end:
        ended = task.status in ENDED
        marks["end"] = unknown("no end is recorded") if ended else not_applicable("not ended")
    return marks


def _explain(event: Event) -> Reason | None:
    payload = event.fact.payload
    tell = REASONS.get(type(payload))
    if tell is None:
        return None
    told = tell(payload)
    if told is None:
        return None
    topic, code, text = told
    cited = Cited(event.sequence, event.event_id, event.type, event.timestamp)
    return Reason(topic, code, text, cited, event.fact.scope.run_id)
