"""The difference between a fresh Task of an agent and the known one, as frames (A2A-6).

After every new connection to an agent its Task is compared with the known state of the run. Only the differences become
events, so a caller that stayed connected sees nothing twice. Compared are the status by state, time and message id,
artifacts by id and content, and the agent's messages in the history. Both Tasks are in the same id space: relabel
first.
"""

from __future__ import annotations

from passerelle.a2a_mapping.content import find_artifact
from passerelle.a2a_mapping.extensions import PERMISSION, STATE
from passerelle.a2a_mapping.frames import ROLE_AGENT, artifact_frame, status_frame, task_frame
from passerelle.a2a_mapping.history import is_in, list_history, same_message, sort
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.a2a_mapping.states import WORKING
from passerelle.core.wire.json import JsonObject


def list_differences(known: JsonObject | None, fresh: JsonObject) -> list[JsonObject]:
    """Frames that, folded onto ``known``, give ``fresh``; the status comes last.

    Missed status messages are shown with WORKING, the only certain state of that time: the task had not ended.
    """
    if known is None:
        return [task_frame(fresh)]
    ids = (text_at(known, "id"), text_at(known, "contextId"))
    frames = [
        status_frame(*ids, {"state": WORKING, "message": message})
        for message in _list_missed(known, fresh)
    ]
    for artifact in objects_at(fresh, "artifacts"):
        frame = _compare_artifact(ids, known, artifact)
        if frame is not None:
            frames.append(frame)
    changed = {
        name: value
        for name, value in object_at(fresh, "metadata").items()
        if name not in object_at(known, "metadata") or object_at(known, "metadata")[name] != value
    }
    if changed or _show_status(frames) or not is_same_status(known, fresh):
        frames.append(status_frame(*ids, object_at(fresh, "status"), changed))
    return frames


def _show_status(frames: list[JsonObject]) -> bool:
    """Whether one of ``frames`` shows a status, so that the current one must be sent again."""
    return any("statusUpdate" in frame for frame in frames)


def is_same_status(known: JsonObject, fresh: JsonObject) -> bool:
    """Whether the status is the known one, by state, time and message id."""
    return _status_key(known) == _status_key(fresh)


def without_time(task: JsonObject) -> JsonObject:
    """A Task without the time of its status."""
    status = object_at(task, "status")
    return {**task, "status": {name: status[name] for name in status if name != "timestamp"}}


def _status_key(task: JsonObject) -> tuple[str, str, str]:
    status = object_at(task, "status")
    message = object_at(status, "message")
    # A message of the gateway that replaces the agent's names the replaced one.
    instead = object_at(object_at(message, "metadata"), STATE)
    message_id = text_at(instead or message, "messageId")
    return text_at(status, "state"), text_at(status, "timestamp"), message_id


def _list_missed(known: JsonObject, fresh: JsonObject) -> list[JsonObject]:
    current = object_at(object_at(known, "status"), "message")
    history = sort(list_history(known))
    missed = [
        message
        for message in objects_at(fresh, "history")
        if text_at(message, "role") == ROLE_AGENT
        and not (same_message(current, message) or is_in(history, message))
    ]
    if not missed:
        return missed
    # A question that callers read in the gateway's form shares only its id.
    forms = {text_at(item, "messageId") for item in (*history, current) if _is_form(item)}
    return [message for message in missed if text_at(message, "messageId") not in forms]


def _is_form(message: JsonObject) -> bool:
    return any(PERMISSION in object_at(part, "data") for part in objects_at(message, "parts"))


def _compare_artifact(
    ids: tuple[str, str], known: JsonObject, artifact: JsonObject
) -> JsonObject | None:
    """An append of the remaining parts if the known ones are a prefix; otherwise the whole artifact."""
    mine = find_artifact(known, text_at(artifact, "artifactId"))
    if mine == artifact:
        return None
    if mine is not None and _without_parts(mine) == _without_parts(artifact):
        have, want = objects_at(mine, "parts"), objects_at(artifact, "parts")
        if have == want[: len(have)]:
            piece: JsonObject = {
                "artifactId": text_at(artifact, "artifactId"),
                "parts": as_list(want[len(have) :]),
            }
            return artifact_frame(*ids, piece, append=True)
    return artifact_frame(*ids, artifact)


def _without_parts(artifact: JsonObject) -> JsonObject:
    return {name: value for name, value in artifact.items() if name != "parts"}
