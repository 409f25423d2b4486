"""The steps to replay a scope: its inputs in order, and none of its outputs.

A step names the fact that holds its data. Answers of agents are not steps: a second run is compared with them, and the
evidence of the same scope has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.payloads.task import TaskResumed
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from passerelle.core.evidence.selection import StoredFact

ReplayAct: TypeAlias = Literal[
    "open", "create", "change", "send", "route", "attempt", "judge", "ask", "answer", "pause",
    "resume", "cancel", "input",
]  # fmt: skip
_ACTS: Final[dict[str, ReplayAct]] = {
    EventType.SESSION_CREATED: "open",
    EventType.THREAD_STARTED: "open",
    EventType.TASK_CREATED: "create",
    EventType.TASK_UPDATED: "change",
    EventType.TURN_SUBMITTED: "send",
    EventType.ROUTING_DECIDED: "route",
    EventType.TASK_ATTEMPT_STARTED: "attempt",
    EventType.PERMISSION_EVALUATED: "judge",
    EventType.ACTION_REQUIRED: "ask",
    EventType.ACTION_RESOLVED: "answer",
    EventType.TASK_PAUSED: "pause",
    EventType.TASK_RESUMED: "resume",
    EventType.TASK_CANCEL_REQUESTED: "cancel",
    EventType.PROCESS_INPUT: "input",
    EventType.SUBAGENT_INPUT: "input",
}


@record
class ReplayStep:
    """One act to repeat, the ``number``th from 1; ``event`` is the fact that records it."""

    number: int
    act: ReplayAct
    event: str
    at: str
    task_id: str | None = None
    turn_id: str | None = None
    action_id: str | None = None
    files: tuple[str, ...] = ()
    """Referenced content, by SHA-256."""


def is_step(fact: StoredFact) -> bool:
    """Whether a fact is a step: a task that resumes without a command is none."""
    payload = fact.event.fact.payload
    if isinstance(payload, TaskResumed):
        return payload.status is not None
    return fact.entry.type in _ACTS


def list_steps(facts: Iterable[StoredFact]) -> Iterator[ReplayStep]:
    """The steps of the facts, in order."""
    steps = (fact for fact in facts if is_step(fact))
    for number, fact in enumerate(steps, 1):
        decoded = fact.event.fact
        yield ReplayStep(
            number=number,
            act=_ACTS[fact.entry.type],
            event=fact.entry.event_id,
            at=fact.event.timestamp,
            task_id=decoded.scope.task_id,
            turn_id=decoded.scope.turn_id,
            action_id=decoded.scope.action_id,
            files=tuple(ref.blob for ref in decoded.refs.values() if ref.blob is not None),
        )
