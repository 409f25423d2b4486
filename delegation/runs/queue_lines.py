"""The queues in which attempts wait: the queue of a task, its place there, and how long its head waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.agent_name import find_base
from passerelle.core.ports.queues import WaitingTask
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.runs.quota_waits import name_line

if TYPE_CHECKING:
    from passerelle.core.task.record import QueuedAttempt, TaskRecord
    from passerelle.runtime.limits.costs import Shortage

THREAD: Final = "thread:"
_TURN_S: Final = (0.5, 15.0)
"""Pause between two checks whether a context is idle, without a signal of it: shortest, longest."""
_SAME_LOOKS: Final = 20
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 30.0
"""Longest pause between two tries to charge a used-up quota. Other instances may return a part of it."""
BEGUN_MS: Final = 50
_LAST_MS: Final = 10**15 - 1


def name_waiting_line(record: TaskRecord, queued: QueuedAttempt) -> str:
    """The queue of its context, of its agent, or of a caller whose quota is used up."""
    if queued.cause == "quota":
        return name_line(record.owner)
    return queued.queue if queued.cause == "turn" else find_base(queued.attempt.worker.peer)


def find_place(record: TaskRecord, queued: QueuedAttempt) -> WaitingTask:
    """Turns of a context are ordered by time; of promoted ones the last one is first."""
    if queued.cause != "turn":
        return WaitingTask(record.task_id, record.owner, record.priority, parse_ms(queued.since))
    if queued.promoted_ms is None:
        return WaitingTask(record.task_id, record.owner, 0, parse_ms(queued.since))
    return WaitingTask(record.task_id, record.owner, 1, _LAST_MS - queued.promoted_ms)


def find_turn_pause_s(looks: int) -> float:
    """Seconds until the next check of a context that was busy ``looks`` times: its turn may take days."""
    shortest_s, longest_s = _TURN_S
    return min(shortest_s * (1 << min(looks // _SAME_LOOKS, 8)), longest_s)


def find_quota_pause_s(record: TaskRecord, shortage: Shortage, now_ms: int) -> float:
    """Seconds until the next try to charge a message: for the next period, or for a part that others returned."""
    queued = record.queued
    waited_ms = 0 if queued is None else now_ms - parse_ms(queued.since)
    pause_s = min(max(waited_ms / 1000, _SHORTEST_S), _LONGEST_S)
    return min(pause_s, (shortage.till_ms - now_ms + BEGUN_MS) / 1000)
