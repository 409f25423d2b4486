"""Draws the state machines: every status, every command, and where each may lead, from the tables in ``core``."""

from __future__ import annotations

import inspect
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from passerelle.core.approval import machine as approval
from passerelle.core.session import machine as session
from passerelle.core.session import thread
from passerelle.core.task import machine as task
from passerelle.core.task.status import ENDED, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

S = TypeVar("S", bound=str)

_MANY: Final = 6
"""A command with at least this many sources is drawn as one arrow from ``live``, to keep the diagram readable."""
_LIVE: Final = "live"
_INTRODUCTION: Final = """# State machines

Generated from the tables in `core/` by `make generate`. There is one machine per kind of record: task, thread,
session and question (an *action*; a permission is an action whose options allow or reject). A command without a row
for the current status is refused with a typed error and changes nothing. Only commands change a status: timers, lost
connections and restarts do not.
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """Statuses from which one command leads to the same targets; None stands for "no record yet"."""

    command: type[Any]
    sources: tuple[str | None, ...]
    targets: tuple[str, ...]


def render_state_machine() -> str:
    """The whole text of ``docs/reference/state-machine.md``."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_render("Task", task, task.TABLE, _LIVE),
            "Which commands each status takes:",
            "",
            *_render_statuses(),
            *_render("Thread", thread, thread.TABLE),
            *_render("Session", session, session.TABLE),
            "## Question",
            "",
            *_quote(approval),
            "The first command opens the question and the next four close it. The last four carry the answer back.",
            "",
            approval.render_table().rstrip(),
            "",
        ]
    )


def _render(
    title: str,
    module: ModuleType,
    table: Mapping[type[Any], Mapping[S | None, frozenset[S]]],
    many: str | None = None,
) -> Iterator[str]:
    rows = [row for command, targets in table.items() for row in _group(command, targets)]
    yield from (f"## {title}", "", *_quote(module), "```mermaid", "stateDiagram-v2")
    if many is not None:
        yield f'    state "most statuses that have not ended" as {many}'
    yield from _draw_arrows(rows, many)
    yield from ("```", "", "| command | what it does | from | to |", "|---|---|---|---|")
    yield from (_render_row(row) for row in rows)
    yield ""


def _render_row(row: _Row) -> str:
    meaning = (inspect.getdoc(row.command) or "").split("\n", 1)[0].replace("``", "`")
    sources = ", ".join(source or "none yet" for source in row.sources)
    return (
        f"| {row.command.__name__} | {meaning} | {sources} | {', '.join(row.targets) or 'stays'} |"
    )


def _group(command: type[Any], table: Mapping[S | None, frozenset[S]]) -> Iterator[_Row]:
    sources: defaultdict[tuple[str, ...], list[S | None]] = defaultdict(list)
    for source, targets in table.items():
        sources[_sort(targets)].append(source)
    for together, found in sources.items():
        known = _sort(source for source in found if source is not None)
        yield _Row(command, known or (None,), together)


def _draw_arrows(rows: Iterable[_Row], many: str | None) -> Iterator[str]:
    labels: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        crowded = many is not None and len(row.sources) >= _MANY
        starts = (many,) if crowded else row.sources
        for start in starts:
            for target in row.targets:
                if start != target or len(row.targets) == 1 == len(starts):
                    labels[start or "[*]", target].append(row.command.__name__)
    for (start, target), names in labels.items():
        yield f"    {start} --> {target} : {', '.join(dict.fromkeys(names))}"


def _render_statuses() -> Iterator[str]:
    yield from ("| status | commands |", "|---|---|")
    for status in Status:
        taken = [command.__name__ for command, rows in task.TABLE.items() if status in rows]
        ended = " (has ended)" if status in ENDED else ""
        yield f"| {status}{ended} | {', '.join(taken) or 'none'} |"
    yield ""


def _quote(module: ModuleType) -> Iterator[str]:
    """What the module says about its machine."""
    yield (inspect.getdoc(module) or "").replace("``", "`")
    yield ""


def _sort(statuses: Iterable[str]) -> tuple[str, ...]:
    """In the order in which the statuses are declared, so that the same table gives the same text."""
    known = [str(status) for status in Status]
    names = sorted(str(status) for status in statuses)
    return tuple(sorted(names, key=lambda name: known.index(name) if name in known else len(known)))
