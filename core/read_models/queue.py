"""Turns that wait for their thread (SNAP-4). A thread has no queue of its own: a turn starts when it is accepted."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from passerelle.core.read_models.mark import Mark, not_applicable
from passerelle.core.record import record
from passerelle.core.thread import ThreadRecord

_NONE: Final[tuple[str, ...]] = ("turns", "policy", "resumeState")


@record
class QueueSnapshot:
    """The queue of a thread as it stands at ``sequence``."""

    thread_id: str
    sequence: int
    turns: tuple[str, ...] = ()
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])


def show_queue(thread: ThreadRecord) -> QueueSnapshot:
    """The queue of a thread: none, and marked as such, which is not the same as an empty one."""
    mark = not_applicable("turns are not queued: each starts when it is accepted")
    return QueueSnapshot(thread.thread_id, thread.last, (), dict.fromkeys(_NONE, mark))
