"""``passerelle jobs``: runs one task for each of many inputs, or for each of many agents, and lists the results."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at, whole_at
from passerelle.cli.verbs.verb import (
    GatewayLink,
    PageFlag,
    TableColumn,
    add_verb,
    flatten,
    format_fields,
    format_rows,
    make_group,
    name_path,
    name_repeat,
    name_title,
    print_now,
)
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.display import escape_text, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from passerelle.core.wire.json import Json, JsonObject

jobs: Final = make_group("Jobs: submit, list, show, results, watch, cancel, retry.", "jobs list")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
_PATH: Final = "/v1/jobs"
_OVER: Final = frozenset({"completed", "failed", "cancelled"})
_RUNNING: Final = "running"
_STATES: Final = ("waiting", _RUNNING, "completed", "failed", "cancelled")


@add_verb(
    jobs, "jobs submit 'Translate' translator --inputs lines.txt --concurrency 10", changes=True
)
def submit(  # noqa: PLR0917  the flags of a verb
    link: GatewayLink,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="The title.")],
    agents: Annotated[
        list[str],
        typer.Argument(metavar="AGENT...", help="Names of agents; several agents share one text."),
    ],
    text: Annotated[
        list[str] | None, typer.Option("--text", help="An input; may be repeated.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="An input for each line that is not empty; - is stdin."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Items that run at once.")] = 8,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each item.")] = 1,
    most_failed: Annotated[int, typer.Option(min=0, help="The job fails if more items fail.")] = 0,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Equal inputs make one item.")
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Report the progress of items, at a higher cost.")
    ] = False,
    parent: Annotated[str | None, typer.Option(metavar="TASK", help="Parent task.")] = None,
) -> None:
    """Start a task for each of many inputs, or for each of many agents."""
    given: list[Json] = [*(text or ()), *_read_lines(inputs)]
    if not given and inputs is not None:
        raise InvalidInput("--inputs", f"{inputs} has no line that is not empty")
    if not given:
        raise typer.BadParameter("give a --text or --inputs", param_hint="'--text'")
    body: dict[str, Json] = {
        "title": title,
        "agents": [*agents],
        "inputs": given,
        "concurrency": concurrency,
        "attempts": attempts,
        "mostFailed": most_failed,
        "distinct": distinct,
        "progress": progress,
        "parentTaskId": parent,
    }
    _print_change(link, link.post(_PATH, body))


def _read_lines(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except OSError as error:
        raise InvalidInput("--inputs", f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput("--inputs", f"{path} is not UTF-8 at byte {error.start}") from None
    return [line for line in text.splitlines() if line.strip()]


@add_verb(jobs, "jobs list", "list")
def list_all(
    link: GatewayLink,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 50,
    page: PageFlag = None,
) -> None:
    """List jobs, the newest first."""
    answer = link.read(_PATH, {"pageSize": limit, "pageToken": page})
    link.print_list(answer, "jobs", _COLUMNS)


@add_verb(jobs, "jobs show se_2f…")
def show(link: GatewayLink, job: JobArgument) -> None:
    """Show a job and its progress."""
    answer = link.read(name_path(_PATH, job))
    link.print_answer(answer, describe_job(answer))


@add_verb(jobs, "jobs results se_2f… --state failed")
def results(
    link: GatewayLink,
    job: JobArgument,
    state: Annotated[
        Literal["waiting", "running", "completed", "failed", "cancelled"] | None,
        typer.Option(help="Only items in this state."),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only items after this one.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Highest number of rows.")] = 50,
) -> None:
    """Show the items of a job: state, attempts, task and result."""
    path = name_path(_PATH, job, "results")
    answer = link.read(path, {"state": state, "after": after, "limit": limit})
    link.print_answer(answer, describe_results(answer))


@add_verb(jobs, "jobs watch se_2f…")
def watch(
    link: GatewayLink,
    job: JobArgument,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which the gateway may be unavailable.")
    ] = 60.0,
) -> None:
    """Watch a job: a bar in a terminal, otherwise a line for each change.

    It exits with status 0 if the job completed, with 1 if it ended otherwise. It reconnects when the gateway restarts.
    """
    link.refuse_forms()
    from passerelle.cli.watch.job_stream import follow_job

    status = ""
    with _open_board(link) as show_change:
        for answer in follow_job(link.read, name_path(_PATH, job), patience):
            show_change(answer)
            status = text_at(answer, "status")
            if status in _OVER:
                break
    raise typer.Exit(0 if status == "completed" else 1)


def _open_board(link: GatewayLink) -> AbstractContextManager[Callable[[JsonObject], None]]:
    if link.as_json or not sys.stdout.isatty():
        result: list[JsonObject] = []

        def show_change(answer: JsonObject) -> None:
            if not result or result[-1] != answer:
                result[:] = [answer]
                parts = [_name_counts(answer), *map(_describe_wait, objects_at(answer, "waits"))]
                line = json.dumps(answer) if link.as_json else escape_text("  ".join(parts))
                print_now(line)

        return nullcontext(show_change)
    from passerelle.cli.watch.job_bar import JobBar

    return JobBar()


@add_verb(jobs, "jobs cancel se_2f… --reason 'no longer needed'", changes=True)
def cancel(
    link: GatewayLink,
    job: JobArgument,
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Cancel a job: stop running items and start no others; ended ones are kept."""
    _print_change(link, link.post(name_path(_PATH, job, "cancel"), {"reason": reason}))


@add_verb(jobs, "jobs retry se_2f… --item 3", changes=True)
def retry(
    link: GatewayLink,
    job: JobArgument,
    item: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Only this item; may be repeated. Default: all failed ones."),
    ] = None,
) -> None:
    """Retry failed and cancelled items of a job."""
    given: list[Json] = [*(item or ())]
    _print_change(link, link.post(name_path(_PATH, job, "retry"), {"items": given}))


def _print_change(link: GatewayLink, answer: JsonObject) -> None:
    job = object_at(answer, "job")
    link.print_answer(
        answer, ["  ".join([text_at(job, "jobId"), _name_counts(job), *name_repeat(answer)])]
    )


def _name_counts(job: JsonObject) -> str:
    counts = object_at(job, "counts")
    cells = [f"{name} {counts[name]}" for name in _STATES if counts.get(name)]
    return "  ".join([text_at(job, "status"), *cells])


_COLUMNS: Final[Mapping[str, TableColumn]] = {
    "JOB": "jobId",
    "STATUS": "status",
    "ITEMS": "items",
    "DONE": lambda one: str(object_at(one, "counts").get("completed", 0)),
    "FAILED": lambda one: str(object_at(one, "counts").get("failed", 0)),
    "CREATED": "createdAt",
    "TITLE": name_title,
}


def describe_job(job: JsonObject) -> Iterator[str]:
    """Formats a job: its counts, and what its items wait for."""
    counts = object_at(job, "counts")
    yield from format_fields(
        [
            ("job", text_at(job, "jobId")),
            ("title", text_at(job, "title")),
            ("status", text_at(job, "status")),
            ("items", str(job.get("items", ""))),
            *((name, str(counts.get(name) or "")) for name in _STATES),
            *(("waits", _describe_wait(one)) for one in objects_at(job, "waits")),
            ("at once", str(job.get("concurrency", ""))),
            ("attempts", str(job.get("attempts", ""))),
            ("agents", flatten(", ".join(texts_at(job, "agents")), 200)),
            ("parent", text_at(job, "parentTaskId")),
            ("created", text_at(job, "createdAt")),
            ("updated", text_at(job, "updatedAt")),
        ]
    )


def _describe_wait(wait: JsonObject) -> str:
    items, until = format_count(whole_at(wait, "items") or 0, "item"), text_at(wait, "until")
    reason = flatten(text_at(wait, "reason"), 100) or text_at(wait, "kind")
    return f"{items}: {reason}{f', until {until}' if until else ''}"


def describe_results(answer: JsonObject) -> Iterator[str]:
    """Formats a table of items; an item that is blocked has the status of its task in the result column."""
    yield from format_rows(
        objects_at(answer, "items"),
        {
            "ITEM": "item",
            "STATE": "state",
            "TRIES": "attempts",
            "AGENT": "agent",
            "TASK": "taskId",
            "RESULT": lambda one: flatten(
                text_at(one, "result")
                or text_at(object_at(one, "error"), "message")
                or _name_wait(one)
            ),
        },
    )
    if answer.get("nextAfter") is not None:
        yield f"more: --after {answer['nextAfter']}"


def _name_wait(item: JsonObject) -> str:
    status = text_at(item, "taskStatus")
    return f"({status})" if text_at(item, "state") == _RUNNING and status != _RUNNING else ""
