"""The two state maps: what a peer's state is to us, and what our status is to a caller.

Both are tables. The peer's own word is kept beside the local status (A2A-7, ST-21), so nothing is lost
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
    ASK_AGAIN = "ask_again"
    """Ask with GetTask; past the liveness limit the run is lost, and never completed."""
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
OUT_OF_SIGHT: Final = PeerRow(Status.RUNNING, Follow.ASK_AGAIN)
"""The stream is gone, or the peer cannot be reached: no state was heard."""


def map_peer_state(native_status: str) -> PeerRow:
    """The row of a peer's raw state, which stays as it is in ``native_status``."""
    return PEER_STATES.get(native_status, UNKNOWN_STATE)


class Circumstance(StrEnum):
    """What besides the status decides the facade state."""

    ACTION_OPEN = "action_open"
    CALLER_CAN_SUPPLY = "caller_can_supply"
    PAST_LIMIT = "past_limit"
    REJECTED = "rejected"


class Special(StrEnum):
    """A facade column that is not a state."""

    NOT_EXPOSED = "not_exposed"
    LAST = "last"
    """The last state that was shown."""
    LAST_MARKED = "last_marked"
    """The last state that was shown, with a mark in the metadata."""


@dataclass(frozen=True, slots=True)
class FacadeRow:
    """What callers see; ``under`` names the one circumstance that changes it, and to what."""

    state: str | Special
    under: tuple[Circumstance, str] | None = None


FACADE_STATES: Final[dict[Status, FacadeRow]] = {
    Status.DRAFT: FacadeRow(Special.NOT_EXPOSED),
    Status.ACCEPTED: FacadeRow(SUBMITTED),
    Status.QUEUED: FacadeRow(SUBMITTED),
    Status.PREPARING: FacadeRow(SUBMITTED),
    Status.RUNNING: FacadeRow(WORKING),
    Status.RETRYING: FacadeRow(WORKING),
    Status.PAUSED: FacadeRow(WORKING),
    Status.CANCELLING: FacadeRow(WORKING),
    Status.WAITING_RESOURCE: FacadeRow(WORKING, (Circumstance.CALLER_CAN_SUPPLY, AUTH_REQUIRED)),
    Status.LOST: FacadeRow(WORKING, (Circumstance.PAST_LIMIT, FAILED)),
    Status.BLOCKED: FacadeRow(WORKING, (Circumstance.ACTION_OPEN, INPUT_REQUIRED)),
    Status.WAITING_INPUT: FacadeRow(INPUT_REQUIRED),
    Status.WAITING_PERMISSION: FacadeRow(AUTH_REQUIRED),
    Status.COMPLETED: FacadeRow(COMPLETED),
    Status.CANCELLED: FacadeRow(CANCELED),
    Status.FAILED: FacadeRow(FAILED, (Circumstance.REJECTED, REJECTED)),
    Status.TIMED_OUT: FacadeRow(FAILED),
    Status.ARCHIVED: FacadeRow(Special.LAST),
    Status.STALE: FacadeRow(Special.LAST_MARKED),
    Status.UNKNOWN: FacadeRow(Special.LAST_MARKED),
}


@dataclass(frozen=True, slots=True)
class FacadeState:
    """A state to show; ``marked``: the metadata says that it may not match what is going on."""

    state: str
    marked: bool = False


def map_status(
    status: Status,
    circumstances: frozenset[Circumstance] = frozenset(),
    last_shown: str | None = None,
) -> FacadeState | None:
    """What a caller sees of ``status``; None when there is nothing to show.

    ``last_shown`` is the facade state before; without one, a status that only repeats it is not shown.
    """
    row = FACADE_STATES[status]
    if row.under is not None and row.under[0] in circumstances:
        return FacadeState(row.under[1])
    match row.state:
        case Special.NOT_EXPOSED:
            return None
        case Special.LAST | Special.LAST_MARKED:
            marked = row.state is Special.LAST_MARKED
            return None if last_shown is None else FacadeState(last_shown, marked)
        case state:
            return FacadeState(state)
