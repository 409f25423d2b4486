"""Formats tasks: a table, one task with its attempts, and the explanation of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at, whole_at
from passerelle.cli.verbs.verb import (
    TableColumn,
    flatten,
    format_fields,
    format_rows,
    name_next,
    name_title,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

_TOPICS: Final = ("agent", "policy", "limits", "waiting", "messages", "retries", "end")


def list_tasks(
    answer: JsonObject, *, with_owners: bool = False, found: bool = True
) -> Iterator[str]:
    """Formats one line per task, the token of the next page, and whether the list may be outdated.

    ``found`` False: the list is a search; an empty result is stated.
    """
    tasks = objects_at(answer, "tasks")
    if not (tasks or found or text_at(answer, "nextPageToken")):
        yield "no task of yours has this id or title"
    owner: dict[str, TableColumn] = {"OWNER": "owner"} if with_owners else {}
    columns: dict[str, TableColumn] = {
        "TASK": "taskId",
        "STATUS": "status",
        **owner,
        "AGENT": lambda task: text_at(task, "assignee") or text_at(task, "agent"),
        "SINCE": "statusAt",
        "PROGRESS": lambda task: describe_progress(object_at(task, "progress")),
        "TITLE": name_title,
    }
    yield from format_rows(tasks, columns)
    yield f"tasks: {len(tasks)}"
    yield from name_next(text_at(answer, "nextPageToken"))
    doubt = object_at(object_at(answer, "marks"), "tasks")
    if doubt:
        yield f"{text_at(doubt, 'state')}: {text_at(doubt, 'reason')}"


def describe_progress(progress: JsonObject) -> str:
    """Formats progress: percentage, phase and step, as far as known."""
    percent = whole_at(progress, "percent")
    parts = (
        "" if percent is None else f"{percent}%",
        text_at(progress, "phase"),
        flatten(text_at(progress, "step"), 30),
    )
    return " ".join(filter(None, parts))


def describe_task(record: JsonObject, summary: JsonObject) -> Iterator[str]:
    """Formats a record; ``summary`` has the current status, and a mark if it may be outdated."""
    error, back = object_at(record, "lastError"), text_at(record, "rolledBack")
    yield from format_fields(
        [
            ("task", text_at(summary, "taskId")),
            ("title", flatten(text_at(record, "title"), 100)),
            ("status", f"{text_at(summary, 'status')} since {text_at(record, 'statusAt')}"),
            ("left", f"behind by rollback {back}" if back else ""),
            ("doubt", _describe_doubt(summary)),
            ("reason", text_at(record, "statusReason")),
            ("error", f"{text_at(error, 'code')}: {text_at(error, 'message')}" if error else ""),
            ("agent", text_at(record, "assignee") or text_at(record, "kind")),
            *(("routing", sentence) for sentence in texts_at(record, "routing")),
            ("progress", describe_progress(object_at(record, "progress"))),
            ("summary", flatten(text_at(object_at(record, "progress"), "summary"), 100)),
            *(("waits", describe_blocker(one)) for one in objects_at(record, "blockers")),
            ("session", text_at(record, "sessionId")),
            ("context", text_at(object_at(record, "scope"), "contextId")),
            ("parent", text_at(record, "parentTaskId")),
            ("spent", describe_spending(object_at(record, "spending"))),
            ("created", text_at(record, "createdAt")),
            ("ended", text_at(record, "endedAt")),
            ("version", str(record.get("version", ""))),
        ]
    )
    yield from _list_attempts(objects_at(record, "attempts"))
    yield from _list_artifacts(objects_at(record, "artifacts"))
    yield from _list_edges(objects_at(record, "relationships"))


def describe_blocker(blocker: JsonObject) -> str:
    """Formats what a task waits for: the kind, the id that resolves it, the reason, and the deadline or rule."""
    until, rules = text_at(blocker, "until"), texts_at(blocker, "rules")
    parts = (
        flatten(text_at(blocker, "reason"), 100),
        f"until {until}" if until else "",
        f"rule {', '.join(rules)}" if rules else "",
    )
    what = f"{text_at(blocker, 'kind')} {text_at(blocker, 'target')}"
    return ": ".join(filter(None, (what, "; ".join(filter(None, parts)))))


def describe_spending(spending: JsonObject) -> str:
    """Formats the cost of a task, and of its subtree if there is one; empty if there is none."""
    own, tree = object_at(spending, "own"), object_at(spending, "tree")
    below = (whole_at(tree, "tasks") or 0) - 1
    if not tree:
        return ""
    parts = _describe_sums(own) or "nothing"
    if below < 1:
        return parts
    least = "at least " if spending.get("partial") else ""
    return f"{parts}; with {least}{below} below: {_describe_sums(tree)}"


def _describe_sums(sums: JsonObject) -> str:
    words = [
        f"{(whole_at(one, 'amountMicros') or 0) / 1_000_000:.6f}".rstrip("0").rstrip(".")
        + f" {text_at(one, 'currency')}"
        for one in objects_at(sums, "costs")
    ]
    read, written = whole_at(sums, "inputTokens"), whole_at(sums, "outputTokens")
    if read or written:
        words.append(f"{read or 0} + {written or 0} tokens")
    return ", ".join(words)


def describe_change(task: JsonObject, answer: JsonObject) -> str:
    """Formats the result of a command in one line."""
    parts = [text_at(task, "taskId"), text_at(task, "status"), f"version {answer.get('version')}"]
    return "  ".join([*parts, "as before"] if answer.get("repeated") else parts)


def list_subtree(answer: JsonObject) -> Iterator[str]:
    """Formats how many tasks of a subtree changed, and those that did not; nothing for a single task."""
    subtree = object_at(answer, "subtree")
    if not subtree:
        return
    more = "" if subtree.get("done") else ", the rest follows"
    yield f"tasks: {subtree.get('changed')}{more}"
    for one in objects_at(subtree, "unchanged"):
        yield f"{text_at(one, 'taskId')}  {text_at(one, 'code')}: {text_at(one, 'message')}"


def describe_reasons(explanation: JsonObject) -> Iterator[str]:
    """Formats the reasons by topic, each with its fact; an empty topic is stated."""
    marks = object_at(explanation, "marks")
    yield f"{text_at(explanation, 'taskId')}  {text_at(explanation, 'status')}"
    for blocker in objects_at(object_at(explanation, "blocked"), "blockers"):
        yield f"{'blocked'.ljust(9)}{describe_blocker(blocker)}"
    for topic in _TOPICS:
        reasons = objects_at(explanation, topic)
        for reason in reasons:
            fact = object_at(reason, "fact")
            cited = f"{text_at(fact, 'type')}, event {fact.get('sequence')}"
            yield f"{topic.ljust(9)}{text_at(reason, 'code')}: {text_at(reason, 'text')} ({cited})"
        if not reasons:
            yield f"{topic.ljust(9)}{_format_mark(object_at(marks, topic))}"


def _format_mark(mark: JsonObject) -> str:
    return f"{text_at(mark, 'state') or 'none'}: {text_at(mark, 'reason')}".rstrip(": ")


def _describe_doubt(summary: JsonObject) -> str:
    mark = object_at(object_at(summary, "marks"), "status")
    return f"{_format_mark(mark)}; recorded is {text_at(summary, 'recorded')}" if mark else ""


def _list_attempts(attempts: list[JsonObject]) -> Iterator[str]:
    if attempts:
        yield ""
    yield from format_rows(
        attempts,
        {
            "ATTEMPT": "ordinal",
            "STATUS": "status",
            "AGENT": "worker.peer",
            "STARTED": "startedAt",
            "ENDED": "endedAt",
            "TASK AT AGENT": "remoteTaskId",
            "ERROR": "lastError.code",
        },
    )


def _list_artifacts(artifacts: list[JsonObject]) -> Iterator[str]:
    if artifacts:
        yield ""
    yield from format_rows(
        artifacts,
        {
            "ARTIFACT": "artifactId",
            "VERSION": "version",
            "BYTES": "size",
            "NAME": "name",
            "TYPES": lambda artifact: ", ".join(texts_at(artifact, "mediaTypes")),
        },
    )


def _list_edges(edges: list[JsonObject]) -> Iterator[str]:
    if edges:
        yield ""
    columns = {"EDGE": "kind", "TARGET": "target", "STATUS": "status"}
    yield from format_rows(
        edges, {**columns, "REASON": lambda edge: flatten(text_at(edge, "reason"))}
    )
