"""Both state maps, row by row."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.states import (
    FACADE_STATES,
    INTERRUPTED_STATES,
    OUT_OF_SIGHT,
    PEER_STATES,
    TERMINAL_STATES,
    UNKNOWN_STATE,
    Circumstance,
    FacadeState,
    Follow,
    map_peer_state,
    map_status,
)
from passerelle.core.task.status import TERMINAL, Status


@pytest.mark.requirement("A2A-7", "ST-21")
@pytest.mark.parametrize(
    ("native", "status", "follow"),
    [
        ("TASK_STATE_SUBMITTED", Status.QUEUED, Follow.NOTHING),
        ("TASK_STATE_WORKING", Status.RUNNING, Follow.NOTHING),
        ("TASK_STATE_INPUT_REQUIRED", Status.WAITING_INPUT, Follow.OPEN_ACTION),
        ("TASK_STATE_AUTH_REQUIRED", Status.WAITING_PERMISSION, Follow.OPEN_ACTION),
        ("TASK_STATE_COMPLETED", Status.RUNNING, Follow.RECONCILE),
        ("TASK_STATE_FAILED", Status.FAILED, Follow.END_RUN),
        ("TASK_STATE_REJECTED", Status.FAILED, Follow.END_RUN),
        ("TASK_STATE_CANCELED", Status.CANCELLED, Follow.CANCEL),
    ],
)
def test_each_peer_state_has_its_local_status(native: str, status: Status, follow: Follow) -> None:
    row = map_peer_state(native)
    assert (row.status, row.follow) == (status, follow)


def test_the_table_has_the_eight_states_of_the_protocol_and_no_other() -> None:
    assert len(PEER_STATES) == 8


def test_a_rejection_keeps_its_reason() -> None:
    assert map_peer_state("TASK_STATE_REJECTED").reason == "rejected"
    assert map_peer_state("TASK_STATE_FAILED").reason is None


def test_a_credential_is_waited_for_as_a_resource() -> None:
    assert map_peer_state("TASK_STATE_AUTH_REQUIRED").for_credential is Status.WAITING_RESOURCE


@pytest.mark.requirement("A2A-7", "ST-20")
@pytest.mark.parametrize(
    "native", ["TASK_STATE_UNSPECIFIED", "TASK_STATE_DONE", "working", "completed", "", "x"]
)
def test_a_word_that_is_not_in_the_table_is_unknown_and_never_guessed(native: str) -> None:
    assert map_peer_state(native) is UNKNOWN_STATE
    assert UNKNOWN_STATE.status is Status.UNKNOWN


def test_no_peer_state_completes_a_task_by_itself() -> None:
    rows = [*PEER_STATES.values(), UNKNOWN_STATE, OUT_OF_SIGHT]
    assert Status.COMPLETED not in {row.status for row in rows}


def test_silence_leaves_the_task_running_and_asks_again() -> None:
    assert (OUT_OF_SIGHT.status, OUT_OF_SIGHT.follow) == (Status.RUNNING, Follow.ASK_AGAIN)


_PLAIN = {
    Status.ACCEPTED: "TASK_STATE_SUBMITTED",
    Status.QUEUED: "TASK_STATE_SUBMITTED",
    Status.PREPARING: "TASK_STATE_SUBMITTED",
    Status.RUNNING: "TASK_STATE_WORKING",
    Status.RETRYING: "TASK_STATE_WORKING",
    Status.PAUSED: "TASK_STATE_WORKING",
    Status.CANCELLING: "TASK_STATE_WORKING",
    Status.WAITING_RESOURCE: "TASK_STATE_WORKING",
    Status.LOST: "TASK_STATE_WORKING",
    Status.BLOCKED: "TASK_STATE_WORKING",
    Status.WAITING_INPUT: "TASK_STATE_INPUT_REQUIRED",
    Status.WAITING_PERMISSION: "TASK_STATE_AUTH_REQUIRED",
    Status.COMPLETED: "TASK_STATE_COMPLETED",
    Status.CANCELLED: "TASK_STATE_CANCELED",
    Status.FAILED: "TASK_STATE_FAILED",
    Status.TIMED_OUT: "TASK_STATE_FAILED",
}


@pytest.mark.parametrize(("status", "state"), _PLAIN.items())
def test_each_status_shows_its_facade_state(status: Status, state: str) -> None:
    assert map_status(status) == FacadeState(state)


@pytest.mark.parametrize(
    ("status", "circumstance", "state"),
    [
        (Status.WAITING_RESOURCE, Circumstance.CALLER_CAN_SUPPLY, "TASK_STATE_AUTH_REQUIRED"),
        (Status.LOST, Circumstance.PAST_LIMIT, "TASK_STATE_FAILED"),
        (Status.BLOCKED, Circumstance.ACTION_OPEN, "TASK_STATE_INPUT_REQUIRED"),
        (Status.FAILED, Circumstance.REJECTED, "TASK_STATE_REJECTED"),
    ],
)
def test_one_circumstance_changes_four_rows(
    status: Status, circumstance: Circumstance, state: str
) -> None:
    assert map_status(status, frozenset({circumstance})) == FacadeState(state)


def test_a_circumstance_of_another_row_changes_nothing() -> None:
    everything = frozenset(Circumstance)
    assert map_status(Status.RUNNING, everything) == FacadeState("TASK_STATE_WORKING")
    assert map_status(Status.COMPLETED, everything) == FacadeState("TASK_STATE_COMPLETED")


def test_a_draft_is_not_exposed() -> None:
    assert map_status(Status.DRAFT, last_shown="TASK_STATE_WORKING") is None


def test_an_archived_task_shows_its_last_state() -> None:
    assert map_status(Status.ARCHIVED, last_shown="TASK_STATE_COMPLETED") == FacadeState(
        "TASK_STATE_COMPLETED"
    )


@pytest.mark.requirement("ST-20")
@pytest.mark.parametrize("status", [Status.STALE, Status.UNKNOWN])
def test_what_is_not_known_shows_the_last_state_with_a_mark(status: Status) -> None:
    shown = map_status(status, last_shown="TASK_STATE_WORKING")
    assert shown == FacadeState("TASK_STATE_WORKING", marked=True)
    assert map_status(status) is None


def test_every_status_has_a_facade_row() -> None:
    assert set(FACADE_STATES) == set(Status)


def test_only_an_ended_task_can_look_ended() -> None:
    ended = {status for status, state in _PLAIN.items() if state in TERMINAL_STATES}
    assert ended == TERMINAL
    assert not INTERRUPTED_STATES & TERMINAL_STATES
