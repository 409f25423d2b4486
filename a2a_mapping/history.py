"""The history of a facade Task: the peer's, and our accepted messages that it lacks.

Peers differ: some keep every message, some drop follow-ups to a waiting task, some keep nothing. What a
caller sent and we accepted is part of the conversation either way, so those messages are put in before
the next one that the peer does have. Two messages are the same when id and content are: an id alone is
not unique.

A history has a bound, since the driver of a run holds it: an agent may say something each second for a day. What is
left out of it stands in the stream of its session. How much history a server keeps is its own choice (A2A 1.0, section
3.2.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from passerelle.a2a_mapping.extensions import REFERENCE
from passerelle.a2a_mapping.frames import ROLE_AGENT
from passerelle.a2a_mapping.long_task import measure_artifact
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at
from passerelle.core.wire.json import Json, JsonObject

_CONTENT: Final = ("text", "raw", "url", "data", "filename", "mediaType")
_SHORT: Final = 32
"""Messages that are looked through sooner than they are sorted."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""What the messages of an agent in a history weigh together, at most: as much as one event of it may."""
_MESSAGE_BYTES: Final = 512
"""What a message weighs beside its words: as an object of this process, with its ids."""
_LONG_BYTES: Final = MOST_BYTES // (2 * _SHORT)
"""Few messages of this size are as much as many."""
_MOST_LEFT_OUT: Final = 131_072
"""Messages that are left out and count as known; an agent that shows an older one again says it anew."""
_Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Known:
    """What those have in common that grew from one another; a place counts where the message does stand there."""

    accepted: Sequence[JsonObject]
    places: dict[_Key, list[int]]
    left_out: Mapping[int, None]
    """The hash of the key of each, oldest first."""


class LongHistory(list[JsonObject]):
    """A history in which a message is found without a look at the others; nobody changes it, adding makes another one.

    Beyond ``MOST_BYTES`` the oldest messages of the agent are left out. They count as known: an agent that shows them
    again has said nothing new.
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
        """``grown``: what is known, and the size, where these are the messages of another one and one more."""
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
        """How many messages are not there any more."""
        return len(self._known.left_out)

    def has(self, message: JsonObject) -> bool:
        """Whether it is, or was, there."""
        key = _key(message)
        places = self._known.places.get(key, ())
        return hash(key) in self._known.left_out or any(
            place < len(self) and same_message(self[place], message) for place in places
        )

    def add(self, message: JsonObject) -> LongHistory:
        """This one with ``message`` at its end."""
        size = self._size + _weigh(message)
        if size > MOST_BYTES:
            return self._shorten(size - MOST_BYTES // 2, message)
        places = self._known.places.setdefault(_key(message), [])
        if len(self) not in places:
            places.append(len(self))
        return LongHistory((*self, message), grown=(self._known, size))

    def renew(self, messages: Iterable[JsonObject], accepted: Sequence[JsonObject]) -> LongHistory:
        """One with other messages that has left out the same ones."""
        return LongHistory(messages, accepted, self._known.left_out)

    def is_complete(self, accepted: Sequence[JsonObject]) -> bool:
        """Whether it was completed with these: what is added to it at its end makes it no less so."""
        mine = self._known.accepted
        return len(mine) == len(accepted) > 0 and all(map(is_, mine, accepted))

    def _shorten(self, over: int, message: JsonObject) -> LongHistory:
        """With ``message``, and without the oldest ones of the agent that weigh ``over`` bytes together."""
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
    """Whether id and content agree; ids of task and context, metadata and order of keys do not count."""
    # Most agents give back what they got, as it was.
    if one.get("messageId") != other.get("messageId") and (
        text_at(one, "messageId") != text_at(other, "messageId")
    ):
        return False
    return one.get("parts") == other.get("parts") or _contents(one) == _contents(other)


def merge_history(native: Sequence[JsonObject], accepted: Sequence[JsonObject]) -> list[JsonObject]:
    """``native`` with those of ``accepted`` that it lacks, each before the next accepted one that it has."""
    merged: list[JsonObject] = []
    position = 0
    waiting: list[JsonObject] = []
    for message in accepted:
        found = _find(native, message, position)
        if found is None:
            waiting.append(message)
            continue
        merged += [*native[position:found], *waiting, native[found]]
        position, waiting = found + 1, []
    return [*merged, *native[position:], *waiting]


def list_history(task: JsonObject) -> list[JsonObject]:
    """The messages in the history of a Task; not to be changed."""
    history = cast("object", task.get("history"))
    return history if isinstance(history, LongHistory) else objects_at(task, "history")


def sort(messages: list[JsonObject]) -> list[JsonObject]:
    """The same messages, so that many of them need not be looked through for each that is looked for."""
    if len(messages) < _SHORT or isinstance(messages, LongHistory):
        return messages
    return LongHistory(messages)


def count_left_out(task: JsonObject | None) -> int:
    """How many messages of its agent a Task does not show any more."""
    history = cast("object", task.get("history")) if task else None
    return history.left_out if isinstance(history, LongHistory) else 0


def is_in(history: list[JsonObject], message: JsonObject) -> bool:
    """Whether a history has a message."""
    if isinstance(history, LongHistory):
        return history.has(message)
    return any(same_message(item, message) for item in history)


def add_to_history(history: list[JsonObject], message: JsonObject) -> list[JsonObject]:
    """``history`` with ``message`` at its end, unless it is there already."""
    is_long = measure_artifact(message) > _LONG_BYTES
    history = LongHistory(history) if is_long and type(history) is list else sort(history)
    if is_in(history, message):
        return history
    return history.add(message) if isinstance(history, LongHistory) else [*history, message]


def put_history(task: JsonObject, history: list[JsonObject]) -> JsonObject:
    """A copy of ``task`` with this history: itself, so that what is known of it stays known."""
    return {**task, "history": cast("list[Json]", history)}


def complete_history(task: JsonObject, accepted: Sequence[JsonObject]) -> JsonObject:
    """``task`` with every accepted message in its history: itself where that has them, else a copy."""
    given = task.get("history")
    # Most agents that keep a history begin it with the one message that there is.
    if (
        isinstance(given, list)
        and given
        and len(accepted) == 1
        and isinstance(first := given[0], dict)
        and same_message(first, accepted[0])
    ):
        return task
    if isinstance(given, LongHistory) and given.is_complete(accepted):
        return task
    history = merge_history(objects_at(task, "history"), accepted)
    if isinstance(given, LongHistory):
        history = given.renew(history, [*accepted])
    elif len(history) >= _SHORT:
        history = LongHistory(history, [*accepted])
    return put_history(task, history) if history else task


def rename_message(task: JsonObject, sent: str, own: str) -> JsonObject:
    """A copy in which the message that went out as ``sent`` has the id again under which it came to us."""
    history = objects_at(task, "history")
    if all(text_at(message, "messageId") != sent for message in history):
        return task
    renamed = [
        {**message, "messageId": own} if text_at(message, "messageId") == sent else message
        for message in history
    ]
    return {**task, "history": as_list(renamed)}


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


def _find(native: Sequence[JsonObject], message: JsonObject, start: int) -> int | None:
    for place in range(start, len(native)):
        if same_message(native[place], message):
            return place
    return None


def _weigh(message: JsonObject) -> int:
    """Bytes of a message of the agent.

    Those of callers weigh nothing: whoever folds what is stored may have fewer of them, and leaves out the same.
    """
    if text_at(message, "role") != ROLE_AGENT:
        return 0
    return _MESSAGE_BYTES + measure_artifact(message)


def _key(message: JsonObject) -> _Key:
    """Equal for messages that are the same."""
    said = tuple(tuple(map(_digest, part)) for part in _contents(message))
    return text_at(message, "messageId"), hash(said)


def _digest(value: Json) -> int:
    """Equal for values that are, as 2 and 2.0 are."""
    if isinstance(value, dict):
        return hash(frozenset((name, _digest(one)) for name, one in value.items()))
    return hash(tuple(map(_digest, value))) if isinstance(value, list) else hash(value)


def _contents(message: JsonObject) -> list[list[Json]]:
    # A protobuf peer adds empty texts and drops them at will. What we put in ourselves is not the caller's.
    return [
        [part.get(name) or None if name != "data" else part.get(name) for name in _CONTENT]
        for part in objects_at(message, "parts")
        if REFERENCE not in object_at(part, "metadata")
    ]
