"""Draws the inbox in a terminal, or prints it as lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from passerelle.a2a_mapping.members import text_at
from passerelle.cli.verbs.approval_text import describe_question
from passerelle.core.wire.display import escape_line, escape_text
from passerelle.core.wire.times import format_ms, parse_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from passerelle.cli.watch.inbox import Inbox
    from passerelle.core.wire.json import JsonObject

_COLOURS: Final = {"low": "green", "medium": "cyan", "high": "yellow", "critical": "red"}
_SECOND_MS: Final = 1_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600


@dataclass(slots=True)
class InboxScreen:
    """Draws into ``console`` until it is closed."""

    console: Console
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def show(self, inbox: Inbox, link: str, now_ms: int) -> None:
        """Redraws the screen."""
        parts: list[RenderableType] = [_draw_table(inbox, now_ms)]
        if inbox.is_open and inbox.current is not None:
            parts.append(_draw_question(inbox.current))
        parts += [Text(escape_line(note), style="dim") for note in inbox.notes]
        head = f"{len(inbox.list_all())} open{f' | {link}' if link else ''}"
        parts += [Text(head, style="dim"), Text(escape_line(inbox.describe_prompt()), style="bold")]
        self._live.update(Group(*parts), refresh=True)

    def close(self) -> None:
        """Leaves the last screen and restores the cursor."""
        self._live.stop()


@dataclass(slots=True)
class InboxLines:
    """Prints a line for each approval that opens or closes."""

    write: Callable[[str], None]
    as_json: bool
    _known: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])

    def show(self, inbox: Inbox, link: str, now_ms: int) -> None:
        """Prints the changes."""
        views = {text_at(view, "actionId"): view for view in inbox.list_all()}
        for action, view in views.items():
            if action not in self._known:
                self._write("open", view, now_ms)
        for action, view in self._known.items():
            if action not in views:
                self._write("closed", view, now_ms)
        self._known = views
        del link

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _write(self, word: str, view: JsonObject, now_ms: int) -> None:
        at = format_ms(now_ms)
        if self.as_json:
            self.write(orjson.dumps({"at": at, "inbox": word, "question": view}).decode())
            return
        cells = (at, word, text_at(view, "actionId"), text_at(view, "risk"), text_at(view, "title"))
        self.write(escape_line("  ".join(cells)))


def _draw_table(inbox: Inbox, now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("", "RISK", "ASKED BY", "LEFT", "TITLE"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for view in inbox.list_all():
        action = text_at(view, "actionId")
        risk = text_at(view, "risk")
        mark = "…" if action in inbox.frozen else ">" if action == inbox.selected else " "
        table.add_row(
            Text(mark),
            Text(risk, style=_COLOURS.get(risk, "")),
            Text(escape_line(text_at(view, "peer") or text_at(view, "askedBy"))),
            Text(_count_down(view, now_ms)),
            Text(escape_line(text_at(view, "title")), style="bold" if mark == ">" else ""),
        )
    return table


def _draw_question(view: JsonObject) -> Panel:
    lines = [escape_text(line.replace("\n", " ")) for line in describe_question(view)]
    return Panel(Text("\n".join(lines)), expand=False)


def _count_down(view: JsonObject, now_ms: int) -> str:
    ends = text_at(view, "expiresAt")
    left_s = max(0, parse_ms(ends) - now_ms) // _SECOND_MS if ends else 0
    if left_s >= _HOUR_S:
        return f"{left_s // _HOUR_S}h{left_s % _HOUR_S // _MINUTE_S:02d}m"
    return f"{left_s // _MINUTE_S}m{left_s % _MINUTE_S:02d}s"
