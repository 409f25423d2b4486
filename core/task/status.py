"""The twenty normalized statuses of a task, and the words around them (ST-1…ST-20)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from pydantic import Field, StringConstraints


class Status(StrEnum):
    """Where a task, or a run of it, stands. A run is never ``draft`` or ``archived`` (ATT-3)."""

    DRAFT = "draft"
    ACCEPTED = "accepted"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    WAITING_INPUT = "waiting_input"
    WAITING_PERMISSION = "waiting_permission"
    WAITING_RESOURCE = "waiting_resource"
    BLOCKED = "blocked"
    PAUSED = "paused"
    RETRYING = "retrying"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    LOST = "lost"
    COMPLETED = "completed"
    ARCHIVED = "archived"
    STALE = "stale"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """What a task is busy with (PO-2)."""

    PLANNING = "planning"
    WORKING = "working"
    WAITING = "waiting"
    VERIFYING = "verifying"
    DELIVERING = "delivering"


OwnPhase: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _./:-]*$", max_length=64)
]
"""What an implementation calls a phase of its own: letters, digits, spaces and ``_ . / : -``."""
PhaseName: TypeAlias = Annotated[Phase | str, Field(union_mode="left_to_right")]
"""One of the five that all know, or an own value (PO-2)."""


class Visibility(StrEnum):
    """Who is meant to see a task (TR-6).

    Somebody waits for one of the foreground, and looks later at one of the background. An internal one is in no list
    unless it is asked for, and a hidden one is for those who operate the runtime alone.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    INTERNAL = "internal"
    HIDDEN = "hidden"


LISTED: Final = frozenset({Visibility.FOREGROUND, Visibility.BACKGROUND})
"""What lists show where nothing else is asked for."""


class Delivery(StrEnum):
    """Whether output reached the one who waits for it (PO-6)."""

    PENDING = "pending"
    DELIVERED = "delivered"
    QUEUED = "queued"
    FAILED = "failed"
    PARENT_MISSING = "parent_missing"
    NOT_APPLICABLE = "not_applicable"


TERMINAL: Final = frozenset({Status.CANCELLED, Status.TIMED_OUT, Status.FAILED, Status.COMPLETED})
"""A task in one of these has ended; ``lost`` has not, since the worker may still be found."""
ENDED: Final = TERMINAL | {Status.ARCHIVED}
WORKING: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.UNKNOWN, Status.CANCELLING})
"""The worker is at it, as far as is known: news of it are awaited."""
HELD: Final = frozenset({Status.PAUSED, Status.BLOCKED})
"""Nothing is sent for a task in one of these; its run, if it has one, is kept."""
UNDRIVEN: Final = ENDED | {Status.RETRYING}
"""Nobody drives a task in one of these: it has ended, or its next attempt is owed."""
WAITING: Final = frozenset(
    {Status.WAITING_INPUT, Status.WAITING_PERMISSION, Status.WAITING_RESOURCE, Status.BLOCKED}
)
