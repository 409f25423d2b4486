"""Frames for callers: a StreamResponse with facade ids (A2A 1.0 section 3.2.3).

The schema is closed, so a note of the gateway, such as the reason of a status, goes into ``metadata`` under its own URN
only.
"""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.members import as_list, object_at
from passerelle.core.wire.json import Json, JsonObject

STATUS_NOTE: Final = "urn:passerelle:status"
ROLE_AGENT: Final = "ROLE_AGENT"


def task_frame(task: JsonObject) -> JsonObject:
    """A frame with a whole Task."""
    return {"task": task}


def status_frame(
    task_id: str, context_id: str, status: JsonObject, metadata: JsonObject | None = None
) -> JsonObject:
    """A frame with a status."""
    event: JsonObject = {"taskId": task_id, "contextId": context_id, "status": status}
    if metadata:
        event["metadata"] = metadata
    return {"statusUpdate": event}


def artifact_frame(
    task_id: str, context_id: str, artifact: JsonObject, *, append: bool = False, last: bool = True
) -> JsonObject:
    """A frame with an artifact, or with parts to append to one."""
    event: JsonObject = {
        "taskId": task_id,
        "contextId": context_id,
        "artifact": artifact,
        "append": append,
        "lastChunk": last,
    }
    return {"artifactUpdate": event}


def remark_frame(task_id: str, context_id: str, message: JsonObject, state: str) -> JsonObject:
    """An agent's Message after its Task, as a status message of that task in its last state (LT-9)."""
    placed: JsonObject = {**message, "taskId": task_id, "contextId": context_id}
    return status_frame(task_id, context_id, {"state": state, "message": placed})


def make_status(state: str, timestamp: str, message: JsonObject | None = None) -> JsonObject:
    """A TaskStatus; ``timestamp`` is RFC 3339 with ``Z``."""
    status: JsonObject = {"state": state, "timestamp": timestamp}
    if message is not None:
        status["message"] = message
    return status


def make_message(
    message_id: str,
    task_id: str,
    context_id: str,
    parts: list[Json],
    metadata: JsonObject | None = None,
) -> JsonObject:
    """A Message of the gateway on a task."""
    message: JsonObject = {
        "messageId": message_id,
        "role": ROLE_AGENT,
        "taskId": task_id,
        "contextId": context_id,
        "parts": parts,
    }
    if metadata:
        message["metadata"] = metadata
    return message


def note_status(reason: str, **facts: str) -> JsonObject:
    """Metadata for a status that its state does not explain, such as a wait for a resource."""
    note: JsonObject = {"reason": reason, **facts}
    return {STATUS_NOTE: note}


def show_state(frame: JsonObject, state: str) -> JsonObject:
    """A copy of a task or status frame with ``state`` instead of the agent's."""
    for name in ("task", "statusUpdate"):
        if name in frame:
            holder = object_at(frame, name)
            status: JsonObject = {**object_at(holder, "status"), "state": state}
            return {name: {**holder, "status": status}}
    return frame


def render_page(
    tasks: list[JsonObject], page_size: int, total: int, next_token: str = ""
) -> JsonObject:
    """A ListTasks response: all four members are always present, also on an empty page."""
    return {
        "tasks": as_list(tasks),
        "nextPageToken": next_token,
        "pageSize": page_size,
        "totalSize": total,
    }
