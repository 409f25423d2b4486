"""The shape of JSON values, as ``orjson.loads`` returns them, and how deep foreign ones may be nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
    JsonObject: TypeAlias = "dict[str, Json]"
else:
    # Codecs evaluate these at run time. They need resolvable names, and need not validate content that a JSON parser
    # has just made.
    Json = Any
    JsonObject = dict[str, Any]

DEPTH_LIMIT: Final = 64
"""Levels of nesting of foreign JSON: code that walks it is recursive."""


def is_too_deep(body: bytes, value: Json) -> bool:
    """Whether ``value``, which was read from ``body``, has more than ``DEPTH_LIMIT`` levels, itself counted."""
    # Counting brackets is ten times cheaper than walking, and nearly always enough.
    if body.count(b"{") + body.count(b"[") <= DEPTH_LIMIT:
        return False
    level: list[Json] = [value]
    for _ in range(DEPTH_LIMIT + 1):
        holders = [one for one in level if isinstance(one, dict | list)]
        if not holders:
            return False
        level = [
            item
            for holder in holders
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return True
