"""Maps an agent's state to a local status, in one table.

The agent's own state is kept next to the local status (A2A-7, ST-21), so mapping loses nothing; a state that is not in
the table is ``unknown``, never the nearest guess (ST-20). A closed stream is no state: it does not change the task
(I6).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from passerelle.core.frozen import frozen
from passerelle.core.task.status import Status

UNSPECIFIED: Final = "TASK_STATE_UNSPECIFIED"
SUBMITTED: Final = "TASK_STATE_SUBMITTED"
WORKING: Final = "TASK_STATE_WORKING"
INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"
AUTH_REQUIRED: Final = "TASK_STATE_AUTH_REQUIRED"
COMPLETED: Final = "TASK_STATE_COMPLETED"
FAILED: Final = "TASK_STATE_FAILED"
REJECTED: Final = "TASK_STATE_REJECTED"
CANCELED: Final = "TASK_STATE_CANCELED"

TERMINAL_STATES: Final = frozenset({COMPLETED, FAILED, REJECTED, CANCELED})
INTERRUPTED_STATES: Final = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})


class Follow(StrEnum):
    """The follow-up of an agent's state, besides the status."""

    NOTHING = "nothing"
    OPEN_ACTION = "open_action"
    """An approval or input is needed; a dialect determines whether it is a permission."""
    RECONCILE = "reconcile"
    """Verify and deliver first: the task is completed only once its artifacts are stored (I5)."""
    END_RUN = "end_run"
    """The run has failed; the retry policy decides whether the task continues with another one."""
    CANCEL = "cancel"
    """The task was stopped, by the gateway or by the agent."""
    WARN = "warn"
    """Record a warning and wait for a known state."""


@frozen
class PeerRow:
    """A local status and its follow-up; ``for_credential`` is the status if a credential is requested."""

    status: Status
    follow: Follow = Follow.NOTHING
    for_credential: Status | None = None
    reason: str | None = None


PEER_STATES: Final[dict[str, PeerRow]] = {
    SUBMITTED: PeerRow(Status.QUEUED),
    WORKING: PeerRow(Status.RUNNING),
    INPUT_REQUIRED: PeerRow(Status.WAITING_INPUT, Follow.OPEN_ACTION),
    AUTH_REQUIRED: PeerRow(
        Status.WAITING_PERMISSION, Follow.OPEN_ACTION, for_credential=Status.WAITING_RESOURCE
    ),
    COMPLETED: PeerRow(Status.RUNNING, Follow.RECONCILE),
    FAILED: PeerRow(Status.FAILED, Follow.END_RUN),
    REJECTED: PeerRow(Status.FAILED, Follow.END_RUN, reason="rejected"),
    CANCELED: PeerRow(Status.CANCELLED, Follow.CANCEL),
}
UNKNOWN_STATE: Final = PeerRow(Status.UNKNOWN, Follow.WARN)
"""Unspecified, or a state that A2A 1.0 does not have."""


def map_peer_state(native_status: str) -> PeerRow:
    """The row of an agent's raw state, which is kept in ``native_status``."""
    return PEER_STATES.get(native_status, UNKNOWN_STATE)
