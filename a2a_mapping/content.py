"""Folds the frames of a task into a Task.

Total: any frame that :mod:`replies` accepted folds, and nothing raises. The previous status message moves into the
history when the next status comes, as in an SDK agent. Artifacts never vanish: a Task frame that lacks a known one
keeps it.
"""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.frames import STATUS_NOTE
from passerelle.a2a_mapping.history import (
    add_to_history,
    continues,
    list_history,
    put_history,
)
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

_NAMES: Final = ("messageId", "role", "taskId", "contextId")
_REMARK: Final = "remark"


@frozen
class Chunk:
    """The text of an artifact frame; without ``appends`` it starts the artifact again."""

    artifact: str
    text: str
    appends: bool


def read_chunk(event: JsonObject) -> Chunk | None:
    """The text of an artifact update; None if it has none."""
    artifact = object_at(event, "artifact")
    text = read_text(artifact)
    if not text:
        return None
    return Chunk(text_at(artifact, "artifactId"), text, event.get("append") is True)


def read_text(artifact: JsonObject | None) -> str:
    """The joined texts of all parts, unchanged."""
    return "".join(text_at(part, "text") for part in objects_at(artifact or {}, "parts"))


def fold(task: JsonObject | None, frame: JsonObject) -> JsonObject | None:
    """The task after ``frame`` (a StreamResponse); None while only Messages came, which make no task."""
    if "task" in frame:
        return _fold_task(task, object_at(frame, "task"))
    if "statusUpdate" in frame:
        return _fold_status(task, object_at(frame, "statusUpdate"))
    if "artifactUpdate" in frame:
        return _fold_artifact(task, object_at(frame, "artifactUpdate"))
    return task


def settle_status(task: JsonObject) -> JsonObject:
    """``task`` as a further message finds it: the status message is moved into the history."""
    history = _move_status_message(task, {})
    return put_history(task, history) if history else task


def find_warning(task: JsonObject | None, frame: JsonObject) -> str | None:
    """A sentence for ``runtime.warning`` if ``frame`` does not fit after ``task``, or None."""
    event = object_at(frame, "artifactUpdate")
    if event.get("append") is not True:
        return None
    name = text_at(object_at(event, "artifact"), "artifactId")
    if find_artifact(task or {}, name) is None:
        return "the agent appended to an artifact that it had not opened; it was opened"
    return None


def find_artifact(task: JsonObject, artifact_id: str) -> JsonObject | None:
    """The artifact with that id, which is unique in the task."""
    return next(
        (
            item
            for item in objects_at(task, "artifacts")
            if text_at(item, "artifactId") == artifact_id
        ),
        None,
    )


def leave_out_artifacts(task: JsonObject) -> JsonObject:
    """A copy without artifacts, for lists without them."""
    return {name: value for name, value in task.items() if name != "artifacts"}


def _fold_task(known: JsonObject | None, task: JsonObject) -> JsonObject:
    if known is None:
        return task
    folded = dict(task)
    if "history" not in task and "history" in known:
        folded["history"] = known["history"]
    given = {text_at(item, "artifactId") for item in objects_at(task, "artifacts")}
    kept = [
        item for item in objects_at(known, "artifacts") if text_at(item, "artifactId") not in given
    ]
    if kept:
        folded["artifacts"] = as_list(kept + objects_at(task, "artifacts"))
    return folded


def _fold_status(known: JsonObject | None, event: JsonObject) -> JsonObject:
    task = dict(known) if known is not None else _open_task(event)
    status = object_at(event, "status")
    history = _move_status_message(task, object_at(status, "message"))
    if history:
        task = put_history(task, history)
    task["status"] = status
    return _merge_metadata(_drop_note(task), event)


def _drop_note(task: JsonObject) -> JsonObject:
    """``task`` without the note that explains its previous status."""
    known = object_at(task, "metadata")
    if STATUS_NOTE not in known:
        return task
    left: JsonObject = {name: value for name, value in known.items() if name != STATUS_NOTE}
    bare: JsonObject = {name: value for name, value in task.items() if name != "metadata"}
    return {**bare, "metadata": left} if left else bare


def _fold_artifact(known: JsonObject | None, event: JsonObject) -> JsonObject:
    task = dict(known) if known is not None else _open_task(event)
    piece = object_at(event, "artifact")
    name = text_at(piece, "artifactId")
    artifacts = objects_at(task, "artifacts")
    place = next(
        (i for i, item in enumerate(artifacts) if text_at(item, "artifactId") == name), None
    )
    if place is None:
        artifacts = [*artifacts, piece]
    elif event.get("append") is True:
        artifacts[place] = _append(artifacts[place], piece)
    else:
        artifacts[place] = piece
    task["artifacts"] = as_list(artifacts)
    # Unlike that of a status, the metadata of the event describes this chunk, not the task.
    return task


def _append(artifact: JsonObject, piece: JsonObject) -> JsonObject:
    # Many parts may exist, and each chunk is processed here.
    known, given = artifact.get("parts"), objects_at(piece, "parts")
    parts: list[Json] = [*known, *given] if isinstance(known, list) else as_list(given)
    return _merge_metadata({**artifact, "parts": parts}, piece)


def _merge_metadata(holder: JsonObject, addition: JsonObject) -> JsonObject:
    metadata = object_at(addition, "metadata")
    return (
        {**holder, "metadata": {**object_at(holder, "metadata"), **metadata}}
        if metadata
        else holder
    )


def _move_status_message(task: JsonObject, following: JsonObject | None) -> list[JsonObject]:
    """The history after the status message has moved into it; one that is repeated, or goes on, stays in the status."""
    history = list_history(task)
    message = object_at(object_at(task, "status"), "message")
    if not message or (following and continues(following, message)):
        return history
    remarks = [part for part in objects_at(message, "parts") if is_remark(part)]
    if remarks:
        # The question before a remark moved into the history when the remark was made.
        kept: JsonObject = {name: message[name] for name in _NAMES if name in message}
        return add_to_history(history, {**kept, "parts": as_list(remarks)})
    # A question in the gateway's form has the agent's own id; if the agent keeps its history, that has the original
    # form.
    has_form = any(PERMISSION in object_at(part, "data") for part in objects_at(message, "parts"))
    if has_form and any(_is_same_question(item, message) for item in history):
        return history
    return add_to_history(history, message)


def make_remark(text: str) -> JsonObject:
    """A remark of the gateway before the question of a waiting task; the next remark replaces it."""
    return {"text": text, "metadata": {PERMISSION: {_REMARK: True}}}


def is_remark(part: JsonObject) -> bool:
    """Whether a part of a status message is such a remark."""
    return object_at(object_at(part, "metadata"), PERMISSION).get(_REMARK) is True


def _is_same_question(known: JsonObject, message: JsonObject) -> bool:
    ids = (text_at(known, "messageId"), text_at(message, "messageId"))
    return text_at(known, "role") == text_at(message, "role") and ids[0] == ids[1] != ""


def _open_task(event: JsonObject) -> JsonObject:
    return {
        "id": text_at(event, "taskId"),
        "contextId": text_at(event, "contextId"),
        "status": {"state": "TASK_STATE_SUBMITTED"},
    }
