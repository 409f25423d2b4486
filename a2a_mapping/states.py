"""What a peer's state is to us, in one table.

The peer's own word is kept beside the local status (A2A-7, ST-21), so nothing is lost
by mapping; a word that is not in the table is ``unknown``, never the nearest guess (ST-20). A closed
stream is no state at all: it says nothing about the task (I6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from passerelle.core.task.status import Status

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
    """What a peer's state leads to, beyond the status."""

    NOTHING = "nothing"
    OPEN_ACTION = "open_action"
    """Somebody has to answer; a dialect says whether it is a permission."""
    RECONCILE = "reconcile"
    """Verify and deliver first: the task is completed only when its artifacts are here (I5)."""
    END_RUN = "end_run"
    """The run has failed; whether the task goes on with another one is the retry policy's."""
    CANCEL = "cancel"
    """The task was stopped, by us or by the peer."""
    WARN = "warn"
    """Record a warning and wait for a state that is known."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A local status and what follows; ``for_credential`` is the status when a credential is asked for."""

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
"""Unspecified, or a word that A2A 1.0 does not have."""


def map_peer_state(native_status: str) -> PeerRow:
    """The row of a peer's raw state, which stays as it is in ``native_status``."""
    return PEER_STATES.get(native_status, UNKNOWN_STATE)
