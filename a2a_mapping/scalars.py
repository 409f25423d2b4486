"""Scalar parameters as ProtoJSON writes them: a number may come as text, null means absent.

Query parameters are texts, so one reader serves both bindings. Every refusal names the field.
"""

from __future__ import annotations

import re
from typing import Final

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import parse_ms

INT32_MAX: Final = 2**31 - 1
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
        raise InvalidInput(path + name, "is required")
    return value


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
    """A truth value, false when absent; the texts ``true`` and ``false`` are those of a query.

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
