"""Content that the blob store has lost: what is still there is answered, and what is not is named by its hash.

A task is no less true because a file is gone. Its reader gets the rest, a part in the place of what is missing, and the
list of it in the metadata of the task; a list of tasks never fails for one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping import states
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.errors import StoreUnavailable
from passerelle.core.task.status import Status

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject

MISSING: Final = "urn:passerelle:missing"
"""Key in the metadata of a part, and of its task: ``sha256`` of what is missing, or a list of such."""
_TEXT: Final = "This content is missing: the blob store does not have it any more."
_ENDS: Final[dict[Status, str]] = {
    Status.COMPLETED: states.COMPLETED,
    Status.CANCELLED: states.CANCELED,
    Status.FAILED: states.FAILED,
    Status.TIMED_OUT: states.FAILED,
    Status.LOST: states.FAILED,
}
_ENDED: Final = frozenset({*_ENDS.values(), states.REJECTED})


class MissingContent(StoreUnavailable):
    """The blob store answers, and does not have what a fact names."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"blob {sha256[:12]} is missing", "no")
        self.sha256 = sha256


def mark_part(sha256: str) -> JsonObject:
    """The part that stands for what is missing."""
    return {"text": _TEXT, "metadata": {MISSING: {"sha256": sha256}}}


def mark_message(sha256: str, message_id: str) -> JsonObject:
    """A message whose words are missing."""
    return {"messageId": message_id, "role": "ROLE_USER", "parts": [mark_part(sha256)]}


def mark_task(
    task: JsonObject | None, facade: str, record: TaskRecord, missing: list[str]
) -> JsonObject:
    """A task of which some frames are missing: with every artifact that it is known to have, and its true end."""
    if task is None:
        context = record.scope.context_id
        task = {"id": facade, "contextId": context, "status": {"state": states.WORKING}}
    artifacts = objects_at(task, "artifacts")
    present = {text_at(one, "artifactId") for one in artifacts}
    lost: list[JsonObject] = [
        {"artifactId": one.name_at_peer, "parts": [mark_part(one.sha256)]}
        for one in record.artifacts
        if one.name_at_peer not in present
    ]
    artifacts += lost
    status = object_at(task, "status")
    if status.get("state") not in _ENDED and record.status in _ENDS:
        status = {**status, "state": _ENDS[record.status]}
    marked = as_list([{"sha256": sha256} for sha256 in missing])
    return {
        **task,
        "status": status,
        **({"artifacts": as_list(artifacts)} if artifacts else {}),
        "metadata": {**object_at(task, "metadata"), MISSING: marked},
    }
