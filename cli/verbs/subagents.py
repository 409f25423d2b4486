"""``passerelle subagents``: spawns, steers and closes the contexts that agents have for tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import (
    GatewayLink,
    PageFlag,
    TableColumn,
    add_verb,
    flatten,
    format_fields,
    make_group,
    name_next,
    name_path,
    name_repeat,
)
from passerelle.core.errors import InvalidInput
from passerelle.runtime.common.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.wire.json import Json, JsonObject

subagents: Final = make_group(
    "Subagents: list, show, events, spawn, send, wait, resume, close.",
    "subagents list --task task_2f…",
)

SubagentArgument = Annotated[str, typer.Argument(metavar="SUBAGENT", help="Id of the subagent.")]
_PATH: Final = "/v1/subagents"
_LONGEST_WAIT_MS: Final = 25_000


@add_verb(subagents, "subagents list --task task_2f…", "list")
def list_all(
    link: GatewayLink,
    task: Annotated[str | None, typer.Option(help="Those of a task.")] = None,
    thread: Annotated[str | None, typer.Option(help="Those of a thread.")] = None,
    session: Annotated[str | None, typer.Option(help="Those of a session.")] = None,
) -> None:
    """List the subagents of a task, a thread or a session."""
    scope: dict[str, Json] = {"taskId": task, "threadId": thread, "sessionId": session}
    if sum(given is not None for given in scope.values()) != 1:
        raise typer.BadParameter("give one of --task, --thread, --session", param_hint="'--task'")
    answer = link.read(_PATH, scope)
    link.print_list(answer, "subagents", _COLUMNS)


@add_verb(subagents, "subagents show sub_2f…~1~echo")
def show(link: GatewayLink, subagent: SubagentArgument) -> None:
    """Show a subagent, its parent, and its tasks."""
    answer = link.read(name_path(_PATH, subagent))
    link.print_answer(answer, _describe(answer))


@add_verb(subagents, "subagents events sub_2f…~1~echo")
def events(
    link: GatewayLink,
    subagent: SubagentArgument,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 100,
    page: PageFlag = None,
) -> None:
    """Show the events of a subagent in order."""
    query: dict[str, Json] = {"pageSize": limit, "pageToken": page}
    answer = link.read(name_path(_PATH, subagent, "events"), query)
    link.print_answer(answer, _describe_events(answer))


@add_verb(subagents, "subagents spawn echo 'Look it up' --parent task_2f…", changes=True)
def spawn(
    link: GatewayLink,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    parent: Annotated[str | None, typer.Option(help="Its parent task.")] = None,
    session: Annotated[str | None, typer.Option(help="Its session.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of its task.")] = None,
) -> None:
    """Start work at an agent in a separate context."""
    body: dict[str, Json] = {
        "agent": agent,
        "text": text,
        "title": title,
        "parentTaskId": parent,
        "sessionId": session,
    }
    _print_change(link, link.post(_PATH, body))


@add_verb(subagents, "subagents send sub_2f…~1~echo 'And once more'", changes=True)
def send(
    link: GatewayLink,
    subagent: SubagentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
) -> None:
    """Send a further message to a subagent."""
    _print_change(link, link.post(name_path(_PATH, subagent, "input"), {"text": text}))


@add_verb(subagents, "subagents wait sub_2f…~1~echo sub_2f…~1~report --timeout 5m")
def wait(
    link: GatewayLink,
    names: Annotated[list[str], typer.Argument(metavar="SUBAGENT...", help="Ids of subagents.")],
    mode: Annotated[
        Literal["any", "all"], typer.Option(help="Wait for one of them, or for all.")
    ] = "all",
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest wait: 90s, 15m.")
    ] = "10m",
) -> None:
    """Wait until subagents have no work in progress.

    It exits with status 0 if they are idle, with 1 if the timeout is reached first.
    """
    try:
        until_s = time.monotonic() + parse_duration(timeout).seconds
    except ValueError as error:
        raise InvalidInput("--timeout", str(error)) from None
    while True:
        left_ms = max(0, int(1000 * (until_s - time.monotonic())))
        query: dict[str, Json] = {
            "subagentIds": [*names],
            "mode": mode,
            "timeoutMs": min(left_ms, _LONGEST_WAIT_MS),
        }
        answer = link.read(f"{_PATH}:wait", query)
        if answer.get("timedOut") is not True or not left_ms:
            break
    link.print_answer(answer, _describe_wait(answer))
    raise typer.Exit(1 if answer.get("timedOut") is True else 0)


@add_verb(subagents, "subagents resume sub_2f…~1~echo", changes=True)
def resume(
    link: GatewayLink,
    subagent: SubagentArgument,
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Continue a subagent after an interruption."""
    _print_change(link, link.post(name_path(_PATH, subagent, "resume"), {"reason": reason}))


@add_verb(subagents, "subagents close sub_2f…~1~echo", changes=True)
def close(
    link: GatewayLink,
    subagent: SubagentArgument,
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Stop a subagent, and close its context."""
    _print_change(link, link.post(name_path(_PATH, subagent, "close"), {"reason": reason}))


def _print_change(link: GatewayLink, answer: JsonObject) -> None:
    subagent = object_at(answer, "subagent")
    cells = [text_at(subagent, "subagentId"), text_at(answer, "outcome"), text_at(answer, "taskId")]
    link.print_answer(answer, ["  ".join([one for one in (*cells, *name_repeat(answer)) if one])])


_COLUMNS: Final[Mapping[str, TableColumn]] = {
    "SUBAGENT": "subagentId",
    "STATE": "state",
    "AGENT": "peer",
    "TASKS": lambda one: str(len(texts_at(one, "tasks"))),
    "OPENED": "openedAt",
    "PARENT": "parent.taskId",
}


def _describe(subagent: JsonObject) -> Iterator[str]:
    parent = object_at(subagent, "parent")
    yield from format_fields(
        [
            ("subagent", text_at(subagent, "subagentId")),
            ("agent", text_at(subagent, "peer")),
            ("state", text_at(subagent, "state")),
            ("last run", text_at(subagent, "status")),
            ("recoverability", text_at(subagent, "recoverability")),
            ("context", text_at(subagent, "contextId")),
            ("context at the agent", text_at(subagent, "remoteContextId")),
            ("parent task", text_at(parent, "taskId")),
            ("parent turn", text_at(parent, "turnId")),
            ("parent thread", text_at(parent, "threadId")),
            ("parent session", text_at(parent, "sessionId")),
            ("opened", text_at(subagent, "openedAt")),
            ("closed", text_at(subagent, "closedAt")),
            ("tasks", " ".join(texts_at(subagent, "tasks"))),
            ("open tasks", " ".join(texts_at(subagent, "openTasks"))),
        ]
    )


def _describe_events(answer: JsonObject) -> Iterator[str]:
    for event in objects_at(answer, "events"):
        payload = object_at(event, "payload")
        error = text_at(object_at(payload, "error"), "message")
        text = error or next(
            (text for name in ("preview", "summary", "text") if (text := text_at(payload, name))),
            "",
        )
        parts = [
            *(str(event.get("sequence")), text_at(event, "timestamp"), text_at(event, "type")),
            *(text_at(payload, "status") or text_at(payload, "nativeStatus"), flatten(text)),
        ]
        yield "  ".join(part for part in parts if part)
    yield from name_next(text_at(answer, "nextPageToken"))


def _describe_wait(answer: JsonObject) -> Iterator[str]:
    for one in objects_at(answer, "subagents"):
        yield f"{text_at(one, 'subagentId')}  {text_at(one, 'state')}"
    if answer.get("timedOut") is True:
        yield "timed out"
