"""An answer in the agent's own dialect, as a caller gives it that speaks with the agent and knows of no gateway. Pure.

Such an answer counts like one in our own form, so it is read as strictly: literal booleans, exactly the members that
the form has, nothing beside it. What is read is a claim: whether it names a question that is open, and whether its
sender may decide, is for others to judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.wire.json import Json, JsonObject

PART: Final = "part"
METADATA: Final = "metadata"


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """One yes or no. ``native_id`` is the agent's id of the question, None where the dialect has none.

    ``allows`` is None for what is neither, or changes what was asked. ``kept`` is what goes on to the agent as it came:
    ``{"part": …}``, or ``{"metadata": …}`` of the message. ``is_alone``: the message says nothing else.
    """

    dialect: str
    native_id: str | None
    allows: bool | None
    kept: JsonObject
    comment: str | None = None
    is_alone: bool = True
    is_certain: bool = True
    """Whether nothing else has this form. Where something may have, it counts as one for a question that is known."""


def keep_native(message: JsonObject, kept: Sequence[JsonObject | None]) -> JsonObject:
    """``message``, which answers a pause, with what was given in its form in place of ours.

    Of parts each is the answer to one question. Metadata is that of the whole pause, so all answers have to share it.
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


def read_flag(form: JsonObject, name: str, *beside: str) -> bool | None:
    """A literal boolean of a form that has nothing but it and what stands ``beside``; None where it is not so.

    To some programs the text "false" is true, and of a member that nobody knows nobody has judged what it does.
    """
    value = form.get(name)
    return value if isinstance(value, bool) and form.keys() <= {name, *beside} else None
