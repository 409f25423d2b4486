"""Prints one line per change of a task: text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.display import escape_line
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.cli.watch.board import Board
    from passerelle.core.read_models.task import TaskLine


@dataclass(slots=True)
class Lines:
    """Prints a line when the visible state of a task changes. ``write`` gets it without a newline."""

    write: Callable[[str], None]
    as_json: bool
    with_owners: bool = False
    _shown: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])

    def show(self, board: Board, changed: Iterable[str], note: str, now_ms: int) -> None:
        """Prints the changes of these tasks, and ``note`` if the link state changed."""
        if note:
            self._write_note(note, now_ms)
        for task_id in changed:
            line = board.show(task_id, now_ms)
            shown = describe(line)
            if self.with_owners:
                shown = {**shown, "owner": line.scope.principal}
            if self._shown.get(task_id) != shown:
                self._shown[task_id] = shown
                self.write(self._render(line, shown, board.measure(task_id, now_ms), now_ms))

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _write_note(self, note: str, now_ms: int) -> None:
        at = format_ms(now_ms)
        text = orjson.dumps({"at": at, "link": note}).decode()
        self.write(text if self.as_json else f"{at}  {note}")

    def _render(self, line: TaskLine, shown: JsonObject, rate: float, now_ms: int) -> str:
        at = format_ms(now_ms)
        if self.as_json:
            return orjson.dumps({"at": at, **shown, "rate": rate}).decode()
        owner = escape_line(str(shown.get("owner", "")))
        cells = (
            *(at, line.task_id, owner, line.status.value),
            *(*describe_progress(line), f"{rate:.1f}/s"),
        )
        return "  ".join(cell for cell in cells if cell)


def describe(line: TaskLine) -> JsonObject:
    """Returns the visible state of a task; a change of it makes a new line."""
    doubt = line.marks.get("status")
    return {
        "taskId": line.task_id,
        "sessionId": line.session_id,
        "sequence": line.sequence if doubt is None else None,
        "title": line.title,
        "agent": line.assignee or line.kind,
        "status": line.status.value,
        "recorded": line.recorded.value,
        "attempt": line.attempts,
        "progress": to_wire(line.progress),
        "openActions": list(line.open_actions),
        "statusReason": line.status_reason,
        "lastError": to_wire(line.last_error) if line.last_error else None,
    }


def describe_progress(line: TaskLine) -> tuple[str, str, str]:
    """Returns phase, percentage (or chunks), and current activity, escaped for a terminal."""
    progress = line.progress
    chunks = progress.counters.get("chunks")
    amount = f"{chunks} chunks" if chunks else ""
    if progress.percent is not None:
        amount = f"{progress.percent}%"
    words = progress.step or progress.summary or ""
    if line.open_actions:
        words = f"asks {', '.join(line.open_actions)}"
    if line.last_error is not None:
        words = f"{line.last_error.code}: {line.last_error.message}"
    return progress.phase or "", amount, escape_line(words)
