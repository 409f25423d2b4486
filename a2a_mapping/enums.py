"""States and roles as agents write them: by the names of A2A 1.0, the words of 0.3, or the numbers of the protobuf.

A ProtoJSON parser reads an enum by its name and by its number. Agents that moved from 0.3 to 1.0 often keep the words.
Anything else stays as it is: an unknown state is not guessed (ST-20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from passerelle.a2a_mapping.members import objects_at
from passerelle.a2a_mapping.states import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    PEER_STATES,
    REJECTED,
    SUBMITTED,
    UNSPECIFIED,
    WORKING,
)
from passerelle.core.wire.json import Json, JsonObject

OLDER_STATES: Final[Mapping[str, str]] = {
    "submitted": SUBMITTED,
    "working": WORKING,
    "input-required": INPUT_REQUIRED,
    "auth-required": AUTH_REQUIRED,
    "completed": COMPLETED,
    "canceled": CANCELED,
    "failed": FAILED,
    "rejected": REJECTED,
    "unknown": UNSPECIFIED,
}
"""By the words of 0.3."""
OLDER_ROLES: Final[Mapping[str, str]] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
OLDER_CANCELED: Final = "TASK_STATE_CANCELLED"
"""The protobuf of 0.3 spells it with two l."""
_STATES: Final = (
    UNSPECIFIED, SUBMITTED, WORKING, COMPLETED, FAILED, CANCELED, INPUT_REQUIRED, REJECTED, AUTH_REQUIRED,
)  # fmt: skip
"""By number, which is the same in both versions."""
_KNOWN_ROLES: Final = ("ROLE_AGENT", "ROLE_USER")
_ROLES: Final = ("ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT")


def read_state(state: Json) -> Json:
    """The state of 1.0 for a state in any spelling; an unknown one stays, a number as text."""
    if isinstance(state, str):
        return CANCELED if state == OLDER_CANCELED else OLDER_STATES.get(state, state)
    named = _name(state, _STATES)
    return str(named) if type(named) is int else named


def read_role(role: Json) -> Json:
    """The role of 1.0 for a role in any spelling; an unknown one stays."""
    return OLDER_ROLES.get(role, role) if isinstance(role, str) else _name(role, _ROLES)


def _name(number: Json, names: tuple[str, ...]) -> Json:
    return names[number] if type(number) is int and 0 <= number < len(names) else number


def name_enums(result: JsonObject) -> None:
    """Names states and roles of an answer as 1.0 does, in place.

    ``result`` is a StreamResponse, a Task or a list of Tasks, and may be anything else.
    """
    for holder in (result, result.get("task"), result.get("statusUpdate")):
        if isinstance(holder, dict) and "status" in holder:
            _name_in_task(holder)
    if "message" in result:
        _name_in_message(result["message"])
    if "tasks" in result:
        for task in objects_at(result, "tasks"):
            _name_in_task(task)


def _name_in_task(task: JsonObject) -> None:
    """The same for a Task, or an update of its status."""
    status = task.get("status")
    if isinstance(status, dict):
        state = status.get("state")
        if state is not None and (type(state) is not str or state not in PEER_STATES):
            status["state"] = read_state(state)
        if "message" in status:
            _name_in_message(status["message"])
    history = task.get("history")
    for message in history if isinstance(history, list) else ():
        _name_in_message(message)


def _name_in_message(message: Json) -> None:
    if isinstance(message, dict) and "role" in message and message["role"] not in _KNOWN_ROLES:
        message["role"] = read_role(message["role"])
