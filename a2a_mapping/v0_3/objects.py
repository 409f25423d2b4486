"""Messages, parts, tasks, artifacts and events of A2A 0.3, to and from those of 1.0.

0.3 has text, file and data parts; a part of 1.0 has one content member.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from passerelle.a2a_mapping.enums import read_role, read_state
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.states import INPUT_REQUIRED, TERMINAL_STATES, WORKING
from passerelle.a2a_mapping.v0_3.forms import (
    Form,
    drop_empty,
    map_object,
    map_objects,
    rename,
    write_role,
    write_state,
)
from passerelle.core.wire.json import Json, JsonObject

_WRAPPED: Final = "data_part_compat"
"""Marks data that is not an object: 0.3 has objects only, so a value becomes ``{"value": …}`` (as in a2a-sdk)."""
_FILE_NAMES: Final = {
    "file_with_bytes": "fileWithBytes",
    "file_with_uri": "fileWithUri",
    "mime_type": "mimeType",
}
_CONTENT: Final = {"fileWithBytes": "raw", "bytes": "raw", "fileWithUri": "url", "uri": "url"}
_LABELS: Final = {"mimeType": "mediaType", "name": "filename"}
_FILE: Final = {
    Form.KIND: {"raw": "bytes", "url": "uri"},
    Form.PROTO: {"raw": "fileWithBytes", "url": "fileWithUri"},
}


def read_part(part: JsonObject, form: Form) -> JsonObject:
    """A 1.0 part; one without ``kind`` is read in ``form``."""
    read = rename(part, {})
    file = part.get("file")
    if isinstance(file, dict):
        del read["file"]
        return _read_file(rename(file, _FILE_NAMES)) | read
    if "data" not in part:
        return read
    data = part["data"]
    if form is Form.PROTO and "kind" not in part and isinstance(data, dict):
        data = data.get("data")
    metadata = object_at(part, "metadata")
    if metadata.get(_WRAPPED) is True and isinstance(data, dict):
        data = data.get("value")
        metadata = {name: value for name, value in metadata.items() if name != _WRAPPED}
        read = {name: value for name, value in read.items() if name != "metadata"}
        read |= {"metadata": metadata} if metadata else {}
    return {**read, "data": data}


def write_part(part: JsonObject, form: Form) -> JsonObject:
    """A part of 0.3."""
    rest: JsonObject = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if "data" in part:
        return _write_data(part["data"], rest, form)
    for member in ("raw", "url"):
        content = part.get(member)
        if content is not None:
            kind: JsonObject = {"kind": "file"} if form is Form.KIND else {}
            return {**kind, "file": _write_file(part, member, form), **rest}
    text = part.get("text", "")
    return {"kind": "text", "text": text, **rest} if form is Form.KIND else {"text": text, **rest}


def _read_file(file: JsonObject) -> JsonObject:
    contents = [(wire, file[name]) for name, wire in _CONTENT.items() if name in file]
    # ProtoJSON of some writers also has the other member, empty.
    contents.sort(key=lambda content: not content[1])
    read: JsonObject = dict(contents[:1])
    for name, wire in _LABELS.items():
        if file.get(name):
            read[wire] = file[name]
    return read


def _write_file(part: JsonObject, member: str, form: Form) -> JsonObject:
    file: JsonObject = {_FILE[form][member]: part[member]}
    for name, wire in _LABELS.items():
        if part.get(wire):
            file[name] = part[wire]
    return file


def _write_data(data: Json, rest: JsonObject, form: Form) -> JsonObject:
    if not isinstance(data, dict):
        data = {"value": data}
        rest = {"metadata": {**object_at(rest, "metadata"), _WRAPPED: True}}
    if form is Form.KIND:
        return {"kind": "data", "data": data, **rest}
    return {"data": {"data": data}, **rest}


_MESSAGE_NAMES: Final = {
    "message_id": "messageId",
    "context_id": "contextId",
    "task_id": "taskId",
    "reference_task_ids": "referenceTaskIds",
    "content": "parts",
}
_ARTIFACT_NAMES: Final = {"artifact_id": "artifactId"}
_IDS: Final = {"context_id": "contextId", "task_id": "taskId"}
_EVENT_NAMES: Final = {**_IDS, "last_chunk": "lastChunk"}
_CODER: Final = "coderAgent"
"""The metadata of gemini-cli in its updates."""
_ENDS: Final = TERMINAL_STATES | {INPUT_REQUIRED}
"""States that end a turn in 0.3: its streams close there, with ``final`` on the last event."""


def read_message(message: JsonObject, form: Form) -> JsonObject:
    """A 1.0 Message; malformed values stay, so that the reader of 1.0 names them."""
    read = rename(message, _MESSAGE_NAMES)
    if "role" in read:
        read["role"] = read_role(read["role"])
    if "parts" in read:
        read["parts"] = map_objects(read["parts"], partial(read_part, form=form))
    return read


def write_message(message: JsonObject, form: Form) -> JsonObject:
    """A Message of 0.3."""
    written = dict(message)
    parts = map_objects(written.pop("parts", []), partial(write_part, form=form))
    if "role" in written:
        written["role"] = write_role(written["role"], form)
    drop_empty(written, "contextId", "taskId", "referenceTaskIds", "extensions", "metadata")
    if form is Form.PROTO:
        written.pop("referenceTaskIds", None)  # its protobuf has none
        return {**written, "content": parts}
    return {"kind": "message", **written, "parts": parts}


def read_artifact(artifact: JsonObject, form: Form) -> JsonObject:
    """A 1.0 Artifact."""
    read = rename(artifact, _ARTIFACT_NAMES)
    if "parts" in read:
        read["parts"] = map_objects(read["parts"], partial(read_part, form=form))
    return read


def write_artifact(artifact: JsonObject, form: Form) -> JsonObject:
    """An Artifact of 0.3."""
    written = dict(artifact)
    written["parts"] = map_objects(written.get("parts", []), partial(write_part, form=form))
    return drop_empty(written, "name", "description", "extensions", "metadata")


def read_status(status: JsonObject, form: Form) -> JsonObject:
    """A 1.0 TaskStatus."""
    read = rename(status, {"update": "message"})
    if "state" in read:
        read["state"] = read_state(read["state"])
    if "message" in read:
        read["message"] = map_object(read["message"], partial(read_message, form=form))
    return read


def write_status(status: JsonObject, form: Form) -> JsonObject:
    """A TaskStatus of 0.3."""
    written = dict(status)
    written["state"] = write_state(written.get("state"), form)
    if "message" in written:
        written["message"] = map_object(written["message"], partial(write_message, form=form))
    return written


def read_task(task: JsonObject, form: Form) -> JsonObject:
    """A 1.0 Task."""
    read = rename(task, _IDS)
    if "status" in read:
        read["status"] = map_object(read["status"], partial(read_status, form=form))
    if "history" in read:
        read["history"] = map_objects(read["history"], partial(read_message, form=form))
    if "artifacts" in read:
        read["artifacts"] = map_objects(read["artifacts"], partial(read_artifact, form=form))
    return read


def write_task(task: JsonObject, form: Form) -> JsonObject:
    """A Task of 0.3."""
    written: JsonObject = {"kind": "task", **task} if form is Form.KIND else dict(task)
    written["status"] = map_object(task.get("status", {}), partial(write_status, form=form))
    for name, write in (("history", write_message), ("artifacts", write_artifact)):
        if name in written:
            written[name] = map_objects(written[name], partial(write, form=form))
    return drop_empty(written, "history", "artifacts", "metadata")


def read_status_event(event: JsonObject, form: Form) -> JsonObject:
    """A 1.0 TaskStatusUpdateEvent; ``final`` is redundant with the state, except in updates of gemini-cli.

    Its agent keeps INPUT_REQUIRED while it works on the answer, and before the request is complete.
    """
    read = rename(event, _EVENT_NAMES)
    is_final = read.pop("final", None)
    if "status" in read:
        read["status"] = map_object(read["status"], partial(read_status, form=form))
    status = object_at(read, "status")
    is_coder = _CODER in object_at(read, "metadata")
    if is_coder and is_final is False and status.get("state") == INPUT_REQUIRED:
        read["status"] = {**status, "state": WORKING}
    return read


def write_status_event(event: JsonObject, form: Form) -> JsonObject:
    """A TaskStatusUpdateEvent of 0.3."""
    written: JsonObject = {"kind": "status-update", **event} if form is Form.KIND else dict(event)
    status = event.get("status")
    written["status"] = map_object(status, partial(write_status, form=form))
    written["final"] = ends_turn(status)
    return drop_empty(written, "metadata")


def read_artifact_event(event: JsonObject, form: Form) -> JsonObject:
    """A 1.0 TaskArtifactUpdateEvent."""
    read = rename(event, _EVENT_NAMES)
    if "artifact" in read:
        read["artifact"] = map_object(read["artifact"], partial(read_artifact, form=form))
    return read


def write_artifact_event(event: JsonObject, form: Form) -> JsonObject:
    """A TaskArtifactUpdateEvent of 0.3."""
    written: JsonObject = {"kind": "artifact-update", **event} if form is Form.KIND else dict(event)
    written["artifact"] = map_object(event.get("artifact"), partial(write_artifact, form=form))
    return drop_empty(written, "metadata")


def ends_turn(status: Json) -> bool:
    """Whether a 1.0 TaskStatus ends a turn of 0.3."""
    return isinstance(status, dict) and status.get("state") in _ENDS
