"""The queued turns of a thread: behind other turns, or behind a policy gate (SNAP-4, CF-2).

A turn starts when it is accepted, unless its context queues it behind another. A started turn's message may still wait
for an approval before it is sent. The status of its task is ``queued`` or ``waiting_permission`` accordingly. The turn
is ``queued`` in both cases, since nothing has reached the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.read_models.blockers import AskedQuestions, classify
from passerelle.core.read_models.mark import FreshnessMark, not_applicable
from passerelle.core.read_models.task import name_task
from passerelle.core.session.requests import GatedTurn, QueuedTurn
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms

_NONE: Final[tuple[str, ...]] = ("turns", "policy", "resumeState")


@record
class QueueSnapshot:
    """The queue of a thread at ``sequence``; ``policy`` is absent if none was set."""

    thread_id: str
    sequence: int
    turns: tuple[QueuedTurn, ...] = ()
    policy: QueuePolicy | None = None
    gated: tuple[GatedTurn, ...] = ()
    """Started turns whose message waits for an approval; no other turn waits for them."""
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


def list_queued(
    waiting: Iterable[object], owner: str, active: Sequence[str]
) -> tuple[QueuedTurn, ...]:
    """An owner's turns among the tasks queued in a context, with their positions among all of them, from 1.

    ``active`` are the current turns, which the first one waits for. A None in ``waiting`` is a task that the reader may
    not see: it takes a position and is not named.
    """
    tasks = [
        None if not isinstance(one, TaskRecord) or one.owner != owner else one for one in waiting
    ]
    before = [tuple(active)]
    before += [() if task is None else ((task.turn_id or ""),) for task in tasks]
    return tuple(
        QueuedTurn(
            turn_id=task.turn_id or "",
            task_id=task.task_id,
            position=position,
            agent=queued.attempt.worker.peer,
            source=task.requested_by,
            since=queued.since,
            resume_state="held" if task.status is Status.PAUSED else "waiting",
            promoted=queued.promoted_ms is not None,
            reason=task.status_reason,
            behind=behind,
        )
        for position, (task, behind) in enumerate(zip(tasks, before, strict=False), 1)
        if task is not None and (queued := task.queued) is not None
    )


def list_gated(
    tasks: Iterable[TaskRecord], questions: AskedQuestions, owner: str
) -> tuple[GatedTurn, ...]:
    """An owner's turns that wait for an approval, by the open approvals of their tasks; oldest first."""
    gated = [
        GatedTurn(
            turn_id=asked.record.scope.turn_id or task.turn_id or "",
            task_id=name_task(task),
            agent=asked.record.request.origin.peer or task.agent,
            source=task.requested_by,
            since=format_ms(asked.record.request.created_ms),
            action_id=action,
            reason=asked.record.request.title,
            rules=asked.rules,
        )
        for task in tasks
        if task.owner == owner and task.status not in ENDED
        for action in task.open_actions
        if (asked := questions.get(action)) is not None
        and classify(asked.record.request) == "policy"
    ]
    return tuple(sorted(gated, key=lambda one: (one.since, one.turn_id)))


def show_queue(
    thread: ThreadRecord, waiting: Iterable[object], gated: tuple[GatedTurn, ...]
) -> QueueSnapshot:
    """The queue of a thread from its queued tasks in order, and its gated turns.

    A thread without queueing has no queue and is marked so, which differs from an empty queue.
    """
    turns = list_queued(waiting, thread.owner, thread.active_turns)
    if turns or thread.queue_policy is not None:
        return QueueSnapshot(thread.thread_id, thread.last, turns, thread.queue_policy, gated)
    mark = not_applicable("turns are not queued: each starts when it is accepted")
    marks: dict[str, FreshnessMark] = dict.fromkeys(_NONE, mark)
    return QueueSnapshot(thread.thread_id, thread.last, gated=gated, marks=marks)
