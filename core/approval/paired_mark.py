"""Marks inbox events that only paired devices may read, in a form that needs no decoding.

An inbox belongs to one person, and an approval may be visible to that person on paired devices only
(``core/approval/audience.py``). Then each of its events carries the mark in that person's inbox, and in no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from passerelle.core.events import EncodedEvent
    from passerelle.core.wire.json import JsonObject

PAIRED: Final[JsonObject] = {"devices": "paired"}
_MARK: Final = b'"devices":"paired",'


def mark_for_paired(event: EncodedEvent) -> EncodedEvent:
    """The event with the mark, as its first member after the sequence."""
    return replace(event, rest=_MARK + event.begin, shared_members=None)


def is_for_paired(data: bytes) -> bool:
    """Whether a stored envelope, which begins with its sequence, carries the mark."""
    return data.startswith(_MARK, data.find(b",") + 1)


def is_view_for_paired(view: bytes) -> bool:
    """Whether the view of an approval in an inbox carries the mark."""
    shown: JsonObject = orjson.loads(view)
    return PAIRED.items() <= shown.items()
