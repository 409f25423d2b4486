"""The name of an attempt of a job item: its idempotency key and the id of its message."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord

JOB: Final = "job"
"""The prefix of these names, and the kind of a job's due row."""
_NAME: Final = re.compile(r"job-(se_[0-9a-z]{28})-([1-9][0-9]*)-([1-9][0-9]*)")


class ItemName(NamedTuple):
    """An attempt of an item of a job; attempts and items count from 1."""

    job_id: str
    item: int
    attempt: int


def name_item(job_id: str, item: int, attempt: int) -> str:
    """The idempotency key of an attempt of an item, and the id of its message."""
    return f"{JOB}-{job_id}-{item}-{attempt}"


def read_item(name: str) -> ItemName | None:
    """The parsed name; None for another text."""
    match = _NAME.fullmatch(name)
    return None if match is None else ItemName(match[1], int(match[2]), int(match[3]))


def find_item(task: TaskRecord) -> tuple[str, int] | None:
    """The job that a task is an item of, and the item's number; None if it is not an item."""
    if task.family != "job_item":
        return None
    queued = task.queued.attempt.message_id if task.queued is not None else ""
    name = read_item(task.attempts[0].message_id if task.attempts else queued)
    return None if name is None else (name.job_id, name.item)
