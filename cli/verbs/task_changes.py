"""The verbs of ``passerelle tasks`` that change an existing task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import text_at
from passerelle.cli.verbs.tasks import TaskArgument, VersionFlag, print_change
from passerelle.cli.verbs.verb import GatewayLink, add_verb, name_path
from passerelle.core.errors import CallerError, NotFound

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json

changes: Final = typer.Typer()

ReasonFlag = Annotated[str | None, typer.Option(help="Reason, recorded with the change.")]
SubtreeFlag = Annotated[bool, typer.Option("--subtree", help="Also apply it to the tasks below.")]
KindArgument = Annotated[
    str,
    typer.Argument(metavar="KIND", help="parent, child, blocks, blocked_by, source_task, …"),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="Id of the other task, artifact or thread.")
]


@add_verb(changes, "tasks pause task_2f… --subtree", changes=True)
def pause(
    link: GatewayLink,
    task: TaskArgument,
    reason: ReasonFlag = None,
    subtree: SubtreeFlag = False,
    version: VersionFlag = None,
) -> None:
    """Pause a task: nothing more is sent for it.

    Its run is kept; output of its agent is recorded when the task is resumed.
    """
    reach = _name_reach(subtree=subtree)
    _change(link, task, "pause", reason=reason, propagation=reach, version=version)


@add_verb(changes, "tasks resume task_2f… --subtree", changes=True)
def resume(
    link: GatewayLink,
    task: TaskArgument,
    reason: ReasonFlag = None,
    subtree: SubtreeFlag = False,
    version: VersionFlag = None,
) -> None:
    """Resume a task that is paused, blocked or lost; below it, what is paused."""
    reach = _name_reach(subtree=subtree)
    _change(link, task, "resume", reason=reason, propagation=reach, version=version)


@add_verb(changes, "tasks give task_2f… bob", changes=True)
def give(
    link: GatewayLink,
    task: TaskArgument,
    owner: Annotated[
        str, typer.Argument(metavar="OWNER", help="A client, `owner`, or <issuer>:<subject>.")
    ],
    version: VersionFlag = None,
) -> None:
    """Transfer a task to another owner, who is then its only owner.

    Refused for a task that has ended, has a pending approval, or has other tasks that depend on it.
    """
    body: dict[str, Json] = {"owner": owner, "version": version}
    answer = link.post(name_path("/v1/tasks", task, "give"), body)
    again = " (unchanged)" if answer.get("repeated") else ""
    link.print_answer(answer, [f"{task}  is {text_at(answer, 'owner')}'s{again}"])


@add_verb(changes, "tasks cancel task_2f… --subtree", changes=True)
def cancel(
    link: GatewayLink,
    task: TaskArgument,
    reason: ReasonFlag = None,
    subtree: Annotated[
        bool, typer.Option("--subtree", help="Also cancel its child tasks.")
    ] = False,
    here_only: Annotated[
        bool, typer.Option("--here-only", help="End the task only here; its agent is not notified.")
    ] = False,
) -> None:
    """Stop a task.

    The request is stored at once, then sent to the agent; the task is cancelled when the agent has confirmed.
    """
    if subtree and here_only:
        raise CallerError("--subtree and --here-only cannot be combined")
    propagation = "subtree" if subtree else "none" if here_only else "active_run"
    body: dict[str, Json] = {"reason": reason, "propagation": propagation}
    answer = link.post(name_path("/v1/tasks", task, "cancel"), body)
    outcome = text_at(answer, "outcome")
    if outcome == "not_found":
        raise NotFound("task", task)
    link.print_answer(answer, [f"{task}  {outcome}"])


@add_verb(changes, "tasks update task_2f… --title Boats --priority 5", changes=True)
def update(
    link: GatewayLink,
    task: TaskArgument,
    title: Annotated[str | None, typer.Option(help="Title in lists.")] = None,
    objective: Annotated[str | None, typer.Option(help="The objective.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100.")] = None,
    assignee: Annotated[str | None, typer.Option(help="Agent that it is assigned to.")] = None,
    version: VersionFlag = None,
) -> None:
    """Change the description of a task.

    Omitted members are not changed. A task that has ended cannot be changed.
    """
    body: dict[str, Json] = {
        "title": title,
        "objective": objective,
        "priority": priority,
        "assignee": assignee,
        "version": version,
    }
    print_change(link, link.patch(name_path("/v1/tasks", task), body))


@add_verb(changes, 'tasks progress task_2f… --percent 40 --step "2 of 5"', changes=True)
def progress(
    link: GatewayLink,
    task: TaskArgument,
    percent: Annotated[
        int | None, typer.Option(min=0, max=100, help="Progress in percent.")
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(help="planning, working, waiting, verifying, delivering, or your own."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="The current step.")] = None,
    summary: Annotated[str | None, typer.Option(help="Work done so far.")] = None,
    version: VersionFlag = None,
) -> None:
    """Set the progress of a task; omitted members are not changed."""
    _change(
        link,
        task,
        "progress",
        percent=percent,
        phase=phase,
        step=step,
        summary=summary,
        version=version,
    )


@add_verb(changes, "tasks complete task_2f…", changes=True)
def complete(
    link: GatewayLink,
    task: TaskArgument,
    summary: Annotated[str | None, typer.Option(help="The result.")] = None,
    version: VersionFlag = None,
) -> None:
    """Complete a task, if nothing is missing.

    Requires that the agent has ended, its artifacts are stored, and the delivery is recorded; lists what is missing.
    """
    _change(link, task, "complete", summary=summary, version=version)


@add_verb(changes, "tasks fail task_2f… --code no_budget --reason 'too dear'", changes=True)
def fail(
    link: GatewayLink,
    task: TaskArgument,
    code: Annotated[
        str | None, typer.Option(help="Error code for programs, such as no_budget.")
    ] = None,
    reason: ReasonFlag = None,
    version: VersionFlag = None,
) -> None:
    """End a task with an error."""
    _change(link, task, "fail", code=code, reason=reason, version=version)


@add_verb(changes, "tasks retry task_2f… 'the index is back'", changes=True)
def retry(
    link: GatewayLink,
    task: TaskArgument,
    reason: Annotated[str, typer.Argument(help="Why; it is kept with the attempt.")],
    agent: Annotated[str | None, typer.Option(help="Use another agent.")] = None,
    subtree: SubtreeFlag = False,
    version: VersionFlag = None,
) -> None:
    """Retry a task that has ended or is lost.

    Callers who have seen the task end see it continue under another id, in the same context. With --subtree, tasks
    below that have not completed are retried too.
    """
    reach = _name_reach(subtree=subtree)
    _change(link, task, "retry", reason=reason, agent=agent, propagation=reach, version=version)


@add_verb(changes, "tasks link task_2f… blocks task_31…", "link", changes=True)
def link_to(
    link: GatewayLink,
    task: TaskArgument,
    kind: KindArgument,
    target: TargetArgument,
    reason: ReasonFlag = None,
) -> None:
    """Create an edge from a task.

    The target is another task, or an object with an id: an artifact, a thread.
    """
    _change(link, task, "link", kind=kind, target=target, reason=reason)


@add_verb(changes, "tasks unlink task_2f… blocks task_31…", changes=True)
def unlink(
    link: GatewayLink,
    task: TaskArgument,
    kind: KindArgument,
    target: TargetArgument,
    reason: ReasonFlag = None,
) -> None:
    """Mark an edge as removed.

    It stays in the record, with the cause of the removal.
    """
    _change(link, task, "unlink", kind=kind, target=target, reason=reason)


def _name_reach(*, subtree: bool) -> Json:
    """Returns None for the gateway's default: the task alone."""
    return "subtree" if subtree else None


def _change(link: GatewayLink, task: str, act: str, **members: Json) -> None:
    print_change(link, link.post(name_path("/v1/tasks", task, act), members))
