"""The nesting limit of a frame: code that walks JSON is recursive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

DEPTH_LIMIT: Final = 64


def may_be_too_deep(frame: bytes) -> bool:
    """Whether the bytes have enough brackets to exceed the limit, so that the parsed frame must be checked."""
    return frame.count(b"{") + frame.count(b"[") > DEPTH_LIMIT


def is_too_deep(members: JsonObject) -> bool:
    """Whether an object has more than 64 levels, itself counted."""
    level: list[Json] = [members]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for holder in level
            for item in _list_items(holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _list_items(holder: Json) -> list[Json]:
    match holder:
        case dict():
            return list(holder.values())
        case list():
            return holder
        case _:
            return []
