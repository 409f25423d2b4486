"""Answers in the agent's own dialect, from callers that do not know the gateway's form. Pure.

Such an answer counts like one in the gateway's form, so it is read as strictly: literal booleans, and exactly the
members of the form. The result is a claim: whether its question is open, and whether its sender may decide, is checked
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

PART: Final = "part"
METADATA: Final = "metadata"


@frozen
class NativeAnswer:
    """One allow or reject. ``native_id`` is the agent's id of the question, None if the dialect has none.

    ``allows`` is None for anything else, or if the request is changed. ``kept`` is what is forwarded to the agent
    unchanged: ``{"part": …}``, or ``{"metadata": …}`` of the message. ``is_alone``: the message has nothing else.
    """

    dialect: str
    native_id: str | None
    allows: bool | None
    kept: JsonObject
    comment: str | None = None
    is_alone: bool = True
    is_certain: bool = True
    """Whether no other content has this form. If not, it counts only for a known question."""


def keep_native(message: JsonObject, kept: Sequence[JsonObject | None]) -> JsonObject:
    """``message``, which answers a pause, with the native forms of the answers instead of the generated ones.

    Each part is the answer to one question. Metadata is that of the whole pause, so all answers must share it.
    """
    first = kept[0]
    if first is not None and METADATA in first:
        return {**message, **first} if all(own == first for own in kept) else message
    parts = objects_at(message, "parts")
    if len(parts) != len(kept):
        return message
    chosen: list[Json] = [
        object_at(own, PART) if own is not None else part
        for part, own in zip(parts, kept, strict=True)
    ]
    return {**message, "parts": chosen}


def read_parts(
    message: JsonObject, read_part: Callable[[JsonObject], NativeAnswer | None]
) -> list[NativeAnswer]:
    """The answers in the parts of a message, each marked whether all of its parts are answers."""
    parts = objects_at(message, "parts")
    answers = [answer for part in parts if (answer := read_part(part)) is not None]
    return [replace(answer, is_alone=len(parts) == len(answers)) for answer in answers]


def read_flag(form: JsonObject, name: str, *also: str) -> bool | None:
    """A literal boolean of a form that has no other members than it and those in ``also``; otherwise None.

    Some programs read the text "false" as true, and the effect of an unknown member is unknown.
    """
    value = form.get(name)
    return value if isinstance(value, bool) and form.keys() <= {name, *also} else None
