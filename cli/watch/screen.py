"""A live table of tasks in a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from passerelle.cli.verbs.table_layout import GAP, fit_columns, shorten_ids
from passerelle.cli.watch.lines import describe_progress
from passerelle.core.task.status import ENDED, WAITING, Status
from passerelle.core.wire.display import escape_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.cli.watch.board import Board
    from passerelle.core.read_models.task import TaskLine

_COLOURS: Final = {
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.TIMED_OUT: "red",
    Status.LOST: "red",
    Status.STALE: "magenta",
    Status.UNKNOWN: "magenta",
    Status.CANCELLED: "yellow",
    Status.CANCELLING: "yellow",
}
_ROOMY: Final = 120
"""Terminal width from which ids are shown whole."""
_TITLES: Final = ("TASK", "AGENT", "STATUS", "PHASE", "PROGRESS", "RATE", "WHAT")
_STATUS: Final = _TITLES.index("STATUS")


@dataclass(slots=True)
class Screen:
    """Draws into ``console`` until it is closed; the last table stays."""

    console: Console
    with_owners: bool = False
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def show(self, board: Board, changed: Iterable[str], note: str, now_ms: int) -> None:
        """Redraws the table."""
        del changed
        counts = ", ".join(f"{count} {status}" for status, count in sorted(board.count().items()))
        foot = Text(f"{counts or 'no task yet'}{f' | {note}' if note else ''}", style="dim")
        table = _draw(board, now_ms, self.console.width, with_owners=self.with_owners)
        self._live.update(Group(table, foot), refresh=True)

    def close(self) -> None:
        """Leaves the last table and restores the cursor."""
        self._live.stop()


def _draw(board: Board, now_ms: int, width: int, *, with_owners: bool) -> Table:
    lines = [board.show(task_id, now_ms) for task_id in board.list_all()]
    short = {} if width >= _ROOMY else shorten_ids([line.task_id for line in lines])
    rows = [_make_row(line, short.get(line.task_id, line.task_id), board, now_ms) for line in lines]
    columns = [[*column] for column in zip(_TITLES, *rows, strict=True)]
    if with_owners:
        owners = [escape_line(line.scope.principal) for line in lines]
        columns.append(["OWNER", *owners])
        # keep the task's activity as the last column, since it is cut first
        columns[-2:] = [columns[-1], columns[-2]]
    titles, *fitted = fit_columns(columns, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    for line, row in zip(lines, fitted, strict=True):
        cells = [Text(cell) for cell in row]
        cells[_STATUS].stylize(_choose_colour(line))
        table.add_row(*cells)
    return table


def _make_row(line: TaskLine, short: str, board: Board, now_ms: int) -> tuple[str, ...]:
    phase, amount, words = describe_progress(line)
    has_ended = line.status in ENDED
    return (
        short,
        escape_line(line.assignee or line.kind),
        line.status.value,
        "" if has_ended else phase,
        amount,
        "" if has_ended else f"{board.measure(line.task_id, now_ms):.1f}/s",
        words or escape_line(line.title),
    )


def _choose_colour(line: TaskLine) -> str:
    return "yellow" if line.status in WAITING else _COLOURS.get(line.status, "cyan")
