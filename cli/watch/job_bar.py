"""A progress bar of a job's items, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.display import escape_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.wire.json import JsonObject

_TITLE: Final = 24
"""Characters of a title that are shown."""
_ENDED: Final = ("completed", "failed", "cancelled")


class JobBar:
    """A context manager that yields the function to update the bar with a job."""

    def __init__(self, console: Console | None = None) -> None:
        # never cut the counts: on a narrow terminal first the bar shrinks, then the title
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=_cut_at(_TITLE)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            MofNCompleteColumn(table_column=_cut_at(None)),
            TextColumn("{task.fields[detail]}", markup=False, table_column=_cut_at(None)),
            TimeElapsedColumn(table_column=_cut_at(None)),
            console=console,
            expand=True,
        )
        self._bar = self._progress.add_task("", total=None, detail="")

    def __enter__(self) -> Callable[[JsonObject], None]:
        """Starts the bar; returns its update function."""
        self._progress.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _update(self, job: JsonObject) -> None:
        counts = {name: _read(count) for name, count in object_at(job, "counts").items()}
        detail = [f"{name} {counts[name]}" for name in ("running", "failed") if counts.get(name)]
        self._progress.update(
            self._bar,
            description=escape_text(text_at(job, "title")),
            total=_read(job.get("items")),
            completed=sum(counts.get(name, 0) for name in _ENDED),
            detail=" ".join([text_at(job, "status"), *detail]),
        )


def _cut_at(most: int | None) -> Column:
    return Column(max_width=most, no_wrap=True, overflow="ellipsis")


def _read(count: object) -> int:
    return count if isinstance(count, int) else 0
