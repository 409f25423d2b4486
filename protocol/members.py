"""The kinds of values of frame members: one small class per kind.

A kind reads a JSON value or refuses it by the member's name, writes it, and makes its JSON Schema, so that decoder,
encoder, schema and documents agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

from passerelle.core.errors import InvalidInput
from passerelle.protocol.cursor import Cursor, parse_cursor

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

SHORT: Final = 128
"""Characters in an id, a key, a device or tab name."""
NAME: Final = 255
TOKEN: Final = 8_192
SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader preserves."""
_CURSOR: Final[JsonObject] = {
    "type": "string",
    "pattern": "^[0-9a-f]{8}\\.(0|[1-9][0-9]{0,15})\\.[0-9a-f]{8}$",
}


class MemberKind(Protocol):
    """Reads and writes one kind of value, and makes its schema.

    ``read`` raises InvalidInput (or BadCursor) with ``at``, the name of the member. ``write`` returns None for an
    omitted member.
    """

    def read(self, value: Json, at: str) -> Any: ...  # noqa: ANN401 - the field's own annotation says which
    def write(self, value: Any) -> Json: ...  # noqa: ANN401 - as above
    def make_schema(self) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class Wire:
    """The wire form of a field: its short name, its kind, and its description."""

    name: str
    kind: MemberKind
    about: str = ""


class AsItIs:
    """A kind whose values are their own wire form."""

    __slots__ = ()

    def write(self, value: Any) -> Json:  # noqa: ANN401 - what the kind reads
        written: Json = value
        return written


@dataclass(frozen=True, slots=True)
class Text:
    """A non-empty text of at most ``limit`` characters."""

    limit: int = SHORT

    def read(self, value: Json, at: str) -> str:
        if not isinstance(value, str) or not value:
            raise InvalidInput(at, "a non-empty text is required")
        if len(value) > self.limit:
            raise InvalidInput(at, f"at most {self.limit} characters")
        return value

    def write(self, value: str | None) -> Json:
        return value or None

    def make_schema(self) -> JsonObject:
        return {"type": "string", "minLength": 1, "maxLength": self.limit}


@dataclass(frozen=True, slots=True)
class Prose(AsItIs):
    """A text for people, which may be empty and as long as the frame allows."""

    def read(self, value: Json, at: str) -> str:
        if not isinstance(value, str):
            raise InvalidInput(at, "a text is required")
        return value

    def make_schema(self) -> JsonObject:
        return {"type": "string"}


class Word:
    """One of a closed set: the values of a Literal or of an enumeration."""

    __slots__ = ("_words",)

    def __init__(self, words: Any) -> None:  # noqa: ANN401 - a Literal is no type that could be named
        self._words = {str(word): word for word in get_args(words) or words}

    def read(self, value: Json, at: str) -> object:
        word = self._words.get(value) if isinstance(value, str) else None
        if word is None:
            raise InvalidInput(at, f"one of {', '.join(sorted(self._words))}")
        return word

    def write(self, value: str | None) -> Json:
        return None if value is None else str(value)

    def make_schema(self) -> JsonObject:
        return {"enum": [*sorted(self._words)]}


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag that is written as a word when it is set."""

    on: str
    off: str

    def read(self, value: Json, at: str) -> bool:
        if value not in (self.on, self.off):
            raise InvalidInput(at, f"{self.on} or {self.off}")
        return value == self.on

    def write(self, value: object) -> Json:
        return self.on if value else None

    def make_schema(self) -> JsonObject:
        return {"enum": [self.on, self.off]}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def read(self, value: Json, at: str) -> bool:
        if not isinstance(value, bool):
            raise InvalidInput(at, "true or false is required")
        return value

    def write(self, value: object) -> Json:
        return bool(value)

    def make_schema(self) -> JsonObject:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class PresentFlag(Flag):
    """A flag that is omitted when it is not set."""

    def write(self, value: object) -> Json:
        return True if value else None


@dataclass(frozen=True, slots=True)
class Integer(AsItIs):
    """An integer within bounds; booleans are refused."""

    least: int = 0

    def read(self, value: Json, at: str) -> int:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not self.least <= value <= SAFE_INTEGER
        ):
            raise InvalidInput(at, f"an integer from {self.least} to {SAFE_INTEGER} is required")
        return value

    def make_schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self.least, "maximum": SAFE_INTEGER}


@dataclass(frozen=True, slots=True)
class Number(AsItIs):
    """A finite number."""

    def read(self, value: Json, at: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(at, "a number is required")
        return float(value)

    def make_schema(self) -> JsonObject:
        return {"type": "number"}


@dataclass(frozen=True, slots=True)
class ObjectValue(AsItIs):
    """An object whose members the channel does not read."""

    def read(self, value: Json, at: str) -> JsonObject:
        if not isinstance(value, dict):
            raise InvalidInput(at, "an object is required")
        return value

    def make_schema(self) -> JsonObject:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class IntegerMap:
    """Integers by name; other values are ignored, since later versions add members."""

    def read(self, value: Json, at: str) -> dict[str, int]:
        return {
            name: count
            for name, count in ObjectValue().read(value, at).items()
            if isinstance(count, int) and not isinstance(count, bool)
        }

    def write(self, value: dict[str, int]) -> Json:
        return {**value}

    def make_schema(self) -> JsonObject:
        return {"type": "object", "additionalProperties": {"type": "integer"}}


@dataclass(frozen=True, slots=True)
class WordSet:
    """A set of short texts; others are ignored, since later versions add words."""

    most: int

    def read(self, value: Json, at: str) -> frozenset[str]:
        items = read_items(value, at, self.most)
        return frozenset(item for item in items if isinstance(item, str) and len(item) <= SHORT)

    def write(self, value: frozenset[str]) -> Json:
        return [*sorted(value)]

    def make_schema(self) -> JsonObject:
        return {"type": "array", "maxItems": self.most, "items": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A list of objects."""

    most: int

    def read(self, value: Json, at: str) -> tuple[JsonObject, ...]:
        items = read_items(value, at, self.most)
        return tuple(ObjectValue().read(item, f"{at}[{index}]") for index, item in enumerate(items))

    def write(self, value: tuple[JsonObject, ...]) -> Json:
        return [*value]

    def make_schema(self) -> JsonObject:
        return {"type": "array", "maxItems": self.most, "items": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class CursorText:
    """A cursor, whole."""

    def read(self, value: Json, at: str) -> Cursor:
        return parse_cursor(Text().read(value, at), at)

    def write(self, value: Cursor | None) -> Json:
        return None if value is None else str(value)

    def make_schema(self) -> JsonObject:
        return _CURSOR


@dataclass(frozen=True, slots=True)
class CursorMap:
    """Cursors by stream, at least ``least`` of them; an empty map is omitted."""

    most: int
    least: int = 0

    def read(self, value: Json, at: str) -> dict[str, Cursor]:
        named = ObjectValue().read(value, at)
        if not self.least <= len(named) <= self.most:
            raise InvalidInput(at, f"from {self.least} to {self.most} streams and their cursors")
        cursor = CursorText()
        return {
            stream: cursor.read(text, f"{at}.{stream[:NAME]}") for stream, text in named.items()
        }

    def write(self, value: dict[str, Cursor]) -> Json:
        return {stream: str(cursor) for stream, cursor in value.items()} or None

    def make_schema(self) -> JsonObject:
        return {
            "type": "object",
            "minProperties": self.least,
            "maxProperties": self.most,
            "additionalProperties": _CURSOR,
        }


def read_items(value: Json, at: str, most: int) -> list[Json]:
    """The items of an array of at most ``most`` items."""
    if not isinstance(value, list) or len(value) > most:
        raise InvalidInput(at, f"an array of at most {most} items is required")
    return value
