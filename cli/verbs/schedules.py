"""``passerelle schedules``: messages that are sent to agents at regular times, and their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
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
)
from passerelle.core.errors import InvalidInput
from passerelle.runtime.common.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.wire.json import Json, JsonObject

schedules: Final = make_group(
    "Schedules: create, list, show, history, pause, resume, run, delete.", "schedules list"
)

ScheduleArgument = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Id of the schedule.")]
_PATH: Final = "/v1/schedules"


@add_verb(
    schedules,
    "schedules create 'Morning report' reporter 'Report the sales' --cron '0 9 * * MON-FRI' "
    "--timezone Europe/Paris",
    changes=True,
)
def create(  # noqa: PLR0917  the flags of a verb
    link: GatewayLink,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="The title.")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    cron: Annotated[
        str | None, typer.Option(help="Minute, hour, day, month, day of the week.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Instead of --cron: 90s, 15m, 1h30m.")
    ] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron.")] = "UTC",
    missed: Annotated[
        Literal["skip", "once", "all"],
        typer.Option(help="Missed ticks: start no run, one run, or one for each."),
    ] = "once",
    overlap: Annotated[
        Literal["skip", "wait", "replace", "allow"],
        typer.Option(help="A tick during a run: drop it, queue it, replace the run, or run both."),
    ] = "skip",
    jitter: Annotated[
        str, typer.Option(metavar="DURATION", help="Random delay of each tick, up to this.")
    ] = "0s",
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How late a tick may be before it counts as missed."),
    ] = "60s",
) -> None:
    """Send a message to an agent at regular times."""
    if (cron is None) == (every is None):
        raise typer.BadParameter("give exactly one of --cron and --every", param_hint="'--cron'")
    body: dict[str, Json] = {
        "title": title,
        "agent": agent,
        "text": text,
        "cron": cron,
        "everyS": None if every is None else _read_seconds("every", every),
        "timezone": timezone,
        "missed": missed,
        "overlap": overlap,
        "jitterS": _read_seconds("jitter", jitter),
        "graceS": _read_seconds("grace", grace),
    }
    _print_change(link, link.post(_PATH, body))


def _read_seconds(flag: str, text: str) -> int:
    try:
        ms = parse_duration(text).ms
    except ValueError as error:
        raise InvalidInput(f"--{flag}", str(error)) from None
    if ms % 1000:
        raise InvalidInput(f"--{flag}", "must be a whole number of seconds")
    return ms // 1000


@add_verb(schedules, "schedules list", "list")
def list_all(
    link: GatewayLink,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 50,
    page: PageFlag = None,
) -> None:
    """List schedules, the newest first."""
    answer = link.read(_PATH, {"pageSize": limit, "pageToken": page})
    link.print_list(answer, "schedules", _COLUMNS)


@add_verb(schedules, "schedules show se_2f…")
def show(link: GatewayLink, schedule: ScheduleArgument) -> None:
    """Show a schedule, its next tick, and its newest runs."""
    answer = link.read(name_path(_PATH, schedule))
    link.print_answer(answer, _describe(answer))


@add_verb(schedules, "schedules history se_2f… --after 120")
def history(
    link: GatewayLink,
    schedule: ScheduleArgument,
    after: Annotated[int, typer.Option(min=0, help="Only steps after this sequence.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 100,
) -> None:
    """Show the steps of a schedule in order: ticks, runs, pauses."""
    answer = link.read(name_path(_PATH, schedule, "history"), {"after": after, "limit": limit})
    link.print_answer(answer, _describe_history(answer))


@add_verb(schedules, "schedules pause se_2f…", changes=True)
def pause(link: GatewayLink, schedule: ScheduleArgument) -> None:
    """Pause a schedule: no new runs; active runs continue."""
    _print_change(link, link.post(name_path(_PATH, schedule, "pause")))


@add_verb(schedules, "schedules resume se_2f…", changes=True)
def resume(link: GatewayLink, schedule: ScheduleArgument) -> None:
    """Resume a schedule from its next tick on."""
    _print_change(link, link.post(name_path(_PATH, schedule, "resume")))


@add_verb(schedules, "schedules run se_2f…", changes=True)
def run(link: GatewayLink, schedule: ScheduleArgument) -> None:
    """Start a run of a schedule now."""
    _print_change(link, link.post(name_path(_PATH, schedule, "run")))


@add_verb(schedules, "schedules delete se_2f…", changes=True)
def delete(link: GatewayLink, schedule: ScheduleArgument) -> None:
    """Delete a schedule; active runs continue, and the history is kept."""
    _print_change(link, link.delete(name_path(_PATH, schedule)))


def _print_change(link: GatewayLink, answer: JsonObject) -> None:
    schedule = object_at(answer, "schedule")
    cells = [text_at(schedule, "scheduleId"), text_at(schedule, "status")]
    next_at = text_at(schedule, "nextAt")
    link.print_answer(
        answer,
        ["  ".join([*cells, *([f"next {next_at}"] if next_at else []), *name_repeat(answer)])],
    )


def _name_times(schedule: JsonObject) -> str:
    if schedule.get("everyS") is not None:
        return f"every {schedule['everyS']} s"
    return f"{text_at(schedule, 'cron')} {text_at(schedule, 'timezone')}"


_COLUMNS: Final[Mapping[str, TableColumn]] = {
    "SCHEDULE": "scheduleId",
    "STATUS": "status",
    "AGENT": "agent",
    "WHEN": _name_times,
    "NEXT": "nextAt",
    "RUNS": "runs",
    "TITLE": name_title,
}


def _describe(schedule: JsonObject) -> Iterator[str]:
    yield from format_fields(
        [
            ("schedule", text_at(schedule, "scheduleId")),
            ("title", text_at(schedule, "title")),
            ("status", text_at(schedule, "status")),
            ("agent", text_at(schedule, "agent")),
            ("when", _name_times(schedule)),
            ("next", text_at(schedule, "nextAt")),
            ("waits", text_at(schedule, "waitsFor")),
            ("jitter", f"up to {schedule.get('jitterS')} s" if schedule.get("jitterS") else ""),
            ("missed", f"{text_at(schedule, 'missed')}, after {schedule.get('graceS')} s"),
            ("overlap", text_at(schedule, "overlap")),
            ("runs", str(schedule.get("runs", ""))),
            ("ticks missed", str(schedule.get("missedTicks", ""))),
            ("ticks skipped", str(schedule.get("skippedTicks", ""))),
        ]
    )
    runs = [*objects_at(schedule, "waiting"), *objects_at(schedule, "recent")]
    if runs:
        yield ""
    yield from format_rows(
        runs,
        {
            "RUN": "number",
            "TICK": "tickAt",
            "WHY": "cause",
            "STATUS": _name_status,
            "TASK": "taskId",
        },
    )


def _name_status(run: JsonObject) -> str:
    error = text_at(object_at(run, "error"), "message")
    return flatten(error) if error else text_at(run, "status") or "waits"


def _describe_history(answer: JsonObject) -> Iterator[str]:
    for step in objects_at(answer, "steps"):
        change = object_at(step, "change")
        counts = [f"{name} {change[name]}" for name in ("missed", "skipped") if change.get(name)]
        runs = [f"run {one.get('number')}" for one in objects_at(change, "runs")]
        tasks = [text_at(one, "taskId") for one in objects_at(change, "runs") if one.get("taskId")]
        cells = [str(step.get("sequence")), text_at(step, "at"), text_at(change, "step")]
        yield "  ".join([*cells, *runs, *tasks, *counts])
    if answer.get("nextAfter") is not None:
        yield f"more: --after {answer['nextAfter']}"
