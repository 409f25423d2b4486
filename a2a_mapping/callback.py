"""What a peer calls back with: which of its tasks it is about. The rest is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at, text_at

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

_TASK_IDS: Final = (
    ("task", "id"),
    ("statusUpdate", "taskId"),
    ("artifactUpdate", "taskId"),
    ("message", "taskId"),
)


def read_task_id(body: JsonObject) -> str | None:
    """The task of a StreamResponse of 1.0, or of a Task, an update or a Message of 0.3."""
    for member, name in _TASK_IDS:
        if member in body:
            return text_at(object_at(body, member), name) or None
    named = "id" if body.get("kind", "task") == "task" else "taskId"
    return text_at(body, named) or None
