"""What ``make chaos`` says of the runs of the dead: how long each waited, and on which step."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.takeovers import AGAIN_S, TakenUp, read_lines, tell_delays


def test_promise_is_the_lease_and_a_second() -> None:
    assert AGAIN_S == 6.0


def test_slowest_run_is_told_with_the_steps_on_which_its_time_was_spent() -> None:
    quick = TakenUp("task_1", 0.4, 4.9, None, None)
    slow = TakenUp("task_2", 5.12, 4.75, 4.91, 5.04)
    told = tell_delays([quick, slow])
    assert "2 runs driven again after 5.1 s at most" in told
    assert "lease over 4.75, moved 4.91, driver 5.04, first call 5.12" in told
    assert str(quick) == "lease over 4.90, first call 0.40", "a step that nobody told is left out"


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
