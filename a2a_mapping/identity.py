"""Where ids sit in A2A objects, and putting one id space in place of another (A2A-12).

:data:`PLACES` is the one list of these places. A frame that came from a peer is relabelled by it before
anybody else sees it: ids at these places become facade ids whatever they were, and a known remote id
that stands inside any other text, such as an artifact id made from a task id, is replaced there too.
Base64 content is left alone. Ids shorter than eight characters are replaced only at their places: a
short one inside a text is more likely a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.record import value
from passerelle.core.wire.times import complete_time

TEXT_ID_LENGTH: Final = 8


@dataclass(frozen=True, slots=True)
class Places:
    """Where ids stand in one kind of object, and which members hold further kinds.

    ``own`` is the member with the id of the task that the object is, or belongs to; ``others`` is a list of
    ids of further tasks. ``always`` says that task and context id are required there, so an absent one
    is filled in.
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
    """A replacement of ids: what this task and context are called on the other side.

    ``known`` has ids of the side that is left behind, with their counterparts: this task's, this
    context's, and those of other tasks that a message may refer to. Where texts are scrubbed they come longest
    first, so that an id which begins like another one is not cut in half: :func:`make_relabel` sees to it.
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
        """A known id that could stand in a text or name of this JSON: one look at all of it, not one at each.

        Raises:
            TypeError: a known id is no text of JSON, but half a character.
        """
        for there in self.known:
            # JSON writes a text character by character, so what stands in one stands in it as it is written, too.
            if len(there) >= TEXT_ID_LENGTH and orjson.dumps(there)[1:-1] in packed:
                return there
        return None


def make_relabel(task: str, context: str, known: Mapping[str, str]) -> Relabel:
    """A replacement towards ``task`` and ``context``; ``known`` may come in any order."""
    longest_first = sorted(known, key=len, reverse=True)
    return Relabel(task, context, {there: known[there] for there in longest_first})


def relabel(value: JsonObject, kind: str, ids: Relabel) -> JsonObject:
    """A copy of an object of ``kind`` (a name of :data:`PLACES`) in the other id space.

    Where no known id stands beside its places, members without places are those of ``value``.
    """
    copy = relabel_places(value, kind, ids)
    try:
        scrubs = ids.find_in(orjson.dumps(copy)) is not None
    except TypeError:
        # No JSON: a lone half of a character.
        scrubs = True
    return relabel_places(value, kind, ids, scrubs=True) if scrubs else copy


def relabel_places(
    value: JsonObject, kind: str, ids: Relabel, *, scrubs: bool = False
) -> JsonObject:
    """The same where no known id stands beside its places, which is for the caller to find out, or else ``scrubs``."""
    places = PLACES[kind]
    own, context, others, members = places.own, places.context, places.others, places.members
    copy = _scrub_beside(value, places, ids) if scrubs else value.copy()
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
    """A reference that has no counterpart names nothing on the other side."""
    kept = _translate(copy[others], ids)
    if kept:
        copy[others] = kept
    else:
        del copy[others]


def _complete_time(status: JsonObject) -> None:
    """A time that an agent wrote without an offset is its UTC: parsers of RFC 3339 refuse it as it is."""
    said_at = status.get("timestamp")
    if isinstance(said_at, str):
        status["timestamp"] = complete_time(said_at)


def _scrub_beside(value: JsonObject, places: Places, ids: Relabel) -> JsonObject:
    """A copy with known ids replaced everywhere but at the places."""
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
    """A bare Message of a peer: our context, and no task id, since the caller could use none (LT-6)."""
    copy = relabel(message, "Message", ids)
    copy.pop("taskId", None)
    copy["contextId"] = ids.context
    return copy


def _descend(member: Json, kind: str, ids: Relabel, *, scrubs: bool) -> Json:
    """What stands where an object of ``kind`` or a list of them may stand."""
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
    """A copy of ``value`` with known ids replaced in every text and name, base64 content left alone."""
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
