"""Reads why a task waits from a frame, and a caller's choice for its stream while the task waits."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import AUTH_REQUIRED, INPUT_REQUIRED
from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

AWAIT_APPROVAL: Final = "await_approval"
"""A parameter of the permission extension (``docs/protocol/permission.md``)."""
_APPROVALS: Final = frozenset({"permission", "confirmation"})


class Pause(Enum):
    """Why a task waits, as its callers see it."""

    NONE = auto()
    INPUT = auto()
    """Words, data or a file of the caller."""
    APPROVAL = auto()
    """A decision of the permission extension that an agent asked for with INPUT_REQUIRED."""
    AUTH = auto()


def read_pause(frame: JsonObject) -> Pause:
    """Why the task of a 1.0 StreamResponse waits."""
    holder = object_at(frame, "statusUpdate") or object_at(frame, "task")
    status = object_at(holder, "status")
    match text_at(status, "state"):
        case state if state == AUTH_REQUIRED:
            return Pause.AUTH
        case state if state == INPUT_REQUIRED:
            return Pause.APPROVAL if _asks_approval(object_at(status, "message")) else Pause.INPUT
        case _:
            return Pause.NONE


def _asks_approval(message: JsonObject) -> bool:
    return any(
        text_at(object_at(object_at(part, "data"), PERMISSION), "kind") in _APPROVALS
        for part in objects_at(message, "parts")
    )


def read_await_approval(params: JsonObject) -> bool | None:
    """Whether the caller's stream stays open through approvals; None if not set.

    Raises:
        InvalidInput: it is not a boolean.
    """
    metadata = params.get("metadata")
    said = metadata.get(PERMISSION) if isinstance(metadata, dict) else None
    value = said.get(AWAIT_APPROVAL) if isinstance(said, dict) else None
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(f"metadata.{PERMISSION}.{AWAIT_APPROVAL}", "must be true or false")
