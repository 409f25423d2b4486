"""GetTask and ListTasks of the scripted peer."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

from passerelle.core.wire.json import Json, JsonObject
from tests.support.scripted_tasks import RemoteTask


class QueryError(Exception):
    """A refused call: a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def show_task(task: RemoteTask, history_length: Json = None) -> JsonObject:
    """The record with at most that many messages of history; 0 leaves the history out."""
    shown = deepcopy(task.record)
    if isinstance(history_length, int):
        history = cast("list[Json]", shown.pop("history", []))
        if history_length > 0 and history:
            shown["history"] = history[-history_length:]
    return shown


def list_tasks(tasks: list[RemoteTask], params: JsonObject) -> JsonObject:
    """One page, newest status first; a page token is the number of tasks before the page."""
    chosen = [task for task in tasks if _matches(task, params)]
    chosen.sort(key=_status_time, reverse=True)
    start = int(str(params.get("pageToken") or "0"))
    size = int(str(params.get("pageSize") or "50"))
    page = chosen[start : start + size]
    shown: list[Json] = []
    for task in page:
        record = show_task(task, params.get("historyLength"))
        if params.get("includeArtifacts") is not True:
            record.pop("artifacts", None)
        shown.append(record)
    more = start + size < len(chosen)
    return {
        "tasks": shown,
        "totalSize": len(chosen),
        "pageSize": size,
        "nextPageToken": str(start + size) if more else "",
    }


def _matches(task: RemoteTask, params: JsonObject) -> bool:
    status = cast("JsonObject", task.record["status"])
    return params.get("contextId") in (None, "", task.context_id) and params.get("status") in (
        None,
        "",
        status["state"],
    )


def _status_time(task: RemoteTask) -> str:
    return str(cast("JsonObject", task.record["status"])["timestamp"])
