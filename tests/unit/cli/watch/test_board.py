"""Watched tasks: folded once, measured, and dropped when they have ended."""

from __future__ import annotations

import io
import json
from typing import Final

import orjson
from rich.console import Console

from passerelle.cli.watch.board import KEPT_ENDED, RATE_OVER_MS, Board
from passerelle.cli.watch.lines import Lines
from passerelle.cli.watch.screen import Screen
from passerelle.core.events import encode_event
from passerelle.core.facts import ErrorCategory, ErrorDetail, Scope
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.read_models.task import QUIET_MS
from passerelle.core.task.commands import (
    BeginTask,
    EndInError,
    ReportProgress,
    StartRun,
)
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from tests.support.task_commands import CREATED, STARTED, Story, make_story

NOW_MS: Final = 1_000_000
FAILED: Final = EndInError(ErrorDetail("broken", ErrorCategory.PEER, "it broke\x1b[2J"))


def wire(story: Story, place: int) -> JsonObject:
    """One event of a story as a channel carries it."""
    data: JsonObject = orjson.loads(
        b'{"sequence":%d,' % story.events[place].sequence + encode_event(story.events[place]).body
    )
    return data


def snapshot(*stories: Story) -> JsonObject:
    return {"tasks": [to_wire(story.state) for story in stories if story.state is not None]}


def make_other(name: str, *commands: object) -> Story:
    story = Story()
    story.tell(BeginTask(Scope("se_1", "th_1", "turn_1", name), CREATED))
    for command in commands:
        story.tell(command)  # type: ignore[arg-type]  # whatever a test wants
    return story


def test_events_fold_into_the_record_that_the_gateway_has() -> None:
    story = make_story(StartRun("run_1", STARTED))
    board = Board()
    changed = [board.apply_event(wire(story, place), NOW_MS) for place in range(len(story.events))]
    assert set(changed) == {"task_1"}
    line = board.show("task_1", NOW_MS)
    assert (line.sequence, line.attempts) == (len(story.events), 1)


def test_an_event_that_a_snapshot_has_changes_nothing() -> None:
    story = make_story()
    board = Board()
    assert board.apply_snapshot(snapshot(story)) == ["task_1"]
    assert board.apply_event(wire(story, -1), NOW_MS) is None
    assert board.measure("task_1", NOW_MS) == 0


def test_unreadable_and_unrelated_events_change_nothing() -> None:
    board = Board()
    assert board.apply_event({"type": "x.other"}, NOW_MS) is None
    story = make_story()
    assert board.apply_event(wire(story, -1), NOW_MS) is None
    assert (board.list_all(), board.has_ended) == ([], True)


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    story = make_story()
    board = Board()
    board.apply_snapshot(snapshot(story))
    for percent in range(20):
        story.tell(ReportProgress(TaskProgress(percent=percent)))
        board.apply_event(wire(story, -1), NOW_MS + percent * 1000)
    last_ms = NOW_MS + 19_000
    assert board.measure("task_1", last_ms) == 1.0
    assert board.measure("task_1", last_ms + RATE_OVER_MS // 2) == 0.5
    assert board.measure("task_1", last_ms + RATE_OVER_MS) == 0.0


def test_only_open_tasks_are_looked_at_where_none_is_named() -> None:
    ended, begun = make_other("task_2", FAILED), make_story()
    board = Board(only_open=True)
    assert board.apply_snapshot(snapshot(ended, begun)) == ["task_1"]
    begun.tell(FAILED)
    board.apply_event(wire(begun, -1), NOW_MS)
    assert (board.list_all(), board.all_completed, board.has_ended) == (["task_1"], False, True)


def test_open_tasks_come_first_and_only_the_last_that_ended_are_kept() -> None:
    board = Board()
    many = [make_other(f"task_{place}", FAILED) for place in range(10, 12 + KEPT_ENDED)]
    board.apply_snapshot(snapshot(*many, make_story()))
    assert board.list_all()[0] == "task_1"
    assert len(board.list_all()) == KEPT_ENDED + 1
    assert board.count() == {"failed": KEPT_ENDED, "accepted": 1}


def test_a_line_is_printed_when_what_it_shows_has_changed() -> None:
    story = make_story()
    board, told = Board(), list[str]()
    lines = Lines(told.append, as_json=False)
    board.apply_snapshot(snapshot(story))
    for _ in range(2):
        lines.show(board, board.list_all(), "", NOW_MS)
    assert told == ["1970-01-01T00:16:40.000Z  task_1  accepted  0.0/s"]
    story.tell(FAILED)
    board.apply_event(wire(story, -1), NOW_MS)
    lines.show(board, ["task_1"], "connected again", NOW_MS)
    assert told[1:] == [
        "1970-01-01T00:16:40.000Z  connected again",
        r"1970-01-01T00:16:40.000Z  task_1  failed  broken: it broke\u{1b}[2J  0.1/s",
    ]


def test_programs_read_one_object_for_each_line() -> None:
    board, told = Board(), list[str]()
    lines = Lines(told.append, as_json=True)
    board.apply_snapshot(snapshot(make_story()))
    lines.show(board, ["task_1"], "no gateway", NOW_MS)
    link, task = map(json.loads, told)
    assert link == {"at": "1970-01-01T00:16:40.000Z", "link": "no gateway"}
    assert (task["taskId"], task["status"], task["rate"]) == ("task_1", "accepted", 0.0)


def test_a_silent_task_is_shown_once_as_stale() -> None:
    story = make_story(StartRun("run_1", STARTED))
    assert story.state is not None
    board, told = Board(), list[str]()
    lines = Lines(told.append, as_json=True)
    board.apply_snapshot(snapshot(story))
    seen_ms = parse_ms(story.state.attempts[-1].last_seen_at)
    for later_ms in (0, QUIET_MS + 1, QUIET_MS + 5000):
        lines.show(board, ["task_1"], "", seen_ms + later_ms)
    assert [json.loads(line)["status"] for line in told] == [story.state.status, Status.STALE]
    assert json.loads(told[-1])["recorded"] == story.state.status


def test_a_screen_shows_every_task_and_nothing_that_acts_on_a_terminal() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=120, height=30, no_color=True))
    board = Board()
    board.apply_snapshot(snapshot(make_story(), make_other("task_2", FAILED)))
    screen.show(board, (), "connected again", NOW_MS)
    screen.close()
    text = out.getvalue()
    assert all(word in text for word in ("TASK", "task_1", "task_2", "accepted", "failed"))
    assert "1 accepted, 1 failed | connected again" in text
    assert "\x1b[2J" not in text
