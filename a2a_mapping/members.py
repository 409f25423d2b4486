"""Reading members of JSON objects that somebody else wrote: a wrong type reads as absent."""

from __future__ import annotations

from passerelle.core.wire.json import Json, JsonObject


def text_at(holder: JsonObject, name: str) -> str:
    """The text of a member, or ``""``; ProtoJSON treats an empty text and an absent one alike."""
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def object_at(holder: JsonObject, name: str) -> JsonObject:
    """The object of a member, or an empty one. The result is the member itself, not a copy."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def objects_at(holder: JsonObject, name: str) -> list[JsonObject]:
    """The objects in a list member, in order; items of another type are left out."""
    value = holder.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts_at(holder: JsonObject, name: str) -> list[str]:
    """The texts in a list member, in order; items of another type are left out."""
    value = holder.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def whole_at(holder: JsonObject, name: str) -> int | None:
    """The whole number of a member, or None; a protobuf peer writes 2 as 2.0."""
    value = holder.get(name)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_list(items: list[JsonObject]) -> list[Json]:
    """The same objects as a JSON list: a list of objects is no list of values to a type checker."""
    return list(items)
