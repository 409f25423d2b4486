"""A table in a terminal that is drawn again as tasks go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

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
        self._live.update(Group(_draw(board, now_ms), foot), refresh=True)

    def close(self) -> None:
        """Leaves the last picture and gives the cursor back."""
        self._live.stop()


def _draw(board: Board, now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in _TITLES:
        # A name is cut rather than broken: half of it still tells tasks apart.
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for task_id in board.list_all():
        line = board.show(task_id, now_ms)
        phase, amount, words = describe_progress(line)
        rate = "" if line.status in ENDED else f"{board.measure(task_id, now_ms):.1f}/s"
        table.add_row(
            Text(line.task_id),
            Text(escape_line(line.assignee or line.kind)),
            Text(line.status.value, style=_choose_colour(line)),
            Text(phase),
            Text(amount),
            Text(rate),
            Text(words or escape_line(line.title)),
        )
    return table


def _choose_colour(line: TaskLine) -> str:
    return "yellow" if line.status in WAITING else _COLOURS.get(line.status, "cyan")
