"""Events of an inbox that are for paired devices alone: a mark that is read without decoding them.

An inbox belongs to a person, and a question may be for that person at a paired device only
(``core/approval/audience.py``). Each event about it carries the mark in the inbox of that person, and in no other one.
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
    """Whether the view of a question in an inbox carries the mark."""
    shown: JsonObject = orjson.loads(view)
    return PAIRED.items() <= shown.items()
