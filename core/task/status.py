"""The twenty normalized statuses of a task, and related words (ST-1…ST-20)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from pydantic import Field, StringConstraints


class Status(StrEnum):
    """The status of a task or of its run. A run is never ``draft`` or ``archived`` (ATT-3)."""

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
    """The phase of a task's work (PO-2)."""

    PLANNING = "planning"
    WORKING = "working"
    WAITING = "waiting"
    VERIFYING = "verifying"
    DELIVERING = "delivering"


OwnPhase: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _./:-]*$", max_length=64)
]
"""An implementation's own phase: letters, digits, spaces and ``_ . / : -``."""
PhaseName: TypeAlias = Annotated[Phase | str, Field(union_mode="left_to_right")]
"""One of the five common phases, or an own value (PO-2)."""


class Visibility(StrEnum):
    """The audience of a task (TR-6).

    A caller waits for a foreground task, and reads a background task later. An internal one is listed only on request,
    and a hidden one is for operators of the runtime only.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    INTERNAL = "internal"
    HIDDEN = "hidden"


LISTED: Final = frozenset({Visibility.FOREGROUND, Visibility.BACKGROUND})
"""The default of lists."""


class Delivery(StrEnum):
    """Whether output reached its consumer (PO-6)."""

    PENDING = "pending"
    DELIVERED = "delivered"
    QUEUED = "queued"
    FAILED = "failed"
    PARENT_MISSING = "parent_missing"
    NOT_APPLICABLE = "not_applicable"


TERMINAL: Final = frozenset({Status.CANCELLED, Status.TIMED_OUT, Status.FAILED, Status.COMPLETED})
"""An ended task; ``lost`` has not ended, since the worker may still be found."""
ENDED: Final = TERMINAL | {Status.ARCHIVED}
WORKING: Final = frozenset({Status.QUEUED, Status.RUNNING, Status.UNKNOWN, Status.CANCELLING})
"""The worker is active as far as is known, so new output is expected."""
HELD: Final = frozenset({Status.PAUSED, Status.BLOCKED})
"""Nothing is sent for a held task; its run, if it has one, is kept."""
UNDRIVEN: Final = ENDED | {Status.RETRYING}
"""No instance drives such a task: it has ended, or its next attempt is pending."""
WAITING: Final = frozenset(
    {Status.WAITING_INPUT, Status.WAITING_PERMISSION, Status.WAITING_RESOURCE, Status.BLOCKED}
)
