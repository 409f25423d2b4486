"""``passerelle tasks``: lists, shows, explains and creates a caller's tasks, and sends them to agents."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.cli.verbs.task_text import (
    describe_change,
    describe_reasons,
    describe_task,
    list_subtree,
    list_tasks,
)
from passerelle.cli.verbs.verb import GatewayLink, PageFlag, add_verb, make_group, name_path
from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

tasks: Final = make_group("Tasks: list, show, create, send, steer.", "tasks list --status running")

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="Id of the task.")]
VersionFlag = Annotated[
    int | None,
    typer.Option(min=1, help="Only if it still has this version, as printed by show."),
]
SessionFlag = Annotated[str | None, typer.Option(help="Id of a session.")]
ContextFlag = Annotated[str | None, typer.Option(help="Id of a context: a conversation.")]
TextArgument = Annotated[
    str, typer.Argument(metavar="TEXT", help="What to say; - reads it from standard input.")
]
_STDIN: Final = "-"


@add_verb(tasks, "tasks list --status running --agent echo", "list")
def list_all(
    link: GatewayLink,
    *,
    status: Annotated[
        list[str] | None, typer.Option(help="Only in this status; may be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    session: SessionFlag = None,
    context: ContextFlag = None,
    since: Annotated[
        str | None, typer.Option(help="Only with a change of status since: 2026-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only with a change of status before.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with this text in the title.")] = None,
    find: Annotated[
        str | None, typer.Option(help="Only with this id (of any kind) or title.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 50,
    page: PageFlag = None,
    all_owners: Annotated[
        bool, typer.Option("--all-owners", help="Tasks of all owners; needs tasks:oversee.")
    ] = False,
) -> None:
    """List tasks, the newest change of status first."""
    answer = link.read(
        "/v1/tasks",
        {
            "status": [*status] if status else None,
            "agent": agent,
            "sessionId": session,
            "contextId": context,
            "since": since,
            "until": until,
            "text": text,
            "q": find,
            "pageSize": limit,
            "pageToken": page,
            "owners": "all" if all_owners else None,
        },
    )
    link.print_answer(answer, list_tasks(answer, with_owners=all_owners, found=find is None))


@add_verb(tasks, "tasks show task_2f…")
def show(link: GatewayLink, task: TaskArgument) -> None:
    """Show a task with its attempts, artifacts and edges."""
    record = link.read(name_path("/v1/tasks", task))
    if link.as_json:
        link.print_answer(record, ())
        return
    link.print_answer(
        record, describe_task(record, link.read(name_path("/v1/tasks", task, "summary")))
    )


@add_verb(tasks, "tasks explain task_2f…")
def explain(link: GatewayLink, task: TaskArgument) -> None:
    """Explain the state of a task.

    The agent and why, policy, limits, blockers, retries, the end: each reason with its fact.
    """
    answer = link.read(name_path("/v1/tasks", task, "explain"))
    link.print_answer(answer, describe_reasons(answer))


@add_verb(tasks, 'tasks create echo "say hello" --title Hello', changes=True)
def create(
    link: GatewayLink,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    objective: TextArgument,
    *,
    title: Annotated[
        str | None, typer.Option(help="Title in lists; default: the beginning of the text.")
    ] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100.")] = 0,
    parent: Annotated[str | None, typer.Option(help="Parent task.")] = None,
    session: SessionFlag = None,
    context: ContextFlag = None,
    draft: Annotated[bool, typer.Option("--draft", help="Create it as a draft.")] = False,
    profile: Annotated[
        str | None, typer.Option(help="Profile for routing by passerelle: a tier, or JSON.")
    ] = None,
) -> None:
    """Create a task for an agent, without starting it; passerelle chooses one."""
    answer = link.post(
        "/v1/tasks",
        {
            "agent": agent,
            "objective": read_text(objective),
            "title": title,
            "priority": priority,
            "parentTaskId": parent,
            "sessionId": session,
            "contextId": context,
            "draft": draft,
            "profile": read_profile(profile),
        },
    )
    print_change(link, answer)


def read_profile(text: str | None) -> JsonObject | None:
    """Reads a profile for routing: a JSON object, or a tier."""
    if text is None or not text.startswith("{"):
        return None if text is None else {"tier": text}
    try:
        return cast("JsonObject", json.loads(text))
    except ValueError as error:
        raise typer.BadParameter(f"is not valid JSON: {error}", param_hint="--profile") from None


@add_verb(tasks, "tasks start task_2f…", changes=True)
def start(
    link: GatewayLink,
    task: TaskArgument,
    text: Annotated[
        str | None,
        typer.Option(help="Text to send instead of the objective; - reads standard input."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Send it to this agent instead of its own.")
    ] = None,
    version: VersionFlag = None,
) -> None:
    """Send a task to its agent."""
    message = None if text is None else read_text(text)
    body: JsonObject = {"text": message, "agent": agent, "version": version}
    print_change(link, link.post(name_path("/v1/tasks", task, "start"), body))


@add_verb(tasks, 'tasks send echo "say hello"', changes=True)
def send(
    link: GatewayLink,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    text: TextArgument,
    task: Annotated[str | None, typer.Option(help="Send it to this task.")] = None,
    context: ContextFlag = None,
    session: SessionFlag = None,
) -> None:
    """Send a message to an agent.

    It opens a new task, or continues one that waits for input (--task).
    """
    answer = link.post(
        "/v1/turns",
        {
            "agent": agent,
            "text": read_text(text),
            "taskId": task,
            "contextId": context,
            "sessionId": session,
        },
    )
    again = "  as before" if answer.get("repeated") else ""
    link.print_answer(answer, [f"{text_at(answer, 'taskId')}  {text_at(answer, 'state')}{again}"])


def read_text(given: str) -> str:
    """Returns the text of an argument, or of standard input.

    Raises:
        InvalidInput: standard input is not UTF-8.
    """
    if given != _STDIN:
        return given
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise InvalidInput("standard input", "is not UTF-8") from None


def print_change(link: GatewayLink, answer: JsonObject) -> None:
    """Prints the result of a command on a task."""
    link.print_answer(
        answer, [describe_change(object_at(answer, "task"), answer), *list_subtree(answer)]
    )
