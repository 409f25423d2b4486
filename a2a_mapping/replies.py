"""Answers of an agent, checked for their shape before they are used.

A reply that is not A2A is a value here, not an exception: in a stream it is a warning and the stream goes on, as the
answer to a call it becomes ``InvalidAgentResponse``. Only what the gateway needs is checked; unknown fields pass.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import value


@value
class TaskReply:
    """A whole Task."""

    task: JsonObject

    @property
    def native_status(self) -> str:
        """The peer's raw state (A2A-7)."""
        return _read_state(self.task)


@value
class MessageReply:
    """A Message: the whole answer if there was no task before, else a remark on it (LT-9)."""

    message: JsonObject


@value
class StatusReply:
    """A change of status."""

    event: JsonObject

    @property
    def native_status(self) -> str:
        """The peer's raw state (A2A-7)."""
        return _read_state(self.event)


@value
class ArtifactReply:
    """An artifact, or a further piece of one."""

    event: JsonObject


@frozen
class MalformedReply:
    """Not A2A; ``reason`` names the field and contains no text of the agent."""

    reason: str


ParsedReply: TypeAlias = TaskReply | MessageReply | StatusReply | ArtifactReply | MalformedReply

_MEMBERS: Final = ("task", "message", "statusUpdate", "artifactUpdate")
_UPDATES: Final = ("statusUpdate", "artifactUpdate")
_NOT_ONE: Final = f"the response must have exactly one of {', '.join(_MEMBERS)}"


def read_reply(value: Json) -> ParsedReply:
    """A SendMessageResponse or StreamResponse: an object with exactly one of four members."""
    if not isinstance(value, dict):
        return MalformedReply("the response is not an object")
    given, member = "", None
    for name, said in value.items():
        if said is None or name not in _MEMBERS:
            continue
        if given:
            return MalformedReply(_NOT_ONE)
        given, member = name, said
    if not given:
        return MalformedReply(_NOT_ONE)
    if not isinstance(member, dict):
        return MalformedReply(f"{given} is not an object")
    match given:
        case "task":
            return read_task_reply(member)
        case "message":
            reason = _judge_message(member)
            return MessageReply(member) if reason is None else MalformedReply(reason)
        case "statusUpdate":
            reason = _judge_status_update(member)
            return StatusReply(member) if reason is None else MalformedReply(reason)
        case _:
            reason = _judge_artifact_update(member)
            return ArtifactReply(member) if reason is None else MalformedReply(reason)


def read_task_reply(value: Json) -> TaskReply | MalformedReply:
    """A bare Task, as GetTask and CancelTask answer."""
    if not isinstance(value, dict):
        return MalformedReply("the task is not an object")
    if not text_at(value, "id"):
        return MalformedReply("task.id is missing")
    if not _read_state(value):
        return MalformedReply("task.status.state is missing")
    for name in ("artifacts", "history"):
        items = value.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            return MalformedReply(f"task.{name} is not a list of objects")
        for item in items:
            if not isinstance(item, dict):
                return MalformedReply(f"task.{name} is not a list of objects")
    return TaskReply(value)


def _read_state(shown: JsonObject) -> str:
    status = shown.get("status")
    state = status.get("state") if isinstance(status, dict) else None
    return state if isinstance(state, str) else ""


def name_task(response: JsonObject, task_id: str) -> JsonObject:
    """The response; an update without a task id is one of ``task_id``, whose stream it came in."""
    for member in _UPDATES:
        update = response.get(member)
        if isinstance(update, dict) and not update.get("taskId"):
            return {**response, member: {**update, "taskId": task_id}}
    return response


def read_native_ids(reply: TaskReply | StatusReply | ArtifactReply) -> tuple[str, str]:
    """The peer's own task id and context id (``""`` when it gave none; A2A-3, A2A-4)."""
    if isinstance(reply, TaskReply):
        return text_at(reply.task, "id"), text_at(reply.task, "contextId")
    return text_at(reply.event, "taskId"), text_at(reply.event, "contextId")


def _judge_message(message: JsonObject) -> str | None:
    # One without an id passes with its content, as an artifact does.
    if not text_at(message, "messageId") and not message.get("parts"):
        return "message.messageId is missing"
    if not isinstance(message.get("parts", []), list):
        return "message.parts is not a list"
    return None


def _judge_status_update(event: JsonObject) -> str | None:
    if not text_at(event, "taskId"):
        return "statusUpdate.taskId is missing"
    if not _read_state(event):
        return "statusUpdate.status.state is missing"
    return None


def _judge_artifact_update(event: JsonObject) -> str | None:
    if not text_at(event, "taskId"):
        return "artifactUpdate.taskId is missing"
    artifact = object_at(event, "artifact")
    # One without an id passes with its content, as it does in a Task: agents leave the id out that have one artifact.
    if not text_at(artifact, "artifactId") and not artifact.get("parts"):
        return "artifactUpdate.artifact.artifactId is missing"
    if not isinstance(artifact.get("parts", []), list):
        return "artifactUpdate.artifact.parts is not a list"
    return None


_TASK_IDS: Final = (
    ("task", "id"),
    ("statusUpdate", "taskId"),
    ("artifactUpdate", "taskId"),
    ("message", "taskId"),
)


def read_task_id(body: JsonObject) -> str | None:
    """The task that an answer or a push notification of an agent names; everything else of the latter is read from it.

    From a StreamResponse of 1.0, or from a Task, an update or a Message of 0.3.
    """
    for member, name in _TASK_IDS:
        if member in body:
            return text_at(object_at(body, member), name) or None
    named = "id" if body.get("kind", "task") == "task" else "taskId"
    return text_at(body, named) or None
