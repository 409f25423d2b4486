"""Both state maps, row by row."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.states import (
    PEER_STATES,
    UNKNOWN_STATE,
    Follow,
    map_peer_state,
)
from passerelle.core.task.status import Status


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
    rows = [*PEER_STATES.values(), UNKNOWN_STATE]
    assert Status.COMPLETED not in {row.status for row in rows}
