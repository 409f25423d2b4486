"""The two forms of 0.3, and the enum values that differ between them and 1.0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from passerelle.a2a_mapping.enums import OLDER_CANCELED, OLDER_ROLES, OLDER_STATES
from passerelle.a2a_mapping.states import CANCELED, UNSPECIFIED
from passerelle.core.wire.json import Json, JsonObject


class Form(StrEnum):
    """A form of 0.3."""

    KIND = "kind"
    """JSON-RPC: objects carry ``kind``, states and roles are lower-case words."""
    PROTO = "proto"
    """HTTP+JSON and gRPC: ProtoJSON of the package ``a2a.v1``."""


_KIND_OF_STATE: Final = {state: word for word, state in OLDER_STATES.items()}
_KIND_OF_ROLE: Final = {role: word for word, role in OLDER_ROLES.items()}


def write_state(state: Json, form: Form) -> Json:
    """The word for a 1.0 state; a state that 0.3 does not have becomes unknown."""
    if form is Form.PROTO:
        known = isinstance(state, str) and state in _KIND_OF_STATE
        return (OLDER_CANCELED if state == CANCELED else state) if known else UNSPECIFIED
    return _KIND_OF_STATE.get(state, "unknown") if isinstance(state, str) else "unknown"


def write_role(role: Json, form: Form) -> Json:
    """The word for a 1.0 role."""
    if form is Form.PROTO:
        return role
    return _KIND_OF_ROLE.get(role, role) if isinstance(role, str) else role


def map_object(value: Json, change: Callable[[JsonObject], JsonObject]) -> Json:
    """``value`` changed if it is an object; anything else stays, for later checks."""
    return change(value) if isinstance(value, dict) else value


def map_objects(value: Json, change: Callable[[JsonObject], JsonObject]) -> Json:
    """The objects of a list changed, everything else unchanged."""
    if not isinstance(value, list):
        return value
    return [map_object(item, change) for item in value]


def rename(holder: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """A copy without ``kind`` and nulls, members renamed; the new name takes precedence if both are given."""
    renamed: JsonObject = {}
    for name, value in holder.items():
        wire = names.get(name, name)
        if value is not None and name != "kind" and not (wire != name and wire in holder):
            renamed[wire] = value
    return renamed


def drop_empty(holder: JsonObject, *names: str) -> JsonObject:
    """``holder`` without those of ``names`` that are empty: 0.3 omits them."""
    for name in names:
        if name in holder and not holder[name]:
            del holder[name]
    return holder
