"""Draws the page of error codes, from the tables of errors and ``tools/error_codes.yaml``.

Which codes there are, and how each shows at every edge, is read from the code; what a code means, what to look at and
what to do stands in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import yaml

from passerelle.a2a_mapping.errors import KINDS, ROWS, ErrorKind
from passerelle.cli import exit_status
from passerelle.core.errors import list_codes
from passerelle.gateway.http.problem import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.errors import PasserelleError

TABLE: Final = Path(__file__).with_name("error_codes.yaml")
Part: TypeAlias = Literal["answers", "tasks"]
_ANSWERED: Final = "already_resolved"
_INTRODUCTION: Final = """# Error codes

One section per code: meaning, diagnosis, fix. Generated from `tools/error_codes.yaml` and the
tables of errors by `make generate`.

| interface | position of the code |
|---|---|
| HTTP, below `/v1` | `code` of the problem ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) |
| A2A | the `reason` of its `ErrorInfo` is coarser: each section names it |
| metrics | `outcome` of `passerelle_requests_total` |
| a channel | `code` of the frame `error` or `err` |
| the command line | the exit status; `--json` and the message have the details |
| a task, an attempt, a job | `code` of its `error`, in `passerelle tasks show` and `GET /v1/tasks/{id}` |

Every 5xx response of `/v1` has its `request` id: search the log for it. Alerts are in the [runbook](runbook.md).
"""
_TASKS: Final = """# Codes of tasks

These codes are in the `error` of a task, an attempt, a job or a job item. Codes from above occur there too, if such
an error was the cause: `peer_unavailable`, for example.
"""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the table says of one code."""

    code: str
    means: str
    look: tuple[str, ...]
    do: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a code shows: the status over HTTP, the reason over A2A (None where A2A never gives it), the exit status."""

    http: int
    kind: ErrorKind | None
    exit_status: int | None
    retryable: bool


def read_advice(part: Part) -> tuple[Advice, ...]:
    """The rows of a part in order; a row that lacks something is a KeyError that names it."""
    rows = cast("dict[Part, list[dict[str, Any]]]", yaml.safe_load(TABLE.read_text("utf-8")))[part]
    return tuple(
        Advice(row["code"], row["means"], tuple(row["look"]), tuple(row["do"])) for row in rows
    )


def list_answers() -> dict[str, Answer]:
    """Every code that an answer may have, by the classes of errors that there are."""
    found = {code: _find_answer(kind) for kind in STATUSES for code in list_codes(kind)}
    # Its winner is known, so it is a conflict and not gone.
    found[_ANSWERED] = Answer(
        409, found[_ANSWERED].kind, exit_status.ExitStatus.ALREADY_RESOLVED, retryable=False
    )
    # Not one of our classes: the path is there, and has no such method.
    return {**found, "method_not_allowed": Answer(405, None, None, retryable=False)}


def _find_answer(kind: type[PasserelleError]) -> Answer:
    a2a = next(KINDS[one] for one in kind.__mro__ if one in KINDS)
    retryable = kind.retryable
    return Answer(STATUSES[kind], a2a, exit_status.STATUSES[kind], retryable=retryable)


def render_error_codes() -> str:
    """The whole text of ``docs/operate/error-codes.md``."""
    shown, answers, of_tasks = list_answers(), read_advice("answers"), read_advice("tasks")
    lines = [_INTRODUCTION, _list("Answers", answers, ""), _list("Tasks", of_tasks, "task-"), ""]
    for one in answers:
        lines += _describe(one, one.code, _render_answer(shown[one.code]))
    lines.append(_TASKS)
    for one in of_tasks:
        lines += _describe(one, f"task-{one.code}", "")
    return "\n".join(lines)


def _list(title: str, rows: tuple[Advice, ...], prefix: str) -> str:
    links = ", ".join(f"[`{one.code}`](#{prefix}{one.code})" for one in rows)
    return f"**{title}**: {links}.\n"


def _render_answer(answer: Answer) -> str:
    parts = [f"HTTP {answer.http}"]
    if answer.kind is not None:
        parts.append(f"A2A `{answer.kind}` ({ROWS[answer.kind].jsonrpc})")
    if answer.exit_status is not None:
        parts.append(f"exit status {answer.exit_status}")
    parts.append("may succeed later" if answer.retryable else "fails again")
    return f"{'; '.join(parts)}."


def _describe(advice: Advice, heading: str, shows: str) -> Iterator[str]:
    yield from (f"## {heading}", "", advice.means, "")
    if shows:
        yield from (f"*{shows}*", "")
    yield from ("Look at:", "", *(f"- {one}" for one in advice.look), "")
    yield from ("Do:", "", *(f"{place}. {step}" for place, step in enumerate(advice.do, 1)), "")
