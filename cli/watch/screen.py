"""A table in a terminal that is drawn again as tasks go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from passerelle.cli.verbs.fitting import shorten_ids
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
"""Columns of a terminal in which ids are whole."""
_GIVE_WAY: Final = frozenset({"AGENT", "PHASE", "WHAT"})
_TITLES: Final = ("TASK", "AGENT", "STATUS", "PHASE", "PROGRESS", "RATE", "WHAT")


@dataclass(slots=True)
class Screen:
    """Draws into ``console`` until it is closed; what it drew last stays."""

    console: Console
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def show(self, board: Board, changed: Iterable[str], note: str, now_ms: int) -> None:
        """Draws everything anew."""
        del changed
        counts = ", ".join(f"{count} {status}" for status, count in sorted(board.count().items()))
        foot = Text(f"{counts or 'no task yet'}{f' | {note}' if note else ''}", style="dim")
        table = _draw(board, now_ms, whole=self.console.width >= _ROOMY)
        self._live.update(Group(table, foot), refresh=True)

    def close(self) -> None:
        """Leaves the last picture and gives the cursor back."""
        self._live.stop()


def _draw(board: Board, now_ms: int, *, whole: bool) -> Table:
    lines = [board.show(task_id, now_ms) for task_id in board.list_all()]
    short = {} if whole else shorten_ids([line.task_id for line in lines])
    rows = [_make_row(line, short.get(line.task_id, line.task_id), board, now_ms) for line in lines]
    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(_TITLES):
        # Words give way: of what tells tasks apart and where they stand nothing is cut.
        widest = max(len(title), *(len(row[place]) for row in rows), 0) if rows else len(title)
        least = None if title in _GIVE_WAY else widest
        table.add_column(title, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows:
        table.add_row(*row)
    return table


def _make_row(line: TaskLine, short: str, board: Board, now_ms: int) -> tuple[Text, ...]:
    phase, amount, words = describe_progress(line)
    has_ended = line.status in ENDED
    return (
        Text(short),
        Text(escape_line(line.assignee or line.kind)),
        Text(line.status.value, style=_choose_colour(line)),
        Text("" if has_ended else phase),
        Text(amount),
        Text("" if has_ended else f"{board.measure(line.task_id, now_ms):.1f}/s"),
        Text(words or escape_line(line.title)),
    )


def _choose_colour(line: TaskLine) -> str:
    return "yellow" if line.status in WAITING else _COLOURS.get(line.status, "cyan")
