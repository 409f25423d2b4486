"""The table of ``tasks watch`` on a terminal of 80 columns: the distinguishing part of ids is complete."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from passerelle.cli.watch.board import Board
from passerelle.cli.watch.screen import Screen
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.task.commands import ReportProgress, StartRun
from tests.support.task_commands import STARTED
from tests.unit.cli.watch.test_board import NOW_MS, make_other, snapshot

TASKS = ("task_0301m8h5rvb1mwfft3km7sge0v01", "task_0301m8h5rvb1mwfft3km7sge0v02")


def draw(board: Board, width: int, *, with_owners: bool = False) -> str:
    drawn = io.StringIO()
    screen = Screen(Console(file=drawn, width=width, force_terminal=False), with_owners)
    screen.show(board, (), "", NOW_MS)
    screen.close()
    return drawn.getvalue()


@pytest.fixture
def board() -> Board:
    words = "reading all the books of the library and writing down what stands in each of them"
    progress = ReportProgress(TaskProgress("working-on-it", step=words))
    stories = [make_other(name, StartRun("run_1", STARTED), progress) for name in TASKS]
    made = Board()
    made.apply_snapshot(snapshot(*stories))
    return made


def test_ids_and_statuses_are_not_cut_at_80_columns(board: Board) -> None:
    lines = draw(board, 80).splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    titles, *rows = [line.split() for line in lines[:3]]
    assert titles == ["TASK", "AGENT", "STATUS", "PHASE", "PROGRESS", "RATE", "WHAT"]
    assert [row[:3] for row in rows] == [[task[-8:], "echo", "stale"] for task in TASKS]
    assert all(line.rstrip().endswith("…") for line in lines[1:3]), "what is cut says so"


def test_ids_are_whole_where_there_is_room(board: Board) -> None:
    assert all(task in draw(board, 140) for task in TASKS)


def test_the_owner_of_each_task_is_shown(board: Board) -> None:
    lines = draw(board, 80, with_owners=True).splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    titles, *rows = [line.split() for line in lines[:3]]
    assert titles == ["TASK", "AGENT", "STATUS", "PHASE", "PROGRESS", "RATE", "OWNER", "WHAT"]
    owner = board.show(board.list_all()[0], NOW_MS).scope.principal
    assert [row[:3] for row in rows] == [[task[-8:], "echo", "stale"] for task in TASKS]
    assert all(owner in row for row in rows)
