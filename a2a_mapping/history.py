"""The history of a facade Task: the agent's, and the accepted messages that it lacks.

Agents differ: some keep every message, some drop follow-ups to a waiting task, some keep nothing. An accepted message
is part of the conversation either way, so missing ones are inserted before the next one that the agent has. Two
messages are the same if id and content are: an id alone is not unique. An agent that keeps only some parts of a message
has a shortened copy: the whole message takes its place.

Every accepted message names its task and context, as an agent completes it, and the tasks that its caller refers to:
the agent gets those under its own ids, or not at all.

A history is bounded, since the driver of a run holds it in memory: an agent may send a message each second for a day.
Messages that are left out are in the stream of the session. A server chooses how much history it keeps (A2A 1.0,
section 3.2.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import is_
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from passerelle.a2a_mapping.extensions import REFERENCE
from passerelle.a2a_mapping.frames import ROLE_AGENT
from passerelle.a2a_mapping.long_task import measure_artifact
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

_CONTENT: Final = ("text", "raw", "url", "data", "filename", "mediaType")
_REFERENCES: Final = "referenceTaskIds"
_PLACES: Final = ("taskId", "contextId")
_SHORT: Final = 32
"""Up to this many messages a linear search is faster than an index."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Size limit of an agent's messages in a history: that of one event."""
_MESSAGE_BYTES: Final = 512
"""Overhead of a message besides its content: its object in this process, with its ids."""
_LONG_BYTES: Final = MOST_BYTES // (2 * _SHORT)
"""A few messages of this size weigh as much as many small ones."""
_MOST_LEFT_OUT: Final = 131_072
"""Messages that are left out but count as known; if an agent repeats an older one, it counts as new."""
_Key: TypeAlias = tuple[str, int]


@frozen
class _Known:
    """Shared by histories that grew from one another; an index entry counts only if the message is still there."""

    accepted: Sequence[JsonObject]
    places: dict[_Key, list[int]]
    left_out: Mapping[int, None]
    """The hash of each key, oldest first."""


class LongHistory(list[JsonObject]):
    """A history with an index of its messages; immutable, adding returns another one.

    Beyond ``MOST_BYTES`` the oldest messages of the agent are left out. They still count as known: if the agent repeats
    them, they are not new.
    """

    __slots__ = ("_known", "_size")

    def __init__(
        self,
        messages: Iterable[JsonObject],
        accepted: Sequence[JsonObject] = (),
        left_out: Mapping[int, None] = MappingProxyType({}),
        *,
        grown: tuple[_Known, int] | None = None,
    ) -> None:
        """``grown``: shared state and size, if this is another history plus one message."""
        super().__init__(messages)
        if grown is not None:
            self._known, self._size = grown
            return
        self._known = _Known(accepted, {}, left_out)
        self._size = sum(map(_weigh, self))
        for place, message in enumerate(self):
            self._known.places.setdefault(_key(message), []).append(place)

    @property
    def left_out(self) -> int:
        """How many messages were left out."""
        return len(self._known.left_out)

    def has(self, message: JsonObject) -> bool:
        """Whether the message is, or was, in the history."""
        key = _key(message)
        places = self._known.places.get(key, ())
        return hash(key) in self._known.left_out or any(
            place < len(self) and same_message(self[place], message) for place in places
        )

    def add(self, message: JsonObject) -> LongHistory:
        """This history with ``message`` appended."""
        size = self._size + _weigh(message)
        if size > MOST_BYTES:
            return self._shorten(size - MOST_BYTES // 2, message)
        self._index([message])
        return LongHistory((*self, message), grown=(self._known, size))

    def renew(self, messages: Iterable[JsonObject], accepted: Sequence[JsonObject]) -> LongHistory:
        """A history of other messages that keeps the left out ones."""
        return LongHistory(messages, accepted, self._known.left_out)

    def is_complete(self, accepted: Sequence[JsonObject]) -> bool:
        """Whether it was completed with these messages; later appended ones do not change that."""
        mine = self._known.accepted
        return len(mine) == len(accepted) > 0 and all(map(is_, mine, accepted))

    def complete(self, accepted: Sequence[JsonObject], task: JsonObject) -> LongHistory | None:
        """This history completed with ``accepted``, if that only appends the later ones.

        None if it was not completed with the earlier ones, or may have one of the later ones after them.
        """
        mine, places = self._known.accepted, self._known.places
        if not 0 < len(mine) < len(accepted) or not all(map(is_, mine, accepted)):
            return None
        known = (place for place in places.get(_key(mine[-1]), ()) if place < len(self))
        last = min((one for one in known if same_message(self[one], mine[-1])), default=None)
        if last is None:
            return None
        later = [_place(message, task) for message in accepted[len(mine) :]]
        names = {text_at(message, "messageId") for message in later}
        if any(text_at(message, "messageId") in names for message in islice(self, last, None)):
            return None
        self._index(later)
        grown = _Known([*accepted], places, self._known.left_out)
        size = self._size + sum(map(_weigh, later))
        return LongHistory((*self, *later), grown=(grown, size))

    def _index(self, later: Iterable[JsonObject]) -> None:
        """Notes the places of messages that follow this history."""
        for place, message in enumerate(later, len(self)):
            places = self._known.places.setdefault(_key(message), [])
            if place not in places:
                places.append(place)

    def _shorten(self, over: int, message: JsonObject) -> LongHistory:
        """With ``message`` appended, and without the agent's oldest messages that weigh ``over`` bytes together."""
        kept, left_out = list[JsonObject](), dict(self._known.left_out)
        for one in self:
            if over > 0 and text_at(one, "role") == ROLE_AGENT:
                over -= _weigh(one)
                left_out[hash(_key(one))] = None
            else:
                kept.append(one)
        for oldest in [*islice(left_out, max(0, len(left_out) - _MOST_LEFT_OUT))]:
            del left_out[oldest]
        return LongHistory((*kept, message), self._known.accepted, left_out)


def same_message(one: JsonObject, other: JsonObject) -> bool:
    """Whether id and content are equal; ids of task and context, metadata and order of keys do not count."""
    # Most agents return a message unchanged.
    if one.get("messageId") != other.get("messageId") and (
        text_at(one, "messageId") != text_at(other, "messageId")
    ):
        return False
    return one.get("parts") == other.get("parts") or _contents(one) == _contents(other)


def merge_history(native: Sequence[JsonObject], accepted: Sequence[JsonObject]) -> list[JsonObject]:
    """``native`` plus the missing ones of ``accepted``, each before the next accepted one that it has."""
    merged: list[JsonObject] = []
    position = 0
    waiting: list[JsonObject] = []
    for message in accepted:
        found = _find(native, message, position)
        if found is None:
            waiting.append(message)
            continue
        shown = native[found] if same_message(native[found], message) else message
        merged += [*native[position:found], *waiting, _refer(shown, message)]
        position, waiting = found + 1, []
    return [*merged, *native[position:], *waiting]


def list_history(task: JsonObject) -> list[JsonObject]:
    """The messages in the history of a Task; do not change the list."""
    history = cast("object", task.get("history"))
    return history if isinstance(history, LongHistory) else objects_at(task, "history")


def sort(messages: list[JsonObject]) -> list[JsonObject]:
    """The same messages with an index, if there are many."""
    if len(messages) < _SHORT or isinstance(messages, LongHistory):
        return messages
    return LongHistory(messages)


def count_left_out(task: JsonObject | None) -> int:
    """How many messages of its agent a Task no longer shows."""
    history = cast("object", task.get("history")) if task else None
    return history.left_out if isinstance(history, LongHistory) else 0


def is_in(history: list[JsonObject], message: JsonObject) -> bool:
    """Whether a history has a message."""
    if isinstance(history, LongHistory):
        return history.has(message)
    return any(same_message(item, message) for item in history)


def add_to_history(history: list[JsonObject], message: JsonObject) -> list[JsonObject]:
    """``history`` with ``message`` appended, unless it has it."""
    is_long = measure_artifact(message) > _LONG_BYTES
    history = LongHistory(history) if is_long and type(history) is list else sort(history)
    if is_in(history, message):
        return history
    return history.add(message) if isinstance(history, LongHistory) else [*history, message]


def put_history(task: JsonObject, history: list[JsonObject]) -> JsonObject:
    """A copy of ``task`` with this history object, so that its index is kept."""
    return {**task, "history": cast("list[Json]", history)}


def complete_history(task: JsonObject, accepted: Sequence[JsonObject]) -> JsonObject:
    """``task`` with every accepted message in its history: itself if it has them, else a copy."""
    given = task.get("history")
    # Most agents that keep a history begin it with the only message.
    if (
        isinstance(given, list)
        and given
        and len(accepted) == 1
        and isinstance(first := given[0], dict)
        and same_message(first, accepted[0])
        and first.get(_REFERENCES) == accepted[0].get(_REFERENCES)
    ):
        return task
    if isinstance(given, LongHistory):
        if given.is_complete(accepted):
            return task
        completed = given.complete(accepted, task)
        if completed is not None:
            return put_history(task, completed)
    placed = [_place(message, task) for message in accepted]
    history = merge_history(objects_at(task, "history"), placed)
    if isinstance(given, LongHistory):
        history = given.renew(history, [*accepted])
    elif len(history) >= _SHORT:
        history = LongHistory(history, [*accepted])
    return put_history(task, history) if history else task


def restore_message(task: JsonObject, sent: str, own: JsonObject, *, is_whole: bool) -> JsonObject:
    """A copy in which the message sent as ``sent`` has the id of ``own`` again, and its content if that ``is_whole``.

    Otherwise the message sent has the content of several.
    """
    history = objects_at(task, "history")
    if all(text_at(message, "messageId") != sent for message in history):
        return task
    restored = [
        _restore(message, own, is_whole=is_whole)
        if text_at(message, "messageId") == sent
        else message
        for message in history
    ]
    return {**task, "history": as_list(restored)}


def _restore(message: JsonObject, own: JsonObject, *, is_whole: bool) -> JsonObject:
    named: JsonObject = {**message, "messageId": text_at(own, "messageId")}
    if not is_whole or text_at(message, "role") == ROLE_AGENT or same_message(named, own):
        return named
    return own | {name: one for name, one in named.items() if name in _PLACES}


def cut_history(task: JsonObject, length: int | None, cap: int | None = None) -> JsonObject:
    """A copy with the last ``length`` messages; 0 leaves the member out, None keeps up to ``cap``."""
    kept = cap if length is None else min(length, cap if cap is not None else length)
    if kept is None:
        return dict(task)
    copy = {name: value for name, value in task.items() if name != "history"}
    history = task.get("history")
    if kept > 0 and isinstance(history, list) and history:
        copy["history"] = history[-kept:]
    return copy


def _place(message: JsonObject, task: JsonObject) -> JsonObject:
    """An accepted message with the ids of its task and context, which its caller need not give."""
    ids = {"taskId": text_at(task, "id"), "contextId": text_at(task, "contextId")}
    return {**message, **{name: value for name, value in ids.items() if value}}


def _refer(native: JsonObject, message: JsonObject) -> JsonObject:
    """The agent's copy of a message with the references of its caller."""
    references = message.get(_REFERENCES)
    if native.get(_REFERENCES) == references:
        return native
    kept = {name: value for name, value in native.items() if name != _REFERENCES}
    return {**kept, _REFERENCES: references} if references else kept


def _find(native: Sequence[JsonObject], message: JsonObject, start: int) -> int | None:
    for is_copy in (same_message, _is_shortened):
        for place in range(start, len(native)):
            if is_copy(native[place], message):
                return place
    return None


def _is_shortened(copy: JsonObject, message: JsonObject) -> bool:
    """Whether ``copy`` has the id and role of ``message``, and some of its parts; an agent may answer under its id."""
    if not text_at(copy, "messageId") or any(
        copy.get(name) != message.get(name) for name in ("messageId", "role")
    ):
        return False
    kept, sent = _contents(copy), iter(_contents(message))
    return bool(kept) and all(part in sent for part in kept)


def continues(message: JsonObject, earlier: JsonObject) -> bool:
    """Whether ``message`` is ``earlier``, or the same one written further: its id, its role, and text that goes on."""
    if same_message(message, earlier):
        return True
    written, begun = objects_at(message, "parts"), objects_at(earlier, "parts")
    return (
        text_at(message, "messageId") == text_at(earlier, "messageId") != ""
        and text_at(message, "role") == text_at(earlier, "role")
        and all("text" in part for part in begun)
        and _join(written).startswith(_join(begun))
    )


def _join(parts: Sequence[JsonObject]) -> str:
    return "".join(text_at(part, "text") for part in parts)


def _weigh(message: JsonObject) -> int:
    """The weight of an agent's message in bytes.

    Callers' messages weigh nothing: a fold of the stored events may have fewer of them, and must leave out the same.
    """
    if text_at(message, "role") != ROLE_AGENT:
        return 0
    return _MESSAGE_BYTES + measure_artifact(message)


def _key(message: JsonObject) -> _Key:
    """Equal for messages that are the same."""
    said = tuple(tuple(map(_digest, part)) for part in _contents(message))
    return text_at(message, "messageId"), hash(said)


def _digest(value: Json) -> int:
    """Equal for equal values, such as 2 and 2.0."""
    if isinstance(value, dict):
        return hash(frozenset((name, _digest(one)) for name, one in value.items()))
    return hash(tuple(map(_digest, value))) if isinstance(value, list) else hash(value)


def _contents(message: JsonObject) -> list[list[Json]]:
    # A protobuf agent may add or drop empty texts. Parts inserted by the gateway are not the caller's.
    return [
        [part.get(name) or None if name != "data" else part.get(name) for name in _CONTENT]
        for part in objects_at(message, "parts")
        if REFERENCE not in object_at(part, "metadata")
    ]
