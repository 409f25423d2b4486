"""The id members of A2A objects, and the replacement of one id space by another (A2A-12).

:data:`PLACES` is the one list of these members. Every frame of an agent is relabelled before any other code reads it:
ids in these members become facade ids, whatever they were, and a known remote id inside any other text, such as an
artifact id made from a task id, is replaced too. Base64 content is not changed. Ids shorter than eight characters are
replaced in their members only: inside a text they are more likely words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

import orjson

from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import value
from passerelle.core.wire.times import complete_time

TEXT_ID_LENGTH: Final = 8


@frozen
class Places:
    """The id members of one kind of object, and its members of further kinds.

    ``own`` is the member with the id of the task that the object is or belongs to; ``others`` is a list of further task
    ids. ``always``: task and context id are required, so an absent one is filled in.
    """

    own: str | None = None
    context: str | None = None
    others: str | None = None
    always: bool = False
    members: Mapping[str, str] = field(default_factory=dict[str, str])


PLACES: Final[Mapping[str, Places]] = {
    "Message": Places(own="taskId", context="contextId", others="referenceTaskIds"),
    "TaskStatus": Places(members={"message": "Message"}),
    "Task": Places(
        own="id",
        context="contextId",
        always=True,
        members={"status": "TaskStatus", "history": "Message"},
    ),
    "TaskStatusUpdateEvent": Places(
        own="taskId", context="contextId", always=True, members={"status": "TaskStatus"}
    ),
    "TaskArtifactUpdateEvent": Places(own="taskId", context="contextId", always=True),
    "StreamResponse": Places(
        members={
            "task": "Task",
            "message": "Message",
            "statusUpdate": "TaskStatusUpdateEvent",
            "artifactUpdate": "TaskArtifactUpdateEvent",
        }
    ),
}


@value
class Relabel:
    """A replacement of ids: the ids of this task and context on the other side.

    ``known`` maps ids of the source side to their counterparts: this task's, this context's, and those of referenced
    tasks. Texts are scrubbed longest id first, so that an id which begins with another one is not cut in half:
    :func:`make_relabel` sorts them.
    """

    task: str
    context: str
    known: Mapping[str, str]

    def scrub(self, text: str) -> str:
        """``text`` with every known id of eight characters or more replaced."""
        for there, here in self.known.items():
            if len(there) >= TEXT_ID_LENGTH and there in text:
                text = text.replace(there, here)
        return text

    def find_in(self, packed: bytes) -> str | None:
        """A known id that may occur in a text or name of this JSON: one search of the whole.

        Raises:
            TypeError: a known id is not encodable, because of a lone surrogate.
        """
        for there in self.known:
            # JSON encodes a text character by character, so a substring is encoded as a substring, too.
            if len(there) >= TEXT_ID_LENGTH and orjson.dumps(there)[1:-1] in packed:
                return there
        return None


def make_relabel(task: str, context: str, known: Mapping[str, str]) -> Relabel:
    """A replacement towards ``task`` and ``context``; ``known`` in any order."""
    longest_first = sorted(known, key=len, reverse=True)
    return Relabel(task, context, {there: known[there] for there in longest_first})


def relabel(value: JsonObject, kind: str, ids: Relabel) -> JsonObject:
    """A copy of an object of ``kind`` (a name of :data:`PLACES`) in the other id space.

    If no known id occurs outside its id members, all other members are shared with ``value``.
    """
    copy = relabel_places(value, kind, ids)
    try:
        scrubs = ids.find_in(orjson.dumps(copy)) is not None
    except TypeError:
        # Not encodable: a lone surrogate.
        scrubs = True
    return relabel_places(value, kind, ids, scrubs=True) if scrubs else copy


def relabel_places(
    value: JsonObject, kind: str, ids: Relabel, *, scrubs: bool = False
) -> JsonObject:
    """The same, replacing ids in other texts only with ``scrubs``; the caller checks whether that is needed."""
    places = PLACES[kind]
    own, context, others, members = places.own, places.context, places.others, places.members
    copy = _scrub_others(value, places, ids) if scrubs else value.copy()
    if places.always and own is not None and context is not None:
        copy[own], copy[context] = ids.task, ids.context
    else:
        for name, here in ((own, ids.task), (context, ids.context)):
            if name not in copy:
                continue
            if copy[name]:
                copy[name] = here
            else:
                del copy[name]
    if others is not None and others in copy:
        _translate_all(copy, others, ids)
    if kind == "TaskStatus":
        _complete_time(copy)
    for name in members:
        member = copy.get(name)
        if isinstance(member, dict):
            copy[name] = relabel_places(member, members[name], ids, scrubs=scrubs)
        elif member is not None:
            copy[name] = _descend(member, members[name], ids, scrubs=scrubs)
    return copy


def _translate_all(copy: JsonObject, others: str, ids: Relabel) -> None:
    """A reference without a counterpart names nothing on the other side, so it is removed."""
    kept = _translate(copy[others], ids)
    if kept:
        copy[others] = kept
    else:
        del copy[others]


def _complete_time(status: JsonObject) -> None:
    """An agent's time without an offset is UTC; without it RFC 3339 parsers refuse it."""
    said_at = status.get("timestamp")
    if isinstance(said_at, str):
        status["timestamp"] = complete_time(said_at)


def _scrub_others(value: JsonObject, places: Places, ids: Relabel) -> JsonObject:
    """A copy with known ids replaced in all texts outside the id members."""
    placed = {places.own, places.context, places.others, *places.members}
    return {
        name if name in placed else ids.scrub(name): member
        if name in placed
        else scrub_value(member, ids)
        for name, member in value.items()
    }


def relabel_message(
    message: JsonObject,
    ids: Relabel,
    relabel: Callable[[JsonObject, str, Relabel], JsonObject] = relabel,
) -> JsonObject:
    """A bare Message of an agent: with the facade context, and no task id, since callers cannot use one (LT-6)."""
    copy = relabel(message, "Message", ids)
    copy.pop("taskId", None)
    copy["contextId"] = ids.context
    return copy


def _descend(member: Json, kind: str, ids: Relabel, *, scrubs: bool) -> Json:
    """A member that is an object of ``kind`` or a list of them."""
    if isinstance(member, list):
        items: list[Json] = []
        for item in member:
            if isinstance(item, dict):
                items.append(relabel_places(item, kind, ids, scrubs=scrubs))
            else:
                items.append(_descend(item, kind, ids, scrubs=scrubs))
        return items
    return scrub_value(member, ids) if scrubs else member


def _translate(references: Json, ids: Relabel) -> list[Json]:
    items = references if isinstance(references, list) else []
    return [ids.known[item] for item in items if isinstance(item, str) and item in ids.known]


def scrub_value(value: Json, ids: Relabel) -> Json:
    """A copy of ``value`` with known ids replaced in every text and name, except base64 content."""
    if isinstance(value, str):
        return ids.scrub(value)
    if isinstance(value, dict):
        return {
            ids.scrub(name): member if name == "raw" else scrub_value(member, ids)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [scrub_value(item, ids) for item in value]
    return value
