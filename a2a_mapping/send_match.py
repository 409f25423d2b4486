"""Finds the task of a send with an unknown outcome among the tasks that an agent lists.

A message id is not unique (G1): a match needs the context, for which the list was requested, and a task that no other
run has. A history with the message is proof. A history without it, or none, proves nothing: an agent that builds its
tasks itself may keep none. In a context that was minted for one send the only remaining task is that send's, unless
another send may have made it.
"""

from __future__ import annotations

from collections.abc import Sequence

from passerelle.a2a_mapping.extensions import CORRELATION
from passerelle.a2a_mapping.history import same_message
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import JsonObject


@frozen
class Sent:
    """A send with an unknown outcome.

    ``is_alone``: the gateway minted the context, and no other send of unknown outcome went into it. ``key`` is its
    correlation key, if it had one.
    """

    message: JsonObject
    is_alone: bool
    key: str | None = None


@frozen
class Found:
    """The task of a send, and how many others also match."""

    task: JsonObject
    rivals: int = 0


def find_task(unbound: Sequence[JsonObject], sent: Sent) -> Found | None:
    """The task that ``sent`` made, among those that no run has, newest first; None if it cannot be determined."""
    keyed = [task for task in unbound if sent.key and sent.key in _list_keys(task)]
    shown = [task for task in unbound if count_message(objects_at(task, "history"), sent.message)]
    matches = keyed or shown
    if matches:
        return Found(matches[0], len(matches) - 1)
    if sent.is_alone and len(unbound) == 1:
        return Found(unbound[0])
    return None


def count_message(history: Sequence[JsonObject], message: JsonObject) -> int:
    """How often a history has a caller's message, by id and content."""
    return sum(
        text_at(item, "role") in {"ROLE_USER", "user", ""} and same_message(item, message)
        for item in history
    )


def _list_keys(task: JsonObject) -> set[str]:
    holders = [task, *objects_at(task, "history")]
    return {text_at(object_at(holder, "metadata"), CORRELATION) for holder in holders}
