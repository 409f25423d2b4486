"""The six states that a device can find when it comes back (CHN-12)."""

from __future__ import annotations

from typing import get_args

import pytest

from passerelle.core.payloads.channel import Recovery
from passerelle.core.read_models.channels import ORDER, choose_recovery, find_recovery
from passerelle.core.read_models.task import QUIET_MS
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import parse_ms
from tests.support.payloads import sample

SEEN = "2026-11-21T00:00:00.000Z"
SEEN_MS = parse_ms(SEEN)
SAMPLE = change(
    sample(TaskRecord), stale_from=None, current_run_id="word", open_actions=(), last=40
)
TASK = change(SAMPLE, attempts=(change(SAMPLE.attempts[0], last_seen_at=SEEN),))


@pytest.mark.requirement("CHN-12")
@pytest.mark.parametrize("status", Status)
def test_every_status_of_a_task_is_one_of_the_six_and_none_is_a_failure(status: Status) -> None:
    found = find_recovery(change(TASK, status=status), 40, SEEN_MS)
    assert found in get_args(Recovery)
    assert set(ORDER) == set(get_args(Recovery))
    if status in ENDED:
        assert found == ("archived_or_missing" if status is Status.ARCHIVED else "idle")


@pytest.mark.requirement("CHN-12")
def test_each_recovery_state_follows_from_the_record() -> None:
    running = change(TASK, status=Status.RUNNING)
    assert find_recovery(running, 40, SEEN_MS) == "running"
    assert find_recovery(running, 40, SEEN_MS + QUIET_MS + 1) == "unreachable"
    assert find_recovery(change(TASK, status=Status.LOST), 40, SEEN_MS) == "unreachable"
    assert find_recovery(change(running, open_actions=("act_1",)), 40, SEEN_MS) == "waiting"
    assert find_recovery(change(TASK, status=Status.WAITING_INPUT), 40, SEEN_MS) == "waiting"
    done = change(TASK, status=Status.COMPLETED, current_run_id=None)
    assert find_recovery(done, 39, SEEN_MS) == "completed_undelivered"
    assert find_recovery(done, 40, SEEN_MS) == "idle"
    assert find_recovery(done, 40, SEEN_MS, "se_1@40") == "archived_or_missing"
    assert find_recovery(done, 39, SEEN_MS, "se_1@40") == "completed_undelivered"
    assert find_recovery(change(done, status=Status.FAILED), 39, SEEN_MS) == "idle"
    paused = change(TASK, status=Status.PAUSED, current_run_id=None)
    assert find_recovery(paused, 40, SEEN_MS) == "idle"


def test_most_urgent_of_several_recovery_states_is_chosen() -> None:
    assert choose_recovery([]) == "idle"
    assert choose_recovery(["idle", "completed_undelivered", "running"]) == "running"
    assert choose_recovery(["archived_or_missing", "waiting", "unreachable"]) == "waiting"
