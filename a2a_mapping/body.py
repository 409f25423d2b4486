"""Bytes to JSON values, with a bound on nesting.

orjson keeps integers up to 64 bits as integers; a larger one reads as a float. Everything that walks
JSON here is recursive, so the depth is bounded before anything walks.
"""

from __future__ import annotations

from typing import Final

import orjson

from passerelle.core.errors import MalformedBody
from passerelle.core.wire.json import Json, JsonObject

DEPTH_LIMIT: Final = 64


def read_json(body: bytes) -> Json:
    """The JSON value in ``body``.

    Raises:
        MalformedBody: not JSON, or nested deeper than 64 levels.
    """
    try:
        value: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody("body", f"is not JSON: {error.msg} at {error.pos}") from None
    # Counting brackets is ten times cheaper than walking, and nearly always enough.
    if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT and not _is_shallow(value):
        raise MalformedBody("body", f"is nested deeper than {DEPTH_LIMIT} levels")
    return value


def read_object(body: bytes) -> JsonObject:
    """The JSON object in ``body``; an empty body is an empty object, as HTTP+JSON allows.

    Raises:
        MalformedBody: not a JSON object.
    """
    value = read_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise MalformedBody("body", "must be a JSON object")
    return value


def _is_shallow(value: Json) -> bool:
    level: list[JsonObject | list[Json]] = _list_containers([value])
    for _ in range(DEPTH_LIMIT):
        below = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
        level = _list_containers(below)
        if not level:
            return True
    return False


def _list_containers(values: list[Json]) -> list[JsonObject | list[Json]]:
    return [value for value in values if isinstance(value, dict | list)]
