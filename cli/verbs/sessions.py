"""``passerelle sessions``: a caller's conversations with their threads and names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.tasks import VersionFlag
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.wire.json import Json, JsonObject

sessions: Final = make_group(
    "Sessions: list, show, open, rename, interrupt, rollback, compact, history.", "sessions list"
)

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")]
LabelFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="NAME=TEXT", help="May be repeated; an empty text removes the label."
    ),
]


@add_verb(sessions, "sessions list", "list")
def list_all(
    link: GatewayLink,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Highest number of rows.")] = 50,
    page: PageFlag = None,
) -> None:
    """List sessions, the newest activity first."""
    answer = link.read("/v1/sessions", {"pageSize": limit, "pageToken": page})
    link.print_list(answer, "sessions", _COLUMNS)


@add_verb(sessions, "sessions show se_2f… --limit 20")
def show(
    link: GatewayLink,
    session: SessionArgument,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of events.")] = 200,
    before: Annotated[
        int | None, typer.Option(min=1, help="Only events before this sequence.")
    ] = None,
) -> None:
    """Show a session: threads, open work and the newest events."""
    path = name_path("/v1/sessions", session)
    answer = link.read(path, {"limit": limit, "before": before})
    link.print_answer(answer, _describe(answer))


@add_verb(sessions, 'sessions open "Boats in the harbour" --label team=north', "open", changes=True)
def open_one(
    link: GatewayLink,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="The title.")],
    label: LabelFlag = None,
) -> None:
    """Open a session with a title; contexts are added by its id."""
    _print_change(link, link.post("/v1/sessions", {"title": title, "labels": _read_labels(label)}))


@add_verb(sessions, 'sessions rename se_2f… "Boats at sea"', changes=True)
def rename(
    link: GatewayLink,
    session: SessionArgument,
    title: Annotated[str | None, typer.Argument(metavar="TITLE", help="Its new name.")] = None,
    label: LabelFlag = None,
    version: VersionFlag = None,
) -> None:
    """Change title or labels of a session; omitted ones are not changed."""
    labels = _read_labels(label)
    if title is None and not labels:
        raise typer.BadParameter("give a TITLE or a --label", param_hint="'TITLE'")
    body: dict[str, Json] = {"title": title, "labels": labels, "version": version}
    _print_change(link, link.patch(name_path("/v1/sessions", session), body))


@add_verb(sessions, "sessions interrupt se_2f… --reason 'no longer needed'", changes=True)
def interrupt(
    link: GatewayLink,
    session: SessionArgument,
    thread: Annotated[str | None, typer.Option(help="Only in this thread.")] = None,
    turn: Annotated[str | None, typer.Option(help="Only this turn.")] = None,
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Stop the running work of a session."""
    answer = link.post(
        name_path("/v1/sessions", session, "interrupt"),
        {"threadId": thread, "turnId": turn, "reason": reason},
    )
    result = texts_at(answer, "tasks")
    link.print_answer(answer, [f"{text_at(answer, 'outcome')}  {', '.join(result)}".rstrip()])


@add_verb(sessions, "sessions rollback th_2f… --to turn_2f…", changes=True)
def rollback(
    link: GatewayLink,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Id of the thread.")],
    to: Annotated[str, typer.Option(metavar="TURN", help="The last turn to keep.")],
    reason: Annotated[str | None, typer.Option(help="Reason.")] = None,
) -> None:
    """Return a thread to the end of a turn; later turns stay readable."""
    answer = link.post(
        name_path("/v1/threads", thread, "rollback"), {"toTurn": to, "reason": reason}
    )
    link.print_answer(answer, _describe_rollback(answer))


def _describe_rollback(answer: JsonObject) -> Iterator[str]:
    boundary = [text_at(answer, "boundaryId")] if answer.get("boundaryId") else []
    yield "  ".join([text_at(answer, "outcome"), *boundary, *name_repeat(answer)])
    for task in texts_at(answer, "tasks"):
        yield f"left behind: {task}"
    for agent in texts_at(answer, "renewed"):
        yield f"new context at its next turn: {agent}"


@add_verb(sessions, "sessions history th_2f… --json > history.jsonl")
def history(
    link: GatewayLink,
    thread: Annotated[
        str,
        typer.Argument(metavar="THREAD", help="Id of the thread, or of a session that has one."),
    ],
) -> None:
    """Show a conversation: messages, replies, questions and notices.

    With --json, each message is one line with its own id, so that the output can be stored and extended.
    """
    link.refuse_forms()
    if thread.startswith("se_"):
        thread = _find_thread(link, thread)
    for message in link.read_lines(name_path("/v1/streams", f"messages:{thread}", "events")):
        if link.as_json:
            print(json.dumps(message))
            continue
        cells = (text_at(message, "createdAt"), text_at(message, "role"))
        link.print_answer(message, ["  ".join([*cells, flatten(text_at(message, "text"), 400)])])


def _find_thread(link: GatewayLink, session: str) -> str:
    """Returns the only thread of a session. Raises BadParameter: it has several, or none."""
    answer = link.read(name_path("/v1/sessions", session))
    threads = [text_at(one, "threadId") for one in objects_at(answer, "threads")]
    if len(threads) == 1:
        return threads[0]
    why = f"name one of its threads: {', '.join(threads)}" if threads else "it has no thread yet"
    raise typer.BadParameter(why, param_hint=session)


@add_verb(sessions, "sessions compact th_2f… --to turn_2f… 'Two boats'", changes=True)
def compact(
    link: GatewayLink,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Id of the thread.")],
    to: Annotated[str, typer.Option(metavar="TURN", help="The last turn of the summary.")],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The summary.")] = None,
    task: Annotated[str | None, typer.Option(help="Task with the summary as an artifact.")] = None,
    artifact: Annotated[str | None, typer.Option(help="Id of that artifact.")] = None,
) -> None:
    """Add a summary of a thread up to a turn; nothing is deleted."""
    if (task is None) != (artifact is None):
        raise typer.BadParameter("must be given together", param_hint="'--task' and '--artifact'")
    source: JsonObject | None = None if task is None else {"taskId": task, "artifactId": artifact}
    answer = link.post(
        name_path("/v1/threads", thread, "compact"),
        {"toTurn": to, "text": text, "artifact": source},
    )
    link.print_answer(answer, _describe_boundary(answer))


def _describe_boundary(answer: JsonObject) -> Iterator[str]:
    span = f"events {answer.get('first')} to {answer.get('covers')}"
    yield "  ".join([text_at(answer, "boundaryId"), span, *name_repeat(answer)])
    for one in texts_at(answer, "stillOpen"):
        yield f"still open: {one}"
    for one in texts_at(answer, "missing"):
        yield f"missing: {one}"


def _read_labels(given: list[str] | None) -> JsonObject | None:
    if not given:
        return None
    labels: JsonObject = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=TEXT", param_hint="'--label'")
        labels[name] = text
    return labels


def _print_change(link: GatewayLink, answer: JsonObject) -> None:
    session = object_at(answer, "session")
    cells = [text_at(session, "sessionId"), f"version {answer.get('version')}"]
    link.print_answer(
        answer, ["  ".join([*cells, *name_repeat(answer), text_at(session, "title")])]
    )


def _describe(session: JsonObject) -> Iterator[str]:
    history = object_at(session, "history")
    yield from format_fields(
        [
            ("session", text_at(session, "sessionId")),
            ("title", text_at(session, "title")),
            ("labels", _name_labels(session)),
            ("created", text_at(session, "createdAt")),
            ("open tasks", ", ".join(texts_at(session, "openTasks"))),
            ("asks", ", ".join(texts_at(session, "openActions"))),
        ]
    )
    threads = objects_at(session, "threads")
    if threads:
        yield ""
    yield from format_rows(
        threads,
        {
            "THREAD": "threadId",
            "CONTEXT": "contextId",
            "STATUS": "status",
            "TURNS": "turns",
            "UPDATED": "updatedAt",
        },
    )
    yield ""
    yield f"events {history.get('first')} to {history.get('last')}"
    for item in objects_at(history, "items"):
        named = (text_at(item, name) for name in ("at", "role", "kind"))
        yield "  ".join([str(item["sequence"]), *named, flatten(text_at(item, "text"), 80)])
    if history.get("before"):
        yield f"more: --before {history['before']}"


def _name_labels(session: JsonObject) -> str:
    labels = object_at(session, "labels")
    return ", ".join(f"{name}={text}" for name, text in labels.items())


_COLUMNS: Final[Mapping[str, TableColumn]] = {
    "SESSION": "sessionId",
    "ACTIVE": "activeAt",
    "TASKS": "tasks",
    "THREADS": "threadCount",
    "TITLE": name_title,
    "LABELS": _name_labels,
}
