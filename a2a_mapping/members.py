"""Reads untrusted JSON: bytes with a nesting limit, members of objects, and ProtoJSON scalars.

orjson keeps integers up to 64 bits as integers; a larger one reads as a float.

A member of a wrong type reads as absent. A scalar parameter is read as ProtoJSON writes it: a number may come as text,
null means absent. Query parameters are texts, so one reader serves both bindings. Every refusal names the field.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from passerelle.core.errors import InvalidInput, MalformedBody
from passerelle.core.wire.json import DEPTH_LIMIT, Json, JsonObject, is_too_deep
from passerelle.core.wire.near import find_near
from passerelle.core.wire.times import parse_ms
from passerelle.core.wire.wire_faults import SHOWN


def read_json(body: bytes) -> Json:
    """The JSON value in ``body``.

    Raises:
        MalformedBody: not JSON, or nested deeper than 64 levels.
    """
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody("body", f"is not JSON: {error.msg} at {error.pos}") from None
    check_depth(body, value)
    return value


def check_depth(body: bytes, value: Json) -> None:
    """Checks the value that was read from ``body``.

    Raises:
        MalformedBody: it is nested deeper than 64 levels.
    """
    if is_too_deep(body, value):
        raise MalformedBody("body", f"is nested deeper than {DEPTH_LIMIT} levels")


def read_object(body: bytes) -> JsonObject:
    """The JSON object in ``body``; an empty body is an empty object, as HTTP+JSON allows.

    Raises:
        MalformedBody: not a JSON object.
    """
    value = read_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise MalformedBody("body", "must be a JSON object")
    return value


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
    """The whole number of a member, or None; a protobuf agent writes 2 as 2.0.

    A number longer than 64 bits is None, since other readers could not parse it.
    """
    value = holder.get(name)
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _BEYOND:
        return None
    return value


def as_list(items: list[JsonObject]) -> list[Json]:
    """The same objects as a JSON list, which type checkers treat as another type."""
    return list(items)


INT32_MAX: Final = 2**31 - 1
_BEYOND: Final = 2**63
_TEXT_LIMIT: Final = 1024
_WHOLE: Final = re.compile(r"-?[0-9]{1,11}", re.ASCII)


def read_text(
    holder: JsonObject, name: str, path: str = "", *, limit: int = _TEXT_LIMIT
) -> str | None:
    """A text, or None when it is absent, null or empty.

    Raises:
        InvalidInput: not a text, or longer than ``limit`` characters.
    """
    value = holder.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidInput(path + name, "must be a text")
    if len(value) > limit:
        raise InvalidInput(path + name, f"is longer than {limit} characters")
    return value


def require_text(holder: JsonObject, name: str, path: str = "", *, limit: int = _TEXT_LIMIT) -> str:
    """A text that must be there.

    Raises:
        InvalidInput: absent, empty, not a text or too long.
    """
    value = read_text(holder, name, path, limit=limit)
    if value is None:
        raise InvalidInput(path + name, explain_missing(holder, name))
    return value


def explain_missing(holder: JsonObject, name: str) -> str:
    """The reason for a missing required member, with a similar member if there is one."""
    near = find_near(name, [one for one in holder if one != name])
    return f"is required; is {near[:SHOWN]!r} meant?" if near else "is required"


def read_whole(
    holder: JsonObject, name: str, path: str = "", *, low: int = 0, high: int = INT32_MAX
) -> int | None:
    """A whole number within bounds, or None when absent; ``10``, ``10.0`` and ``"10"`` are the same.

    Raises:
        InvalidInput: not a whole number, or out of bounds.
    """
    value = holder.get(name)
    if value is None:
        return None
    number = _to_whole(value)
    if number is None:
        raise InvalidInput(path + name, "must be a whole number")
    if not low <= number <= high:
        raise InvalidInput(path + name, f"must be between {low} and {high}")
    return number


def read_flag(holder: JsonObject, name: str, path: str = "") -> bool:
    """A boolean, false when absent; a query has the texts ``true`` and ``false``.

    Raises:
        InvalidInput: anything else.
    """
    value = holder.get(name)
    if value is None or value is False or value == "false":
        return False
    if value is True or value == "true":
        return True
    raise InvalidInput(path + name, "must be true or false")


def read_texts(holder: JsonObject, name: str, path: str = "") -> tuple[str, ...]:
    """A list of texts, empty when absent.

    Raises:
        InvalidInput: not a list, or an item that is not a text.
    """
    value = holder.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidInput(path + name, "must be a list")
    texts = tuple(item for item in value if isinstance(item, str))
    if len(texts) != len(value):
        raise InvalidInput(path + name, "must hold texts only")
    return texts


def read_time_ms(holder: JsonObject, name: str) -> int | None:
    """An RFC 3339 time as milliseconds since the epoch, or None when absent.

    Raises:
        InvalidInput: not a time, or one without an offset.
    """
    text = read_text(holder, name)
    if text is None:
        return None
    try:
        # A plus sign that was not escaped reads as a space in a query.
        return parse_ms(text.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise InvalidInput(name, "must be an RFC 3339 time with an offset, such as Z") from None


def _to_whole(value: Json) -> int | None:
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
