"""What ``make chaos`` says of the runs of the dead: how long each waited, and on which step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from passerelle.core.task.status import Status
from passerelle.core.wire.times import format_ms
from tests.chaos.site import Death
from tests.chaos.takeovers import (
    AGAIN_S,
    Call,
    TakenUp,
    describe_delays,
    find_end,
    measure_hold,
    read_lines,
)
from tests.chaos.traps import Hold

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject


def test_promise_is_the_lease_and_a_second() -> None:
    assert AGAIN_S == 6.0


def test_slowest_run_is_told_with_the_steps_on_which_its_time_was_spent() -> None:
    quick = TakenUp("task_1", 0.4, 4.9, None, None, 0.0)
    slow = TakenUp("task_2", 5.12, 4.75, 4.91, 5.04, 0.0)
    told = describe_delays([quick, slow])
    assert "2 runs driven again after 5.1 s at most" in told
    assert "lease over 4.75, moved 4.91, driver 5.04, first call 5.12" in told
    assert str(quick) == "lease over 4.90, first call 0.40", "a step that nobody told is left out"


def test_time_without_the_store_is_given_on_top_and_told() -> None:
    held = [Hold(0, 103.0, 104.0), Hold(0, 104.5, 105.75), Hold(1, 104.0, 106.0)]
    without_s = measure_hold(held, Call(106.0, 0), 104.9)
    assert without_s == pytest.approx(0.85), (
        "what counts is held behind the lease, and of the gateway that called"
    )
    assert measure_hold(held, Call(105.0, 0), 104.9) == pytest.approx(0.1)
    late = TakenUp("task_1", 6.1, 4.9, 6.0, 6.0, without_s)
    assert not late.is_late
    assert str(late).endswith("first call 6.10, of it 0.85 without the store")
    assert replace(late, again_s=6.9).is_late
    assert replace(late, held_s=0.0).is_late


def test_lines_of_all_gateways_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    said = {"one": "2026-11-21T18:27:18.150526Z", "two": "2026-11-21T18:27:17.852354Z"}
    files: list[Path] = []
    for name, time in said.items():
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "gateway.log")
        line = f'{{"event":"run.adopted","task":"task_1","time":"{time}"}}\n'
        files[-1].write_text(f"not a line of ours\n{line}", encoding="utf-8")
    (two, first), (one, _) = read_lines(files)["task_1"]
    assert (one - two, first["gateway"]) == (299, "two")


@pytest.mark.parametrize(
    ("status", "remote", "event", "calls"),
    [
        (Status.CANCELLED, None, "run.adopted", [Call(105.5, 1)]),
        (Status.CANCELLED, "t-1", "run.adopted", []),
        (Status.FAILED, None, "run.adopted", []),
        (Status.CANCELLED, None, "run.taken_over", []),
    ],
    ids=["nobody to ask", "the agent knows of it", "not cancelled", "no driver"],
)
def test_end_of_a_run_that_no_agent_has_heard_of_is_as_good_as_a_call(
    status: Status, remote: str | None, event: str, calls: list[Call]
) -> None:
    attempt = SimpleNamespace(remote_task_id=remote)
    record = SimpleNamespace(status=status, status_at=format_ms(6_500), attempts=(attempt,))
    line: JsonObject = {"event": event, "gateway": "two"}
    death = Death(0, "killed", 100.0, 1_000, {})
    assert find_end(cast("TaskRecord", record), death, [(6_000, line)]) == calls
